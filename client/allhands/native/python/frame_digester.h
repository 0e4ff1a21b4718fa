/* The digests of a link's frames, by a function in Python: transport/digests.py. */
#ifndef ALLHANDS_FRAME_DIGESTER_H
#define ALLHANDS_FRAME_DIGESTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "links/link.h"

/* Handlers of signals must not run while it computes: an exception counts as no digest. */
typedef struct {
    ah_digester digester;
    PyObject *compute; /* owned; NULL: there is none */
} FrameDigester;

/* Have digests made by `compute`, called with the number, the header and the payload. */
ah_digester *frame_digester_set(FrameDigester *self, PyObject *compute);

#endif
