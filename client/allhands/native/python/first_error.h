/* The first of several exceptions: what ends a call, while what is due must be done all the same.
 */
#ifndef ALLHANDS_FIRST_ERROR_H
#define ALLHANDS_FIRST_ERROR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

enum { FIRST_ERROR_ATTEMPTS = 3 }; /* of what the handler of a signal may break into */

typedef struct {
    PyObject *type, *value, *trace;
} FirstError;

/* Set the exception aside, if one is set. */
static inline FirstError first_error_keep(void) {
    FirstError kept;
    PyErr_Fetch(&kept.type, &kept.value, &kept.trace);
    return kept;
}

/* Set aside another one, if one is set; it goes where there was one before. */
static inline void first_error_add(FirstError *kept) {
    if (kept->type == NULL)
        PyErr_Fetch(&kept->type, &kept->value, &kept->trace);
    else
        PyErr_Clear();
}

/* Set the first one again; -1: there is one. */
static inline int first_error_raise(const FirstError *kept) {
    int failed = kept->type == NULL ? 0 : -1;
    PyErr_Restore(kept->type, kept->value, kept->trace);
    return failed;
}

#endif
