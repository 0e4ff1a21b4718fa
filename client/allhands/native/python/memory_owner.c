/* The buffer of an object in Python: what its method `tomemory` returns. Python 3.12 has
 * `__buffer__` for it (PEP 688). */
#include "python/memory_owner.h"

static int get_buffer(PyObject *self, Py_buffer *view, int flags) {
    view->obj = NULL;
    PyObject *memory = PyObject_CallMethod(self, "tomemory", NULL);
    if (memory == NULL) return -1;
    int result = PyObject_GetBuffer(memory, view, flags);
    Py_DECREF(memory);
    return result;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "An object that is the buffer of its `tomemory()`; described in _native.pyi."},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "allhands._native.MemoryOwner",
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int add_memory_owner_type(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL) return -1;
    int result = PyModule_AddObjectRef(module, "MemoryOwner", type);
    Py_DECREF(type);
    return result;
}
