/* The comparison of a call's result with those of the other ranks: an exchange of their digests, as
 * in engine/result_check.py.
 */
#ifndef ALLHANDS_LINK_COMPARISON_H
#define ALLHANDS_LINK_COMPARISON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "python/arrays.h"
#include "python/link_schedule.h"

typedef struct {
    LinkSchedule schedule;     /* its call NULL: results are not compared */
    PyObject *mine;            /* array of this rank's digest, and of those of its host */
    PyObject *digests;         /* array of those of all ranks, in which an exchange lands */
    PyObject *scratch;         /* array */
    bool is_same;              /* the first array is the result of all ranks; else there is none */
    ah_piece pieces[AH_AREAS]; /* of the exchange under way */
} LinkComparison;

/* Take a `ComparisonRow`, or None; false with an exception. */
bool link_comparison_read(LinkComparison *self, bool has_array, PyObject *row);
void link_comparison_clear(LinkComparison *self);

/* Begin the exchange of the call of that number, whose `result` was checked to be there if it is
 * the same on all ranks; -1 with an exception. */
int link_comparison_begin(LinkComparison *self, uint64_t sequence, PyArrayObject *result,
                          PyObject *checksum);

/* Whether all ranks have the same digest. */
bool link_comparison_agrees(const LinkComparison *self);

#endif
