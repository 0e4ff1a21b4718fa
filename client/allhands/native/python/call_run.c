#define _GNU_SOURCE
#include "python/call_run.h"

#include "comm/host.h"
#include "kernels/digest.h"
#include "python/async_queue.h"
#include "python/call_records.h"
#include "python/call_site.h"
#include "python/clock.h"
#include "python/failures.h"
#include "python/kind_calls.h"
#include "python/signature.h"

#define TICK_NS (50 * 1000000LL) /* how late Ctrl-C may be seen by a call that is blocked */
#define SLOW_NS NANOSECONDS      /* being blocked so long is worth the coordinator's attention */

static void pause_python(void *owner) {
    RunningCall *running = owner;
    running->saved = PyEval_SaveThread();
}

static void resume_python(void *owner) {
    RunningCall *running = owner;
    CommObject *self = running->self;
    PyEval_RestoreThread(running->saved);
    running->saved = NULL;
    self->waits[running->call.sequence % WAITS] = ah_now() - self->since_ns;
}

static bool tick_python(void *owner, uint64_t waiting) {
    RunningCall *running = owner;
    CommObject *self = running->self;
    PyEval_RestoreThread(running->saved);
    self->waiting = waiting;
    bool interrupted = PyErr_CheckSignals() < 0;
    if (!interrupted && ah_now() >= running->slow_at) {
        running->was_slow = true;
        running->slow_at += SLOW_NS;
        PyObject *done =
            PyObject_CallFunction(self->on_slow, "KsKd", (unsigned long long)running->call.sequence,
                                  plan_name(&self->plan), (unsigned long long)waiting,
                                  (double)running->call.deadline / NANOSECONDS);
        interrupted = done == NULL;
        Py_XDECREF(done);
    }
    if (interrupted && running->is_confirmation) running->call.is_left = true;
    running->saved = PyEval_SaveThread();
    return interrupted;
}

uint64_t call_signature(const Plan *plan) {
#ifdef AH_UNSIGNED
    return (void)plan, 0;
#endif
    uint64_t names =
        (uint64_t)plan->kind | (uint64_t)(plan->op + 1) << 8 | (uint64_t)(plan->root + 1) << 16;
    return mix(mix(names ^ plan->typesig << 24) + plan->count + plan->shapesig + plan->labelsig);
}

/* The digest of what the call that runs has given this rank. */
static uint64_t digest_result(void *owner) {
    const Plan *plan = &((RunningCall *)owner)->self->plan;
    int arrays = ah_kind_has_blocks(plan->kind) ? ((RunningCall *)owner)->self->size : 1;
    uint64_t digest = 0;
    for (int at = 0; at < arrays; at++)
        digest = ah_digest(digest, plan->out[at], plan->count * plan->itemsize);
    return digest;
}

/* What this rank sends to others in an exchange. */
static size_t sent_bytes(const CommObject *self, const ah_messages *messages) {
    size_t nbytes = messages->is_same ? messages->to[0].nbytes : 0;
    for (int rank = 0; rank < self->size && !messages->is_same; rank++)
        nbytes += rank == self->rank ? 0 : messages->to[rank].nbytes;
    return nbytes;
}

size_t call_bytes(const CommObject *self, const Plan *plan) {
    size_t nbytes = plan->count * plan->itemsize;
    if (ah_kind_has_splits(plan->kind))
        for (int rank = 0; rank < self->size; rank++) nbytes += plan->send[rank];
    if (plan->kind == AH_KIND_EXCHANGE) nbytes = sent_bytes(self, &plan->messages);
    return nbytes;
}

static SegmentObject *own_segment(const CommObject *self) {
    return (SegmentObject *)PyTuple_GET_ITEM(self->segments, self->rank);
}

/* Learn from a call whether pages of the own heap have become ordinary memory, through it or
 * meanwhile through another communicator's call: then what peers wrote to this call's array may be
 * lost. */
static ah_status note_unshared(CommObject *self, RunningCall *running, ah_status status) {
    SegmentObject *own = own_segment(self);
    ah_call *call = &running->call;
    if (call->unshared != NULL) {
        if (!segment_unshare(own, call->unshared, call->unshared_bytes))
            Py_FatalError("allhands: out of memory where a peer could write to wrong memory");
        if (self->unshared_seen == own->unshared_count - 1) self->unshared_seen++;
    } else if (status == AH_OK && self->plan.kind == AH_KIND_ALL_REDUCE &&
               segment_is_unshared(own, self->unshared_seen, self->plan.out[0],
                                   call_bytes(self, &self->plan)))
        return AH_INTERRUPTED;
    return status;
}

