/* The plan of a call from its arguments: dtype, shape, label, and their signatures. */
#ifndef ALLHANDS_PLAN_H
#define ALLHANDS_PLAN_H

#include "python/comm_object_state.h"

/* Write the dtype and the shape of an array into a plan. */
void plan_type(Plan *plan, PyArrayObject *array);
/* Let the shape of a plan be that of a block: dimension 0 is cut for so many ranks, if it can. */
void plan_block(Plan *plan, int size);
/* Write a shape that is a tuple into a plan, which has its count; None: as plan_no_shape. false: an
 * exception is set. */
bool plan_shape(Plan *plan, PyObject *shape);
/* Let ranks differ in the shapes of what they bring. */
void plan_no_shape(Plan *plan);
/* Write the signature of a label, or of None, into a plan; false: it is no text. */
bool plan_label(Plan *plan, PyObject *label);
/* The kernels' number of a reduce operation, by its place in the communicator's `ops`; -1: none. */
int comm_op_index(const CommObject *self, PyObject *op);
/* Likewise by its place in any such tuple. */
int find_op(PyObject *ops, PyObject *op);

#endif
