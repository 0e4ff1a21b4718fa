/* Segment: the shared memory of one process, as Python holds it. */
#ifndef ALLHANDS_SEGMENT_OBJECT_H
#define ALLHANDS_SEGMENT_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>

#include "comm/comm.h"

typedef struct {
    PyObject_HEAD
    char *base;
    size_t nbytes;
    int fd; /* -1 when it is another process's */
    /* Pages that are ordinary memory now, because a peer hangs where it could write to them. They
     * are never given out again. */
    struct {
        char *from, *to;
    } *unshared;
    int unshared_count;
} SegmentObject;

/* Remember such pages; false: out of memory. */
bool segment_unshare(SegmentObject *self, void *from, size_t nbytes);
/* Whether any of them, from number `first` on, are among these. */
bool segment_is_unshared(const SegmentObject *self, int first, const void *at, size_t nbytes);

/* What a group of `size` takes of each rank's segment: the area of its communicator, then the
 * region of its messages. */
size_t segment_area_bytes(int size, const ah_limits *limits);
/* Where `needed` bytes at `offsets` lie in the segments of all ranks, and their heaps; whose they
 * are. False, with an exception: not all in there. The tuples are of one length. */
bool segment_places(PyObject *segments, PyObject *offsets, PyObject *pids, size_t needed,
                    size_t heap_offset, size_t heap_bytes, void *areas[], void *heaps[],
                    pid_t processes[]);

/* The same for areas alone. */
bool segment_areas(PyObject *segments, PyObject *offsets, size_t needed, void *areas[]);

extern PyTypeObject *Segment_Type;
extern PyTypeObject *Block_Type;

int add_segment_types(PyObject *module);

#endif
