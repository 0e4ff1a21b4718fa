/* Messages between all ranks, the sizes of which only their senders know, as one call: what the
 * methods of ShmComm for that have in common. */
#ifndef ALLHANDS_EXCHANGE_CALL_H
#define ALLHANDS_EXCHANGE_CALL_H

#include "python/array_messages.h"
#include "python/comm_object_state.h"

/* Where the bytes lie that a rank sends; arrays are borrowed from the caller, who waits. */
typedef struct {
    ah_message to[AH_MAX_RANKS];
    ah_buffer *buffers;
    size_t buffer_count;
    Py_buffer *views; /* of what is no array */
    size_t view_count;
    ArrayHead *heads;
} Sources;

/* Allocate so many of each; false with an exception. */
bool sources_make_room(Sources *sources, size_t buffers, size_t views, size_t heads);
/* Make a contiguous array the message for a rank, with two buffers and a head, which are those at
 * `place`; the head has the name of the dtype, or NULL: none. */
void sources_add_array(Sources *sources, int place, int rank, PyArrayObject *array,
                       const DtypeName *name);
void sources_release(Sources *sources);

/* Plan an exchange as a composite call; with `is_same` the first message is for all ranks. */
void exchange_plan(Plan *plan, const Sources *sources, bool is_same, PyObject *call,
                   const char *operation, uint64_t signature);
/* Carry the plan out, by who has the turn: what has come from each rank, as take_received; NULL
 * with an exception. Sequence 0: the next number. Times are in nanoseconds; deadline 0: after the
 * timeout. */
PyObject *exchange_run(CommObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
                       PyObject *label);

#endif
