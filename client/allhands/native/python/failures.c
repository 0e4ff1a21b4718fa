#include "python/failures.h"

static PyObject *new_failure(const char *class_name, PyObject *fields) {
    PyObject *module = PyImport_ImportModule("allhands.shm.failures");
    PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, class_name);
    PyObject *none = type == NULL ? NULL : PyTuple_New(0);
    PyObject *failure = none == NULL ? NULL : PyObject_Call(type, none, fields);
    Py_XDECREF(module);
    Py_XDECREF(type);
    Py_XDECREF(none);
    return failure;
}

void raise_failure(PyObject *on_failure, const char *class_name, PyObject *fields) {
    if (fields == NULL) return;
    PyObject *failure = new_failure(class_name, fields);
    Py_DECREF(fields);
    if (failure == NULL) return;
    PyObject *done = PyObject_CallOneArg(on_failure, failure);
    Py_DECREF(failure);
    if (done != NULL) {
        Py_DECREF(done);
        PyErr_Format(PyExc_SystemError, "on_failure must raise: %s", class_name);
    }
}
