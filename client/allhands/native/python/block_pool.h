/* Blocks of memory that are used again: pages fresh from the kernel cost several times what it
 * takes to fill them. For arrays of what comes in exchanges, which callers mostly let go before the
 * next. Only with the GIL. */
#ifndef ALLHANDS_BLOCK_POOL_H
#define ALLHANDS_BLOCK_POOL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define POOL_SMALLEST                                                                              \
    (1 << 14) /* bytes of the smallest block: less is as well allocated by NumPy */

/* A new array of bytes, of any content; NULL with an exception. */
PyObject *pool_new_array(size_t nbytes);

/* allocate_bytes(nbytes): the same for Python. */
PyObject *allocate_bytes(PyObject *module, PyObject *nbytes);

#endif
