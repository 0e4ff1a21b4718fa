/* Arrays over tensors of another library, by the function table of DLPack 1: it costs a tenth of
 * asking the tensor from Python. */
#ifndef ALLHANDS_DLPACK_H
#define ALLHANDS_DLPACK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* view_dlpack(exchange, tensor): a writable array over the tensor, which it keeps alive, if that is
 * one that plain_array takes; None: it is another, or there is no such table. */
PyObject *view_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
