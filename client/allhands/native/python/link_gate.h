/* The way of a caller's thread to the links, past the interpreter: it borrows the event loop as
 * runtime/loop_thread.py has it, and nothing of the loop runs meanwhile.
 *
 * As long as the loop has not run since, all is as it was found by the owner's `prepare`.
 */
#ifndef ALLHANDS_LINK_GATE_H
#define ALLHANDS_LINK_GATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

typedef struct {
    PyObject *thread; /* LoopThread */
    PyObject *owner;  /* has a method `prepare`: whether calls may go this way */
    PyObject *borrow, *unborrow, *hold, *unhold;
    long turns; /* those of the thread when that was asked; -1: ask */
    unsigned generation;
} LinkGate;

/* Take references to the thread's locks; -1 with an exception. */
int gate_init(LinkGate *gate, PyObject *thread, PyObject *owner);
void gate_clear(LinkGate *gate);
int gate_visit(LinkGate *gate, visitproc visit, void *arg);

enum { GATE_BUSY = 2 };

/* 1: entered; 0: calls may not go this way; GATE_BUSY: the loop is not free; -1: with an exception.
 */
int gate_enter(LinkGate *gate);

/* `wakes`: the loop has something to do. Exceptions that are set stay so. */
void gate_leave(LinkGate *gate, bool wakes);

#endif
