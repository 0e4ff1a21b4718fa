#define _GNU_SOURCE
#include "python/frame_digester.h"

#include <string.h>

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
    if (self->mac.lib != NULL)
        return frame_mac_compute(&self->mac, number, header, payload, nbytes, digest);
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

static void forget_keys(FrameDigester *self) {
    explicit_bzero(self->frame_key, sizeof self->frame_key);
    explicit_bzero(self->payload_key, sizeof self->payload_key);
    self->has_keys = false;
}

static bool read_key(PyObject *keys, Py_ssize_t at, uint8_t key[FRAME_MAC_KEY]) {
    PyObject *given = PyTuple_GET_ITEM(keys, at);
    if (!PyBytes_Check(given) || PyBytes_GET_SIZE(given) != FRAME_MAC_KEY) return false;
    memcpy(key, PyBytes_AS_STRING(given), FRAME_MAC_KEY);
    return true;
}

ah_digester *frame_digester_set(FrameDigester *self, PyObject *given, PyObject *keys) {
    frame_mac_clear(&self->mac);
    self->has_keys = keys != Py_None;
    if (self->has_keys &&
        (!PyTuple_Check(keys) || PyTuple_GET_SIZE(keys) != 2 ||
         !read_key(keys, 0, self->frame_key) || !read_key(keys, 1, self->payload_key))) {
        forget_keys(self);
        PyErr_SetString(PyExc_TypeError, "keys of digests are two of 32 bytes");
        return NULL;
    }
    self->digester = (ah_digester){.compute = compute};
    Py_XSETREF(self->compute, Py_NewRef(given));
    return &self->digester;
}

void frame_digester_clear(FrameDigester *self) {
    frame_mac_clear(&self->mac);
    forget_keys(self);
    Py_CLEAR(self->compute);
}

bool frame_digester_needs_python(FrameDigester *self) {
    if (self->has_keys) {
        frame_mac_set(&self->mac, self->frame_key, self->payload_key);
        forget_keys(self);
    }
    return self->mac.lib == NULL;
}
