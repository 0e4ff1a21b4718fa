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

#include "python/first_error.h"
#include "python/link_object.h"

/* How long a small call keeps the loop from its thread: as engine/inline_limits.py. */
#define GATE_HOLD_NS INT64_C(2000000)
/* How long it looks again and again before it sleeps: about what waking up takes. */
#define GATE_SPIN_NS INT64_C(100000)

/* How long the longest does, while its rounds end one after the other. */
#define GATE_LONGEST_NS INT64_C(100000000)
/* How often such a call looks whether they do, and whether the loop is wanted. */
#define GATE_TURN_NS INT64_C(5000000)

/* How long one of so many bytes does. */
static inline int64_t gate_hold(size_t nbytes) {
    enum { BYTE_NS = 2 };
    return GATE_HOLD_NS + (int64_t)nbytes * BYTE_NS;
}

/* How long who only begins something, perhaps an event loop, is held for a peer that is about to
 * come. Who has handed it over comes later to the next than that, and would be late for ever: so
 * all ranks hold for the same few numbers as long as a small call takes that was handed over, after
 * which they come together. */
static inline int64_t gate_brief_hold(size_t nbytes, uint64_t number) {
    enum { BYTE_NS = 1, USUAL_NS = 50000, MEETING_NS = 1000000, MEETINGS = 2, PERIOD = 16 };
    return (int64_t)nbytes * BYTE_NS + (number % PERIOD < MEETINGS ? MEETING_NS : USUAL_NS);
}

/* Signals' handlers are kept from running by a thread in the gate, from when Python is to run
 * there: that they cannot run before, nor while nothing but C does, makes it free for most calls.
 */
typedef struct {
    unsigned long thread;
    PyObject *delayed; /* NULL: no Python has run yet */
    FirstError first;  /* of handlers that ran as they were about to be delayed */
} GateDelay;

typedef struct {
    PyObject *thread; /* LoopThread */
    PyObject *owner;  /* has a method `prepare`: whether calls may go this way */
    PyObject *borrow, *unborrow, *hold, *unhold;
    long turns; /* those of the thread when that was asked; -1: ask */
    unsigned generation;
    GateDelay *delay; /* NULL: handlers may run */
} LinkGate;

/* Whether this thread is in a gate: a handler of a signal that waits for the loop waits for ever.
 */
PyObject *is_in_gate(PyObject *unused, PyObject *nothing);

/* The method of a lock that is an attribute of an object; NULL with an exception. */
PyObject *gate_find(PyObject *object, const char *lock, const char *method);

/* Take references to the thread's locks; -1 with an exception. */
int gate_init(LinkGate *gate, PyObject *thread, PyObject *owner);
void gate_clear(LinkGate *gate);
int gate_visit(LinkGate *gate, visitproc visit, void *arg);

enum { GATE_BUSY = 2 };

/* 1: entered; 0: calls may not go this way; GATE_BUSY: the loop is not free; -1: with an exception.
 */
int gate_enter(LinkGate *gate);

/* Whether nothing has been given to the loop's thread while its loop is borrowed; -1 with an
 * exception. */
int gate_is_undisturbed(LinkGate *gate);

/* Call a method of the owner, with a rank, until it has done what is due: the handler of a signal
 * may raise before it begins. The first exception stays, one that was set before too: -1. */
int gate_call_owner(LinkGate *gate, const char *method, long rank, LinkStateObject *link,
                    bool (*is_due)(const LinkStateObject *));

/* Have the loop send the rest of a frame, before all others, by the owner's `send_rest`, as
 * gate_call_owner; takes the reference. Without the rest the connection is shut down: what followed
 * would be read as its end. */
int gate_send_rest(LinkGate *gate, long rank, LinkStateObject *link, PyObject *rest);

/* Give credit back for what a call has taken in of a link, and let the loop know of what was read
 * ahead, where it has to: by the owner's `take_back`, as gate_call_owner. */
int gate_settle(LinkGate *gate, long rank, LinkStateObject *link);

/* Have the handlers of signals run at the end of the delay only, in this thread. */
void gate_begin_delay(LinkGate *gate, GateDelay *delay);

/* Run the handlers of signals that came meanwhile; -1 with an exception, the first that was set. */
int gate_end_delay(LinkGate *gate);

/* To be called before Python runs in the gate, with an exception set or not: keeps handlers from
 * running in a delay of this thread. */
void gate_before_python(LinkGate *gate);

/* Keep signals' handlers from running, if `is_needed`, until gate_allow_signals: an exception in
 * the middle of a read loses what it has read of an encrypted link. In a delay it is up to that.
 * NULL with an exception. */
PyObject *gate_delay_signals(LinkGate *gate, bool is_needed);

/* Run the handlers of signals that came meanwhile; -1 with an exception, the first that was set. */
int gate_allow_signals(PyObject *delayed);

/* `wakes`: the loop has something to do. -1 with an exception, the first that was set: the handler
 * of a signal may run meanwhile. */
int gate_leave(LinkGate *gate, bool wakes);

#endif
