/* The digests of the frames of one direction of a link: by its keys, or by a function in Python
 * where OpenSSL is missing. */
#ifndef ALLHANDS_FRAME_DIGESTER_H
#define ALLHANDS_FRAME_DIGESTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "links/link.h"
#include "python/frame_mac.h"

typedef struct {
    ah_digester digester;
    PyObject *compute; /* owned; NULL: there is none */
    FrameMac mac;      /* once it was needed */
    bool has_keys;     /* for it, which were not needed yet */
    uint8_t frame_key[FRAME_MAC_KEY], payload_key[FRAME_MAC_KEY];
} FrameDigester;

/* Have digests made by `compute`, called with the number, the header and the payload; or, with a
 * tuple of two `keys`, of frames and of payloads, without Python. NULL with an exception. */
ah_digester *frame_digester_set(FrameDigester *self, PyObject *compute, PyObject *keys);

void frame_digester_clear(FrameDigester *self);

/* Prepare for digests that are needed soon: whether Python makes them. Handlers of signals must not
 * run then: an exception counts as no digest. To be called with the GIL. */
bool frame_digester_needs_python(FrameDigester *self);

#endif
