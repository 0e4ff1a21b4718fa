#include "python/link_schedule.h"

bool link_schedule_read(LinkSchedule *self, PyObject *call, PyObject *compiled, PyObject *ranks) {
    Py_ssize_t count = PyTuple_GET_SIZE(ranks);
    self->call = (LinkCallObject *)Py_NewRef(call);
    self->compiled = Py_NewRef(compiled);
    if (count != self->call->call.link_count) {
        PyErr_SetString(PyExc_ValueError, "a rank for each link");
        return false;
    }
    self->ranks = PyMem_Calloc((size_t)count + 1, sizeof *self->ranks);
    if (self->ranks == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        self->ranks[i] = PyLong_AsLong(PyTuple_GET_ITEM(ranks, i));
    return !PyErr_Occurred();
}

void link_schedule_clear(LinkSchedule *self) {
    PyMem_Free(self->ranks);
    Py_XDECREF((PyObject *)self->call);
    Py_XDECREF(self->compiled);
}

bool link_schedule_is_ready(const LinkSchedule *self) {
    if (self->call->is_running || self->call->is_under_way) return false;
    for (int i = 0; i < self->call->call.link_count; i++) {
        const ah_link *link = self->call->call.links[i];
        if (!link->is_lent || link->has_rest || link->in < 0 || link->out < 0) return false;
    }
    return true;
}
