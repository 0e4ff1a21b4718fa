#define _GNU_SOURCE
#include "python/deadline.h"

#include <time.h>

static PyObject *until; /* a ContextVar: seconds on the monotonic clock, or None */

int find_deadlines(void) {
    PyObject *module = PyImport_ImportModule("allhands.deadlines");
    if (module == NULL) return -1;
    until = PyObject_GetAttrString(module, "block_deadline");
    Py_DECREF(module);
    return until == NULL ? -1 : 0;
}

int64_t limit_by_deadlines(int64_t timeout) {
    PyObject *value = NULL;
    if (PyContextVar_Get(until, NULL, &value) < 0) {
        PyErr_Clear();
        return timeout;
    }
    int64_t left = timeout;
    if (value != NULL && PyFloat_CheckExact(value)) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double seconds = PyFloat_AS_DOUBLE(value) - (double)now.tv_sec - (double)now.tv_nsec / 1e9;
        if (seconds < (double)timeout / 1e9) left = (int64_t)(seconds * 1e9);
    }
    Py_XDECREF(value);
    return left;
}

int read_timeout(PyObject *seconds, int64_t *nanoseconds) {
    if (seconds == NULL) {
        PyErr_SetString(PyExc_TypeError, "a timeout cannot be deleted");
        return -1;
    }
    double length = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred()) return -1;
    if (!(length > 0)) {
        PyErr_SetString(PyExc_ValueError, "a timeout is a positive number of seconds");
        return -1;
    }
    *nanoseconds = length < 1e9 ? (int64_t)(length * 1e9) : (int64_t)1e18;
    return 0;
}

int64_t read_plain_limit(int64_t usual, PyObject *timeout) {
    if (timeout != Py_None) {
        double seconds = PyFloat_AsDouble(timeout);
        if (PyErr_Occurred() || !(seconds > 0) || !(seconds < 1e9)) {
            PyErr_Clear();
            return 0;
        }
        usual = (int64_t)(seconds * 1e9);
    }
    int64_t limit = limit_by_deadlines(usual);
    return limit < 0 ? 0 : limit;
}
