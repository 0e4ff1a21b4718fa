/* One-way copies through staging buffers: each source has two, which it fills in turn.
 *
 * For what flows in one direction and cannot be read where it lies (remote_read.h). A writer gets
 * its own lines back here, so each part of them has one reader, which hands the lines back
 * dirty: even where all get the same, one copy for each is three times as fast as one that all
 * read.
 *
 * A source fills a buffer once those that it filled it for last have read it (`taken`), or have
 * abandoned that call. If no other rank has used its staging since (`fills_known`), that is all it
 * waits for: it fills before others have posted the call, and ends the call up to two buffers ahead
 * of its readers. Each call in which any rank may do that begins with ah_staged_await on all ranks,
 * so that no rank takes a box of another kind for free that a source may have filled.
 */
#ifndef ALLHANDS_STAGED_COPY_H
#define ALLHANDS_STAGED_COPY_H

#include "comm/comm_state.h"

typedef struct {
    uint64_t signature;
    uint64_t sources, readers; /* sets of ranks, none in both */
    const void *what;
    /* Bytes that flow from a source to a reader, one of which is this rank. */
    size_t (*count)(const void *what, int source, int reader);
    /* Copy those from `at` on into the box. */
    void (*produce)(const void *what, int reader, size_t at, size_t nbytes, char *box);
    void (*consume)(const void *what, int source, size_t at, size_t nbytes, const char *box);
} ah_staged_copy;

/* Of the header of a source, before it is posted. */
void ah_staged_describe(const ah_comm *comm, ah_call_header *header);

/* Post a header, unless this rank has, that says where `at` lies; NULL: nobody reads it there. */
ah_status ah_staged_post(ah_comm *comm, uint64_t signature, const void *at, size_t nbytes);

/* After posting: wait for the headers of the sources, or of all ranks if that is asked for. A
 * source itself waits for none where it may fill ahead. */
ah_status ah_staged_await(ah_comm *comm, uint64_t signature, uint64_t sources, bool all);

/* Fill, or read, all that there is. */
ah_status ah_staged_copy_run(ah_comm *comm, const ah_staged_copy *staged);

/* Wait until these sources have filled all of a step. */
ah_status ah_staged_await_filled(ah_comm *comm, uint64_t sources, uint64_t step);
/* The box with the part of one step that `source` filled for `reader`. */
char *ah_staged_box(const ah_comm *comm, const ah_staged_copy *staged, int source, int reader,
                    uint64_t step);
/* Publish that this rank has read that step of all its sources. */
void ah_staged_take(ah_comm *comm, const ah_staged_copy *staged, uint64_t step);

#endif
