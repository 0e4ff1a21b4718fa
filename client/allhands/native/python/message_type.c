#include "python/p2p_object_state.h"

#include <string.h>

#include "python/segment_object.h"

static uint64_t hash_of_name(const char *name) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a (Fowler, Noll & Vo) */
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static uint64_t signature_of(uint64_t hash, size_t count) {
    return (hash ^ count) * 0x9e3779b97f4a7c15u;
}

PyObject *message_signature(PyObject *unused, PyObject *args) {
    const char *name;
    Py_ssize_t count;
    (void)unused;
    if (!PyArg_ParseTuple(args, "sn", &name, &count)) return NULL;
    return PyLong_FromUnsignedLongLong(signature_of(hash_of_name(name), (size_t)count));
}

/* NULL with an exception. It stays until seven others have been used. */
static Type *type_of(P2PObject *self, PyArrayObject *array) {
    PyObject *descr = (PyObject *)PyArray_DESCR(array);
    for (int at = 0; at < TYPES; at++)
        if (self->types[at].descr == descr) return &self->types[at];
    PyObject *name = PyObject_Str(descr);
    PyObject *text = name == NULL ? NULL : PyUnicode_AsUTF8String(name);
    Py_XDECREF(name);
    if (text == NULL) return NULL;
    uint64_t hash = hash_of_name(PyBytes_AS_STRING(text));
    Type *type = &self->types[self->next_type++ % TYPES];
    Py_XSETREF(type->descr, Py_NewRef(descr));
    Py_XSETREF(type->text, text);
    type->hash = hash;
    return type;
}

bool message_describe(P2PObject *self, ah_message *message, PyArrayObject *array, PyObject **text) {
    Type *type = type_of(self, array);
    if (type == NULL) return false;
    *text = Py_NewRef(type->text);
    message->type = PyBytes_AS_STRING(type->text);
    message->count = (size_t)PyArray_SIZE(array);
    message->signature = signature_of(type->hash, message->count);
    message->nbytes = (size_t)PyArray_NBYTES(array);
    message->data = PyArray_DATA(array);
    SegmentObject *own = (SegmentObject *)PyTuple_GET_ITEM(self->segments, self->rank);
    message->is_private =
        own->unshared_count && segment_is_unshared(own, 0, message->data, message->nbytes);
    return true;
}
