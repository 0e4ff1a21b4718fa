/* What the rings of records have in common: their sizes, and how the latest rows are read.
 *
 * Calls and messages have one each. A call's record is found by its number in the group, which
 * peers name too, and is written within the call's turn; messages have no such numbers, and any
 * threads write theirs at once with the GIL held.
 */
#ifndef ALLHANDS_RECORD_RING_H
#define ALLHANDS_RECORD_RING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define RECORDS_LEAST 64 /* to describe calls to peers, also where none is recorded */

/* Records that a ring has, of which so many are wanted: a power of two. */
size_t ring_size(size_t wanted);

/* The row of a record as a tuple; NULL: overwritten, or never written; or with an exception. */
typedef PyObject *(*ring_row)(void *ring, uint64_t number);

/* The latest rows up to the number `newest`, `last` at most, as a list; oldest first. */
PyObject *ring_rows(void *ring, size_t size, uint64_t newest, size_t last, ring_row row);

#endif
