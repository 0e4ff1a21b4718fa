/* The deadlines of the blocks around a call; see deadlines.py. */
#ifndef ALLHANDS_DEADLINE_H
#define ALLHANDS_DEADLINE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* Find the variable; -1 with an exception. */
int find_deadlines(void);
/* The least of a timeout and of what the blocks around leave, in nanoseconds; 0 or less: nothing.
 */
int64_t limit_by_deadlines(int64_t timeout);

/* The nanoseconds that a call may take, `timeout` being seconds or None for the `usual` ones; 0:
 * that is not plain, or nothing is left. Never with an exception: the checked way says what is
 * wrong. */
int64_t read_plain_limit(int64_t usual, PyObject *timeout);

/* Read seconds that a call may take; 0, or -1 with an exception. */
int read_timeout(PyObject *seconds, int64_t *nanoseconds);

#endif
