/* LinkCall: a schedule of calls over links, compiled: its state, for callers in C. */
#ifndef ALLHANDS_LINK_CALL_OBJECT_STATE_H
#define ALLHANDS_LINK_CALL_OBJECT_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hosts/host_call.h"
#include "links/call.h"

typedef struct {
    PyObject_HEAD
    ah_call call;
    ah_host_steps *steps;     /* of the ranks of a host, before and after the rounds; NULL: none */
    PyObject *board;          /* HostBoard of those; NULL: none */
    PyObject *links;          /* tuple of LinkState */
    PyObject *held[AH_AREAS]; /* tuples of arrays of the call under way; NULL: the caller holds */
    ah_piece *pieces;         /* of those arrays */
    Py_ssize_t piece_room;
    uint64_t signature;      /* of the calls that it was compiled for; some have another */
    size_t needed[AH_AREAS]; /* bytes of each area that the schedule names */
    bool is_under_way, is_running;
} LinkCallObject;

extern PyTypeObject *LinkCall_Type;

/* Whether every span of the schedule lies in one piece of its area. */
bool link_call_fits(const LinkCallObject *self, const ah_memory memory[AH_AREAS]);

/* Begin the call of that number and signature, by the holder of the loop, who keeps the memory
 * until it has ended (link_call_end) or is withdrawn. */
void link_call_begin(LinkCallObject *self, uint64_t sequence, uint64_t signature,
                     const ah_memory memory[AH_AREAS]);
/* Go on, as ah_call_run does. */
ah_call_status link_call_run(LinkCallObject *self, int64_t until, int64_t spin);
void link_call_end(LinkCallObject *self);

#endif