static inline void set_reference(PyObject **place, PyObject *value) {
    if (*place != value) Py_XSETREF(*place, Py_XNewRef(value));
}

static inline void record_set_shape(CommObject *self, const Plan *plan, Record *record) {
    Shape *place = &self->shapes[record - self->records];
    PyObject *before = record->ndim == SHAPE_LONG ? place->tuple : NULL;
    if (plan->shape != NULL) {
        record->ndim = SHAPE_LONG;
        place->tuple = Py_NewRef(plan->shape);
    } else {
        record->ndim = (uint8_t)plan->ndim;
        for (int at = 0; plan->ndim > 1 && at < plan->ndim && at < SHAPE_DIMS; at++)
            place->dims[at] = plan->dims[at];
    }
    Py_XDECREF(before);
}

/* Write down where the call was made. */
static inline void record_site(CommObject *self, Record *record) {
    if (self->from_queue) {
        record->outcome_bits |= RECORD_QUEUED;
        Py_CLEAR(record->code);
    } else if (self->running_async != NULL)
        set_reference(&record->code, async_call_site(self->running_async, &record->instruction));
    else {
        PyObject *code = call_site_here(&record->instruction);
        Py_XSETREF(record->code, code);
    }
}

void call_record(CommObject *self, const Plan *plan, uint64_t sequence, int64_t now,
                 PyObject *label) {
    Record *record = record_of(self, sequence);
    record->sequence = sequence;
    record->kind = (uint8_t)plan->kind;
    record->op = (int8_t)plan->op;
    record->root = (int8_t)plan->root;
    record->outcome_bits = OUTCOME_RUNNING;
    record->amount =
        plan->call || ah_kind_has_splits(plan->kind) ? call_bytes(self, plan) : plan->count;
    set_reference(&record->dtype, plan->call ? plan->call : plan->dtype);
    set_reference(&record->label, label);
    record_set_shape(self, plan, record);
    if (!self->records_all) return;
    record->started = now;
    record->finished = 0;
    record_site(self, record);
}

/* Write down that a call begins that may have been written down when it took its number. */
static inline void record_begin(CommObject *self, const Plan *plan, uint64_t sequence, int64_t now,
                                PyObject *label) {
    Record *record = record_of(self, sequence);
    if (self->running_async == NULL || record->sequence != sequence) {
        call_record(self, plan, sequence, now, label);
        return;
    }
    record->outcome_bits = OUTCOME_RUNNING;
    record->started = now;
}

/* Write down how it ended, and whether it is known why. */
static inline void record_end(CommObject *self, uint64_t sequence, ah_status status) {
    static const uint8_t outcomes[] = {
        [AH_OK] = OUTCOME_OK,
        [AH_TIMEOUT] = OUTCOME_TIMEOUT,
        [AH_INTERRUPTED] = OUTCOME_CANCELLED,
        [AH_MISMATCH] = OUTCOME_MISMATCH,
        [AH_ABANDONED] = OUTCOME_TIMEOUT,
        [AH_DIFFERENT] = OUTCOME_FAILED,
    };
    Record *record = record_of(self, sequence);
    record->outcome_bits |= (uint8_t)(self->variant << 4);
    if (!(record->outcome_bits & 15)) record->outcome_bits |= outcomes[status];
    if (!self->records_all) return;
    record->finished = clock_now();
    if (status == AH_OK)
        call_totals_add(&self->totals, record_bytes(record), record->finished - record->started);
}

