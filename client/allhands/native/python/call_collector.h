/* CallCollector: stands for a group's way while a thread's calls are collected. */
#ifndef ALLHANDS_CALL_COLLECTOR_H
#define ALLHANDS_CALL_COLLECTOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

int add_collector_type(PyObject *module);

#endif
