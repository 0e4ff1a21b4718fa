/* Segment: the shared memory of one process, as Python holds it. */
#ifndef ALLHANDS_SEGMENT_OBJECT_H
#define ALLHANDS_SEGMENT_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    char *base;
    size_t nbytes;
    int fd; /* -1 when it is another process's */
} SegmentObject;

extern PyTypeObject *Segment_Type;
extern PyTypeObject *Block_Type;

int add_segment_types(PyObject *module);

#endif
