#include "python/frame_digester.h"

#include "links/frame.h"

/* Views of a header and a payload; NULL with an exception. */
static PyObject *view(const uint8_t *memory, size_t nbytes) {
    static char nothing;
    char *at = nbytes ? (char *)(uintptr_t)memory : &nothing;
    return PyMemoryView_FromMemory(at, (Py_ssize_t)nbytes, PyBUF_READ);
}

static bool call(PyObject *compute, uint64_t number, PyObject *header, PyObject *payload,
                 uint32_t *digest) {
    PyObject *arguments[] = {NULL, PyLong_FromUnsignedLongLong(number), header, payload};
    PyObject *made = NULL;
    if (arguments[1] != NULL && header != NULL && payload != NULL)
        made =
            PyObject_Vectorcall(compute, arguments + 1, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(arguments[1]);
    if (made == NULL) return false;
    *digest = (uint32_t)PyLong_AsUnsignedLong(made);
    Py_DECREF(made);
    return !PyErr_Occurred();
}

static bool compute(ah_digester *digester, uint64_t number, const uint8_t *header,
                    const uint8_t *payload, size_t nbytes, uint32_t *digest) {
    FrameDigester *self = (FrameDigester *)digester;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *first = view(header, AH_FRAME_HEADER);
    PyObject *second = first == NULL ? NULL : view(payload, nbytes);
    bool made = call(self->compute, number, first, second, digest);
    if (!made) PyErr_WriteUnraisable(self->compute);
    Py_XDECREF(first);
    Py_XDECREF(second);
    PyGILState_Release(state);
    return made;
}

ah_digester *frame_digester_set(FrameDigester *self, PyObject *given) {
    self->digester = (ah_digester){.compute = compute};
    Py_XSETREF(self->compute, Py_NewRef(given));
    return &self->digester;
}
