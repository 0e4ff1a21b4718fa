/* Plans of collectives over links: compiled schedules by the arguments of the calls that they are
 * for, and where in those arguments the schedules' areas lie.
 */
#ifndef ALLHANDS_LINK_PLAN_H
#define ALLHANDS_LINK_PLAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#include "collectives/kinds.h"
#include "python/arrays.h"
#include "python/link_comparison.h"

#define LINK_PLANS 64
#define LINK_WAYS 4    /* places that a plan may have: calls by turns keep theirs */
#define LINK_ARRAYS 65 /* most of a call: a list of one for each of 64 ranks, and another */

/* Arguments of a call, as far as a plan depends on them. */
typedef struct {
    ah_kind kind;
    PyObject *op; /* borrowed; NULL: nothing is reduced */
    int root;     /* -1: there is none */
    int array_count;
    /* Borrowed; plain, of one dtype, and apart; the written ones first, which have one shape. */
    PyArrayObject *arrays[LINK_ARRAYS];
} LinkArguments;

/* Whether a call has lists: of all its arrays but one, or none where that is another rank's; of
 * all_to_all two, of half of them each. */
static inline bool link_has_list(const LinkArguments *given) {
    return given->kind == AH_KIND_ALL_GATHER || given->kind == AH_KIND_GATHER ||
           given->kind == AH_KIND_SCATTER || given->kind == AH_KIND_REDUCE_SCATTER ||
           given->kind == AH_KIND_ALL_TO_ALL;
}

/* Which array stands beside the list. */
static inline int link_single(const LinkArguments *given) {
    bool is_first = given->kind == AH_KIND_SCATTER || given->kind == AH_KIND_REDUCE_SCATTER;
    return is_first ? 0 : given->array_count - 1;
}

/* How many of the arrays are written by a rank of this number. */
static inline int link_count_outputs(const LinkArguments *given, int rank) {
    if (given->array_count == 0) return 0;
    if (given->kind == AH_KIND_REDUCE && given->root != rank) return 0;
    if (given->kind == AH_KIND_ALL_GATHER || given->kind == AH_KIND_GATHER)
        return given->array_count - 1;
    return given->kind == AH_KIND_ALL_TO_ALL ? given->array_count / 2 : 1;
}

/* Keep the arrays of a call while threads run that may let them go. */
static inline void link_hold_arrays(const LinkArguments *given) {
    for (int i = 0; i < given->array_count; i++) Py_INCREF(given->arrays[i]);
}

static inline void link_release_arrays(const LinkArguments *given) {
    for (int i = 0; i < given->array_count; i++) Py_DECREF(given->arrays[i]);
}

enum { PLACE_STAGING = -1, PLACE_SCRATCH = -2 };

/* Bytes of an array of the arguments, which it numbers, or of memory beside. */
typedef struct {
    int place;
    size_t offset, nbytes;
} PlanPiece;

typedef struct {
    PlanPiece staged, output;
} StagedOutput;

typedef struct {
    /* the arguments */
    ah_kind kind;
    PyObject *op, *descr; /* owned; NULL: none */
    int root, array_count;
    uint64_t used; /* the latest of all uses; 0: there was none */
    int ndim[2];   /* of the first array and of the last one */
    npy_intp dims[2][SHAPE_DIMS];
    /* the call */
    LinkSchedule own; /* its call NULL: calls with these arguments do not go this way */
    LinkComparison comparison;
    PyObject *signature; /* CallSignature */
    PyObject *number;    /* its 64 bits */
    PyObject *how;       /* for people */
    /* The label of the latest call that had one, and that call's signature; owned, NULL: none. */
    PyObject *label, *labelled, *labelled_number;
    PyObject *scratch; /* array */
    PlanPiece *pieces; /* of all areas */
    ah_piece *memory;  /* of the call under way, as the pieces */
    int counts[AH_AREAS];
    StagedOutput *staged;
    int staged_count;
    StagedOutput *loaded; /* blocks that are read from staging memory, and where they are */
    int loaded_count;
    /* What stands before each block that this rank sends, bytes, and must stand before each that
     * comes; NULL: nothing. Its places in staging memory: those that are sent, then the others. */
    PyObject *head;
    PlanPiece *heads;
    int head_count; /* of either */
    size_t staging_bytes;
    bool loads;     /* what is staged begins as the output */
    bool is_agreed; /* calls without a label need not hear from all ranks beside their messages */
    bool divides;   /* the first array holds the sum of what is averaged */
    ah_type type;
} LinkPlan;

typedef struct {
    LinkPlan plans[LINK_PLANS]; /* by a hash of the arguments; kind AH_KINDS: none */
    uint64_t uses;
} LinkPlans;

void plans_init(LinkPlans *self);
void plans_clear(LinkPlans *self);

/* The plan for these arguments; NULL: there is none yet. */
LinkPlan *plans_find(LinkPlans *self, const LinkArguments *given);

/* Add the plan that the owner has compiled: a row of `PlanRow`, or None where such calls do not go
 * this way. NULL with an exception. */
LinkPlan *plans_add(LinkPlans *self, const LinkArguments *given, PyObject *row);

/* Remember that calls with a label have that signature, as `sign` of the owner gives it in a tuple
 * with its number; -1 with an exception. */
int plan_set_label(LinkPlan *plan, PyObject *label, PyObject *signed_call);
/* Whether the signature of calls with that label is known. */
bool plan_has_label(const LinkPlan *plan, PyObject *label);

/* Find the memory of a call's areas, `staging` having `staging_bytes`. */
void plan_locate(LinkPlan *plan, const LinkArguments *given, uint8_t *staging,
                 ah_memory memory[AH_AREAS]);

/* Fill the staging memory with what the call reads of it. */
void plan_load(const LinkPlan *plan, const LinkArguments *given, uint8_t *staging);

/* Whether what stands before the blocks that have come is as before this rank's. */
bool plan_agrees(const LinkPlan *plan, const uint8_t *staging);

/* Bring what has landed into the outputs, and finish a reduction. */
void plan_commit(const LinkPlan *plan, const LinkArguments *given, const uint8_t *staging);

#endif
