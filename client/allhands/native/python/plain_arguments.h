/* Plans of calls from plain arguments, as the methods of ShmComm get them.
 *
 * Arguments that are not plain are not refused here: the checked way looks again, and says what is
 * wrong with them if anything is.
 */
#ifndef ALLHANDS_PLAIN_ARGUMENTS_H
#define ALLHANDS_PLAIN_ARGUMENTS_H

#include "python/comm_object_state.h"
#include "python/kind_methods.h"

/* Write into a plan what a kind's arguments say, but for timeout and label, which follow them;
 * false: they are not plain. */
typedef bool PlanArguments(const CommObject *self, Plan *plan, PyObject *const *args);

/* Lists have become tuples by then. */
#define DECLARE_PLAN(name, kind) PlanArguments plan_##name;
LIST_METHODS(DECLARE_PLAN)
#undef DECLARE_PLAN

/* A rank of the group; -1: it is none. */
static inline int plain_rank(const CommObject *self, PyObject *given) {
    if (!PyLong_CheckExact(given)) return -1;
    long rank = PyLong_AsLong(given);
    if (rank == -1 && PyErr_Occurred()) PyErr_Clear();
    return rank < 0 || rank >= self->size ? -1 : (int)rank;
}

/* The tuple of what is given for each rank: another thread may change a list meanwhile. None, with
 * a reference too, for what is neither; NULL with an exception. */
static inline PyObject *plain_tuple(PyObject *given) {
    if (PyList_CheckExact(given)) return PyList_AsTuple(given);
    return Py_NewRef(PyTuple_CheckExact(given) ? given : Py_None);
}

/* Whether that is a tuple with an array for each rank, which is only read, all of one dtype. */
static inline bool plain_arrays(const CommObject *self, PyObject *given, PyArrayObject *arrays[]) {
    if (given == Py_None || PyTuple_GET_SIZE(given) != self->size) return false;
    for (int rank = 0; rank < self->size; rank++) {
        arrays[rank] = plain_array(PyTuple_GET_ITEM(given, rank), false);
        if (arrays[rank] == NULL || PyArray_DESCR(arrays[rank]) != PyArray_DESCR(arrays[0]))
            return false;
    }
    return true;
}

static inline bool are_disjoint(const void *one, size_t one_bytes, const void *other,
                                size_t other_bytes) {
    uintptr_t first = (uintptr_t)one, second = (uintptr_t)other;
    return first + one_bytes <= second || second + other_bytes <= first;
}

#endif
