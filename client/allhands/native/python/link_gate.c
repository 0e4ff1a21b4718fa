#define _GNU_SOURCE
#include "python/link_gate.h"

#include <sys/socket.h>
#include <time.h>

#include "links/credit.h"
#include "python/attribute_names.h"
#include "python/p2p_object_state.h"

/* Gates that this thread is in. */
static _Thread_local int entered;

PyObject *is_in_gate(PyObject *unused, PyObject *nothing) {
    (void)unused;
    (void)nothing;
    return PyBool_FromLong(entered > 0);
}

PyObject *gate_find(PyObject *object, const char *lock, const char *method) {
    PyObject *found = PyObject_GetAttrString(object, lock);
    PyObject *bound = found == NULL ? NULL : PyObject_GetAttrString(found, method);
    Py_XDECREF(found);
    return bound;
}

int gate_init(LinkGate *gate, PyObject *thread, PyObject *owner) {
    gate->thread = Py_NewRef(thread);
    gate->owner = Py_NewRef(owner);
    gate->turns = -1;
    gate->generation = p2p_generation;
    gate->borrow = gate_find(thread, "borrow_lock", "acquire");
    gate->unborrow = gate_find(thread, "borrow_lock", "release");
    gate->hold = gate_find(thread, "loop_lock", "acquire");
    gate->unhold = gate_find(thread, "loop_lock", "release");
    return PyErr_Occurred() ? -1 : 0;
}

void gate_clear(LinkGate *gate) {
    Py_CLEAR(gate->thread);
    Py_CLEAR(gate->owner);
    Py_CLEAR(gate->borrow);
    Py_CLEAR(gate->unborrow);
    Py_CLEAR(gate->hold);
    Py_CLEAR(gate->unhold);
}

int gate_visit(LinkGate *gate, visitproc visit, void *arg) {
    Py_VISIT(gate->thread);
    Py_VISIT(gate->owner);
    return 0;
}

/* 1: acquired; 0: not; -1 with an exception. */
static int try_acquire(PyObject *acquire) {
    PyObject *given = PyObject_CallOneArg(acquire, Py_False);
    int acquired = given == NULL ? -1 : given == Py_True;
    Py_XDECREF(given);
    return acquired;
}

static void release(PyObject *method) {
    PyObject *given = PyObject_CallNoArgs(method);
    if (given == NULL) PyErr_WriteUnraisable(method);
    Py_XDECREF(given);
}

/* Whether a flag of the thread is set; -1 with an exception. */
static int is_set(LinkGate *gate, PyObject *name) {
    PyObject *flag = PyObject_GetAttr(gate->thread, name);
    int set = flag == NULL ? -1 : flag == Py_True;
    Py_XDECREF(flag);
    return set;
}

/* Whether calls may go this way, with the loop borrowed; -1 with an exception. */
static int is_open(LinkGate *gate) {
    int stopping = is_set(gate, attribute_names.is_stopping);
    if (stopping != 0) return stopping < 0 ? -1 : 0;
    PyObject *count = PyObject_GetAttr(gate->thread, attribute_names.turns);
    if (count == NULL) return -1;
    long turns = PyLong_AsLong(count);
    Py_DECREF(count);
    if (turns == gate->turns) return 1;
    gate->turns = -1;
    gate_before_python(gate);
    PyObject *given = PyObject_CallMethod(gate->owner, "prepare", NULL);
    int open = given == NULL ? -1 : PyObject_IsTrue(given);
    Py_XDECREF(given);
    if (open > 0) gate->turns = turns;
    return open;
}

int gate_enter(LinkGate *gate) {
    if (gate->generation != p2p_generation) return 0;
    int due = is_set(gate, attribute_names.is_thread_due);
    if (due != 0) return due < 0 ? -1 : GATE_BUSY;
    int borrowed = try_acquire(gate->borrow);
    if (borrowed <= 0) return borrowed < 0 ? -1 : GATE_BUSY;
    int held = try_acquire(gate->hold);
    entered++;
    int open = held > 0 ? is_open(gate) : held < 0 ? -1 : GATE_BUSY;
    if (open == 1) return 1;
    entered--;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (held > 0) release(gate->unhold);
    release(gate->unborrow);
    PyErr_Restore(type, value, trace);
    return open;
}

int gate_is_undisturbed(LinkGate *gate) {
    int rung = is_set(gate, attribute_names.is_rung);
    return rung < 0 ? -1 : !rung;
}

int gate_call_owner(LinkGate *gate, const char *method, long rank, LinkStateObject *link,
                    bool (*is_due)(const LinkStateObject *)) {
    if (is_due(link)) gate_before_python(gate);
    FirstError first = first_error_keep();
    for (int i = 0; i < FIRST_ERROR_ATTEMPTS && is_due(link); i++) {
        Py_XDECREF(PyObject_CallMethod(gate->owner, method, "l", rank));
        first_error_add(&first);
    }
    return first_error_raise(&first);
}

/* Whether the loop has to know of what was read ahead or taken in, or that nothing is any more. */
static bool is_unsettled(const LinkStateObject *state) {
    const ah_link *link = &state->link;
    bool is_for_loop = ah_link_pending(link) > 0 || link->has_stopped;
    return link->consumed >= AH_CREDIT_STEP || (is_for_loop && !link->is_noted);
}

