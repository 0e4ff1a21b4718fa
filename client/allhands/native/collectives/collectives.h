/* The collectives of ranks that share memory.
 *
 * On any status but AH_OK outputs may be undefined if `touches_output` is set, are untouched else,
 * and the next call on the communicator is correct. One thread at a time. A rooted call, or a scan,
 * may end on a rank before those have posted it whose data it does not read, if all ranks have made
 * its like before.
 */
#ifndef ALLHANDS_COLLECTIVES_H
#define ALLHANDS_COLLECTIVES_H

#include "comm/comm.h"
#include "kernels/kernels.h"

ah_status ah_barrier(ah_comm *, ah_call *);
ah_status ah_all_reduce(ah_comm *, ah_call *, ah_op, ah_type, void *x, size_t count);
/* Split-phase all_reduce, where ah_all_reduce_splits allows it: `start` publishes this rank's
 * contribution and does not wait for others' (but for ranks that are several calls behind). Unless
 * it ends in AH_OK there is nothing to finish. No other call comes between the two. */
bool ah_all_reduce_splits(const ah_comm *, ah_type, size_t count);
ah_status ah_all_reduce_start(ah_comm *, ah_call *, ah_op, ah_type, const void *x, size_t count);
ah_status ah_all_reduce_finish(ah_comm *, ah_op, ah_type, void *x, size_t count);
/* Publish this rank's contribution to a later all_reduce that ah_all_reduce_splits allows, of at
 * most AH_AHEAD calls beyond the one that it is in; false: it cannot be yet. The call has its
 * number and the caller's signature; once its turn comes it begins with `is_posted` set. */
bool ah_all_reduce_post(ah_comm *, const ah_call *, ah_op, ah_type, const void *x, size_t count);
ah_status ah_reduce(ah_comm *, ah_call *, ah_op, ah_type, const void *in, void *out, size_t count,
                    int root); /* out: root only, may be in */
ah_status ah_reduce_scatter(ah_comm *, ah_call *, ah_op, ah_type, const void *const in[], void *out,
                            size_t count); /* in[r]: count elements for rank r */
/* in[r]: nbytes[r] bytes for rank r, whole elements, the same sizes on all ranks. */
ah_status ah_reduce_scatter_v(ah_comm *, ah_call *, ah_op, ah_type, const void *const in[],
                              const size_t nbytes[], void *out);
ah_status ah_broadcast(ah_comm *, ah_call *, void *x, size_t nbytes, int root);
ah_status ah_gather(ah_comm *, ah_call *, const void *in, void *const out[], size_t nbytes,
                    int root);
ah_status ah_scatter(ah_comm *, ah_call *, const void *const in[], void *out, size_t nbytes,
                     int root);
ah_status ah_all_gather(ah_comm *, ah_call *, const void *in, void *const out[], size_t nbytes);
/* send[r] bytes at in[r] go to rank r, recv[r] bytes come to out[r] from it. What a rank sends to
 * another must be what that one expects, else AH_MISMATCH. in and out never overlap. */
ah_status ah_all_to_all(ah_comm *, ah_call *, const void *const in[], const size_t send[],
                        void *const out[], const size_t recv[]);

/* Overwrite x with the reduction of those of rank 0 up to this one; or of the ranks before it,
 * where rank 0 keeps its own. */
ah_status ah_scan(ah_comm *, ah_call *, ah_op, ah_type, void *x, size_t count);
ah_status ah_exscan(ah_comm *, ah_call *, ah_op, ah_type, void *x, size_t count);

typedef struct {
    const void *at;
    size_t nbytes;
} ah_buffer;

/* What one rank sends to another: the bytes of its buffers, one behind the other. */
typedef struct {
    const ah_buffer *buffers;
    size_t count;  /* of buffers */
    size_t nbytes; /* of all of them */
} ah_message;

typedef struct {
    const ah_message *to; /* one for each rank, the own never sent; or one alone for all of them */
    bool is_same;         /* one alone */
    int root;             /* alone sends anything, as all ranks know; -1: all may */
    bool to_root;         /* it alone receives anything instead */
    /* Called once, when it is known that nbytes[r] come from rank r: out[r] is to be memory for
     * them, which may be NULL where nothing comes. `owner` is the call's, which may be paused.
     * false ends the call in AH_INTERRUPTED. */
    bool (*allocate)(void *owner, const size_t nbytes[], char *out[]);
} ah_messages;

ah_status ah_exchange(ah_comm *, ah_call *, const ah_messages *);

#endif
