/* Buffer specifications of programs of MPI: a buffer, or a list of a buffer, a count and a
 * datatype.
 *
 * Only those that need no second look are read here; `allhands.mpi.buffers.messages` reads all.
 */
#ifndef ALLHANDS_BUFFER_SPEC_H
#define ALLHANDS_BUFFER_SPEC_H

#include "python/arrays.h"

/* A new reference to a contiguous array of numbers, of one dimension, over the elements that a
 * specification names; as_bytes: of bytes. Its count is that of one of so many equal blocks. NULL
 * without an exception: it is for the careful way. */
PyArrayObject *spec_array(PyObject *spec, bool written, bool as_bytes, npy_intp blocks);

/* view_spec(spec, written, as_bytes, blocks): that array, or None. */
PyObject *view_spec(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* copy_spec(spec, array): copy the elements of a specification into such an array; False: they are
 * others, or overlap, or are for the careful way, and nothing has happened. */
PyObject *copy_spec(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

int find_spec_names(void);

#endif