void call_begin(CommObject *self, RunningCall *running, uint64_t sequence, int64_t timeout,
                int64_t deadline, PyObject *label) {
    Plan *plan = &self->plan;
    int64_t now = self->records_all ? clock_now() : ah_now();
    int64_t ask = timeout / 2 < SLOW_NS ? timeout / 2 : SLOW_NS;
    *running = (RunningCall){.self = self, .timeout = timeout, .slow_at = now + ask};
    running->call = (ah_call){
        .sequence = sequence,
        .signature = call_signature(plan),
        .deadline = deadline ? deadline : now + timeout,
        .nbytes = call_bytes(self, plan),
        .pause = pause_python,
        .resume = resume_python,
        .tick = tick_python,
        .tick_ns = timeout / 4 < TICK_NS ? timeout / 4 : TICK_NS,
        .digest = self->verifies && ah_kind_has_same_result(plan->kind) ? digest_result : NULL,
        .owner = running,
    };
    self->begun = sequence;
    self->current = plan_name(plan);
    self->since_ns = now;
    for (const SegmentObject *own = own_segment(self); self->unshared_seen < own->unshared_count;
         self->unshared_seen++) {
        char *from = own->unshared[self->unshared_seen].from;
        ah_comm_unshare(self->comm, from, (size_t)(own->unshared[self->unshared_seen].to - from));
    }
    /* Others' memory can be looked at once they have lanes, which they have when they are here. */
    if (self->attach_tries > 0 && self->completed > 0 && running->call.nbytes >= self->attach_min)
        self->attach_tries = ah_comm_probe_attach(self->comm) ? 0 : self->attach_tries - 1;
    self->waiting = 0;
    self->waits[sequence % WAITS] = 0;
    record_begin(self, plan, sequence, now, label);
    if (self->records_all) start_times_note(&self->start_times, sequence, now);
}

void call_raise(CommObject *self, const RunningCall *running, ah_status status, PyObject *label) {
    /* The description is taken before others may have the turn, and with it the plan. */
    static const char *const names[] = {"ok",       "timeout",   "interrupted",
                                        "mismatch", "abandoned", "different"};
    const Plan *plan = &self->plan;
    const ah_call *call = &running->call;
    PyObject *splits = call_splits(self, plan->kind);
    PyObject *shape = splits ? record_shape(self, record_of(self, call->sequence)) : NULL;
    if (shape == NULL) {
        Py_XDECREF(splits);
        return;
    }
    PyObject *described = plan->call ? plan->call : plan->dtype;
    bool touched = call->touches_output && status != AH_MISMATCH;
    /* clang-format off: a field a line */
    PyObject *fields = Py_BuildValue(
        "{s:s, s:K, s:s, s:O, s:n, s:i, s:i, s:N, s:N, s:K, s:K, s:d, s:O, s:O}", "status",
        names[status], "sequence", (unsigned long long)call->sequence, "operation", plan_name(plan),
        "dtype", described ? described : Py_None, "count", (Py_ssize_t)plan->count, "op", plan->op,
        "root", plan->root, "splits", splits, "shape", shape, "waiting",
        (unsigned long long)call->waiting, "offenders", (unsigned long long)call->offenders,
        "timeout", (double)running->timeout / NANOSECONDS, "label", label ? label : Py_None,
        "touches_output", touched ? Py_True : Py_False);
    /* clang-format on */
    raise_failure(self->on_failure, "CallFailure", fields);
}

/* Tell why the others find the call given up: an exception of a signal handler broke into it. */
static void report_interruption(CommObject *self, unsigned long long sequence) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = PyObject_CallFunction(self->on_slow, "Ksid", sequence,
                                           ((PyTypeObject *)type)->tp_name, 0, -1.0);
    if (done == NULL) PyErr_Clear(); /* what broke into the call matters more */
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
}

int call_end(CommObject *self, RunningCall *running, ah_status status, PyObject *label) {
    Plan *plan = &self->plan;
    unsigned long long sequence = running->call.sequence;
    self->variant = running->call.variant;
    if (running->call.is_left) { /* not its end */
        self->current = "";
        return -1;
    }
    status = note_unshared(self, running, status);
    if (status == AH_OK) {
        self->completed = sequence;
        if (running->was_slow) {
            PyObject *done =
                PyObject_CallFunction(self->on_slow, "Ksid", sequence, plan_name(plan), 0, 0.0);
            Py_XDECREF(done);
        }
    } else if (PyErr_Occurred())
        report_interruption(self, sequence);
    else
        call_raise(self, running, status, label);
    record_end(self, sequence, status);
    self->ended = sequence;
    self->current = "";
    if (status != AH_OK) self->since_ns = ah_now();
    return PyErr_Occurred() ? -1 : 0;
}

int call_run(CommObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
             PyObject *label) {
    RunningCall running;
    call_begin(self, &running, sequence, timeout, deadline, label);
    return call_end(self, &running, run_plan(self, &running.call), label);
}

int call_run_composite(CommObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
                       PyObject *label) {
    bool now = sequence == 0;
    self->from_queue = !now;
    self->inline_thread = now ? PyThread_get_thread_ident() : 0;
    int failed = call_run(self, now ? ++self->last_number : sequence, timeout, deadline,
                          label == Py_None ? NULL : label);
    self->from_queue = false;
    self->inline_thread = 0;
    self->plan.call = NULL;
    return failed;
}
