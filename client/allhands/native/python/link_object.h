/* LinkState: the state of the links to and from a peer, for Python. */
#ifndef ALLHANDS_LINK_OBJECT_H
#define ALLHANDS_LINK_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "links/link.h"
#include "python/frame_digester.h"

typedef struct {
    PyObject_HEAD
    ah_link link;
    PyObject *rest; /* bytes of a frame that has left in part, while `link.has_rest`; or NULL */
    PyObject *opener, *sealer; /* TlsChannels of `link`, or NULL */
    FrameDigester signer, verifier;
} LinkStateObject;

extern PyTypeObject *LinkState_Type;

/* What has not left of the frame that gives credit back, to be sent elsewhere before all others. */
PyObject *link_take_credit_rest(ah_link *link);

/* Whether Python makes digests of the frames of a link: see frame_digester_needs_python. */
bool link_needs_python(LinkStateObject *self);

int add_link_state_type(PyObject *module);

#endif
