/* The methods named after collectives: on the caller's thread, of plain arguments only. */
#ifndef ALLHANDS_INLINE_CALLS_H
#define ALLHANDS_INLINE_CALLS_H

#include "python/kind_calls.h"

typedef PyObject *CommMethod(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
#define DECLARE_METHOD(name) CommMethod comm_##name;
INLINE_METHODS(DECLARE_METHOD)
#undef DECLARE_METHOD

#endif