static bool has_rest(const LinkStateObject *state) { return state->rest != NULL; }

int gate_send_rest(LinkGate *gate, long rank, LinkStateObject *link, PyObject *rest) {
    int failed = -1;
    if (rest != NULL) {
        link->rest = rest;
        link->link.has_rest = true;
        failed = gate_call_owner(gate, "send_rest", rank, link, has_rest);
    }
    if (rest == NULL || has_rest(link)) {
        shutdown(link->link.out, SHUT_RDWR);
        Py_CLEAR(link->rest);
    }
    link->link.is_lent = false;
    return failed;
}

/* Whether a link is between two frames, as it was found, and nothing of the loop has run since. */
static bool is_as_found(const LinkGate *gate, const ah_link *link) {
    if (!link->is_lent || link->has_rest || link->has_unsent || PyErr_Occurred()) return false;
    PyObject *turns = PyObject_GetAttr(gate->thread, attribute_names.turns);
    bool is_same = turns != NULL && PyLong_AsLong(turns) == gate->turns;
    Py_XDECREF(turns);
    if (PyErr_Occurred()) PyErr_Clear(); /* the loop gives it back */
    return is_same;
}

static int return_credit(LinkGate *gate, long rank, LinkStateObject *link) {
    ah_credit_return(&link->link);
    if (link->link.credit_left == 0 && !link->link.has_unsent) return 0;
    return gate_send_rest(gate, rank, link, link_take_credit_rest(&link->link));
}

int gate_settle(LinkGate *gate, long rank, LinkStateObject *link) {
    int failed = 0;
    if (link->link.consumed >= AH_CREDIT_STEP && is_as_found(gate, &link->link))
        failed = return_credit(gate, rank, link);
    return gate_call_owner(gate, "take_back", rank, link, is_unsettled) < 0 ? -1 : failed;
}

static PyObject *delay_signals(LinkGate *gate) {
    PyObject *delayed = PyObject_CallMethod(gate->thread, "delay_signals", NULL);
    PyObject *begun = delayed == NULL ? NULL : PyObject_CallMethod(delayed, "__enter__", NULL);
    if (begun == NULL) Py_CLEAR(delayed);
    Py_XDECREF(begun);
    return delayed;
}

static bool is_delaying(const LinkGate *gate) {
    return gate->delay != NULL && gate->delay->thread == PyThread_get_thread_ident();
}

PyObject *gate_delay_signals(LinkGate *gate, bool is_needed) {
    if (is_needed && !is_delaying(gate)) return delay_signals(gate);
    if (is_needed) gate_before_python(gate);
    return Py_NewRef(Py_None);
}

void gate_before_python(LinkGate *gate) {
    if (!is_delaying(gate) || gate->delay->delayed != NULL) return;
    GateDelay *delay = gate->delay;
    FirstError current = first_error_keep();
    for (int i = 0; i < FIRST_ERROR_ATTEMPTS && delay->delayed == NULL; i++) {
        delay->delayed = delay_signals(gate);
        first_error_add(&delay->first);
    }
    first_error_raise(&current);
}

void gate_begin_delay(LinkGate *gate, GateDelay *delay) {
    *delay = (GateDelay){.thread = PyThread_get_thread_ident()};
    gate->delay = delay;
}

int gate_end_delay(LinkGate *gate) {
    GateDelay *delay = gate->delay;
    gate->delay = NULL;
    FirstError first = first_error_keep();
    if (first.type == NULL) {
        first = delay->first;
    } else {
        first_error_raise(&delay->first);
        PyErr_Clear();
    }
    int failed = first_error_raise(&first);
    return delay->delayed == NULL ? failed : gate_allow_signals(delay->delayed);
}

int gate_allow_signals(PyObject *delayed) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (delayed != Py_None) {
        PyObject *done = PyObject_CallMethod(delayed, "__exit__", "OOO", Py_None, Py_None, Py_None);
        if (done == NULL && type == NULL)
            PyErr_Fetch(&type, &value, &trace);
        else if (done == NULL)
            PyErr_WriteUnraisable(delayed);
        Py_XDECREF(done);
    }
    Py_DECREF(delayed);
    int failed = type == NULL ? 0 : -1;
    PyErr_Restore(type, value, trace);
    return failed;
}

int gate_leave(LinkGate *gate, bool wakes) {
    FirstError first = first_error_keep();
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    PyObject *seconds = PyFloat_FromDouble((double)at.tv_sec + (double)at.tv_nsec / 1e9);
    if (seconds == NULL || PyObject_SetAttr(gate->thread, attribute_names.borrowed_at, seconds) < 0)
        PyErr_WriteUnraisable(gate->thread);
    Py_XDECREF(seconds);
    release(gate->unhold);
    release(gate->unborrow);
    entered--;
    if (wakes) gate_before_python(gate);
    for (int i = 0; i < FIRST_ERROR_ATTEMPTS && wakes; i++) {
        PyObject *given = PyObject_CallMethod(gate->thread, "wake", NULL);
        wakes = given == NULL;
        Py_XDECREF(given);
        first_error_add(&first);
    }
    return first_error_raise(&first);
}
