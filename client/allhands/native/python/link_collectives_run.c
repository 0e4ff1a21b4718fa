#define _GNU_SOURCE
#include "python/attribute_names.h"
#include "python/deadline.h"
#include "python/first_error.h"
#include "python/kind_names.h"
#include "python/link_collectives_state.h"
#include "python/link_hold.h"

#define HISTORY 64 /* calls that can still be named to peers: CALL_HISTORY in Python */
#define NANOSECONDS 1e9

/* ---------------------------------------------------------------- before the call */

/* The nanoseconds that a call may take; 0: no plain timeout. */
static int64_t read_limit(LinkCollectivesObject *self, PyObject *timeout) {
    PyObject *given = timeout == Py_None ? PyObject_GetAttr(self->order, attribute_names.timeout)
                                         : Py_NewRef(timeout);
    double seconds = given == NULL ? -1 : PyFloat_AsDouble(given);
    Py_XDECREF(given);
    if (PyErr_Occurred()) PyErr_Clear(); /* the checked way says what is wrong with it */
    if (!(seconds > 0) || !(seconds < 1e9)) return 0;
    return limit_by_deadlines((int64_t)(seconds * NANOSECONDS));
}

/* Enter the gate, whose thread may have the loop just now; as gate_enter, but for GATE_BUSY. */
static int enter(LinkCollectivesObject *self) {
    if (self->sequence >= self->prepared) self->gate.turns = -1;
    int entered = gate_enter(&self->gate);
    if (entered != GATE_BUSY) return entered;
    gate_before_python(&self->gate);
    PyObject *taken = PyObject_CallMethod(self->gate.owner, "take_loop", NULL);
    int free = taken == NULL ? -1 : taken == Py_True;
    Py_XDECREF(taken);
    if (free <= 0) return free;
    entered = gate_enter(&self->gate);
    return entered == GATE_BUSY ? 0 : entered;
}

static PyObject *make_tuple(PyArrayObject *const *arrays, int count) {
    PyObject *made = PyTuple_New(count);
    for (int i = 0; i < count && made != NULL; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef((PyObject *)arrays[i]));
    return made;
}

/* The list of a call, of all arrays but one, or None; NULL with an exception. */
static PyObject *make_list(const LinkArguments *given) {
    int count = given->array_count - 1;
    if (count == 0) return Py_NewRef(Py_None);
    return make_tuple(given->arrays + (link_single(given) == 0), count);
}

/* The arrays and the list of a call, in the order of its arguments: how many; -1 with an exception.
 */
static int list_arguments(const LinkArguments *given, PyObject *items[]) {
    if (!link_has_list(given)) {
        for (int i = 0; i < given->array_count; i++)
            items[i] = Py_NewRef((PyObject *)given->arrays[i]);
        return given->array_count;
    }
    if (given->kind == AH_KIND_ALL_TO_ALL) {
        int half = given->array_count / 2;
        items[0] = make_tuple(given->arrays, half);
        items[1] = items[0] == NULL ? NULL : make_tuple(given->arrays + half, half);
        if (items[1] != NULL) return 2;
        Py_XDECREF(items[0]);
        return -1;
    }
    bool is_first = given->kind == AH_KIND_ALL_GATHER;
    PyObject *list = make_list(given);
    if (list == NULL) return -1;
    items[!is_first] = list;
    items[is_first] = Py_NewRef((PyObject *)given->arrays[link_single(given)]);
    return 2;
}

static PyObject *as_tuple(const LinkArguments *given, PyObject *const *rest) {
    PyObject *items[4];
    int count = list_arguments(given, items);
    if (count < 0) return NULL;
    for (int i = 0; i < (given->root >= 0) + (given->op != NULL); i++)
        items[count++] = Py_NewRef(rest[i]);
    PyObject *arguments = PyTuple_New(count);
    for (int i = 0; i < count; i++) {
        if (arguments == NULL)
            Py_DECREF(items[i]);
        else
            PyTuple_SET_ITEM(arguments, i, items[i]);
    }
    return arguments;
}

/* The plan of the call, made now if there is none. NULL: it does not go this way, or with an
 * exception. */
static LinkPlan *find_plan(LinkCollectivesObject *self, const LinkCallRequest *request) {
    const LinkArguments *given = &request->arguments;
    LinkPlan *plan = plans_find(&self->plans, given);
    if (plan == NULL) {
        PyObject *arguments = as_tuple(given, request->rest);
        PyObject *row = NULL;
        gate_before_python(&self->gate);
        if (arguments != NULL)
            row = PyObject_CallMethod(self->gate.owner, "compile", "sN", kind_names[given->kind],
                                      arguments);
        if (row == NULL) return NULL;
        if (row != Py_False) plan = plans_add(&self->plans, given, row);
        Py_DECREF(row);
    }
    return plan == NULL || plan->own.call == NULL ? NULL : plan;
}

/* A call as it travels. */
typedef struct {
    PyObject *signature, *number; /* CallSignature and its 64 bits; the plan's */
    uint64_t bits;
} SignedCall;

static bool has_label(const LinkCallRequest *request) {
    return request->label != Py_None && PyUnicode_GET_LENGTH(request->label) > 0;
}

/* Find how the first step of a composite call travels, as below. */
static int sign_step(LinkCollectivesObject *self, const LinkCallRequest *request,
                     SignedCall *call) {
    const LinkStep *step = &request->step;
    *call = (SignedCall){step->signature, step->number, PyLong_AsUnsignedLongLong(step->number)};
    if (PyErr_Occurred()) return -1;
    if (request->arguments.root < 0) return 1;
    PyObject *known = PyObject_CallMethod(self->gate.owner, "is_agreed", "O", step->number);
    int agreed = known == NULL ? -1 : known == Py_True;
    Py_XDECREF(known);
    return agreed;
}

/* Find how the call travels, with its label: 1; 0: it does not go this way; -1 with an exception.
 */
static int sign(LinkCollectivesObject *self, LinkPlan *plan, const LinkCallRequest *request,
                SignedCall *call) {
    if (request->step.state != NULL) return sign_step(self, request, call);
    *call = (SignedCall){plan->signature, plan->number, plan->own.call->signature};
    if (!has_label(request)) {
        if (plan->is_agreed) return 1;
        gate_before_python(&self->gate);
        PyObject *made = PyObject_CallMethod(self->gate.owner, "sign", "Os", plan->signature, "");
        int known = made == NULL ? -1 : made != Py_False;
        plan->is_agreed = known > 0;
        Py_XDECREF(made);
        return known;
    }
    if (!plan_has_label(plan, request->label)) {
        PyObject *made =
            PyObject_CallMethod(self->gate.owner, "sign", "OO", plan->signature, request->label);
        int known = made == NULL ? -1 : made != Py_False;
        if (known > 0 && plan_set_label(plan, request->label, made) < 0) known = -1;
        Py_XDECREF(made);
        if (known <= 0) return known;
    }
    *call = (SignedCall){plan->labelled, plan->labelled_number,
                         PyLong_AsUnsignedLongLong(plan->labelled_number)};
    return PyErr_Occurred() ? -1 : 1;
}

static bool compares(const LinkPlan *plan) { return plan->comparison.schedule.call != NULL; }

static bool are_lent(const LinkPlan *plan) {
    return link_schedule_is_ready(&plan->own) &&
           (!compares(plan) || link_schedule_is_ready(&plan->comparison.schedule));
}

static bool reserve_staging(LinkCollectivesObject *self, size_t nbytes) {
    if (nbytes <= self->staging_bytes) return true;
    uint8_t *memory = PyMem_Malloc(nbytes);
    if (memory == NULL) return false;
    PyMem_Free(self->staging);
    self->staging = memory;
    self->staging_bytes = nbytes;
    return true;
}

static long read_number(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    long number = value == NULL ? -1 : PyLong_AsLong(value);
    Py_XDECREF(value);
    return number;
}

static int set_number(PyObject *object, PyObject *name, uint64_t number) {
    PyObject *value = PyLong_FromUnsignedLongLong(number);
    int failed = value == NULL ? -1 : PyObject_SetAttr(object, name, value);
    Py_XDECREF(value);
    return failed;
}

/* The number of the next call, if all before it have ended; 0: not so, or with an exception. */
static uint64_t find_next(LinkCollectivesObject *self) {
    long last = read_number(self->order, attribute_names.last_number);
    long ended = last < 0 ? -1 : read_number(self->progress, attribute_names.last_ended);
    return ended >= 0 && last == ended ? (uint64_t)last + 1 : 0;
}

/* Give the call its number; 0: not now, or with an exception. */
static uint64_t take_number(LinkCollectivesObject *self) {
    PyObject *got = PyObject_CallOneArg(self->lock, Py_False);
    bool locked = got == Py_True;
    Py_XDECREF(got);
    if (!locked) return 0;
    uint64_t taken = find_next(self);
    if (taken && set_number(self->order, attribute_names.last_number, taken) < 0) taken = 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *given = PyObject_CallNoArgs(self->unlock);
    if (given == NULL) PyErr_WriteUnraisable(self->unlock);
    Py_XDECREF(given);
    PyErr_Restore(type, value, trace);
    return taken;
}

/* ---------------------------------------------------------------- the call */

/* Keep the latest of a dict by numbers. */
static int note(PyObject *dict, uint64_t sequence, PyObject *value) {
    PyObject *key = PyLong_FromUnsignedLongLong(sequence);
    if (key == NULL) return -1;
    int failed = PyDict_SetItem(dict, key, value);
    Py_DECREF(key);
    if (failed || sequence <= HISTORY) return failed;
    if ((key = PyLong_FromUnsignedLongLong(sequence - HISTORY)) == NULL) return -1;
    int found = PyDict_Contains(dict, key);
    failed = found > 0 ? PyDict_DelItem(dict, key) : found;
    Py_DECREF(key);
    return failed;
}

/* Pass on the frame that is in the way; whether the call may go on here, -1 with an exception. */
static int deliver(LinkCollectivesObject *self, const LinkSchedule *schedule) {
    int link;
    size_t nbytes;
    /* Before it is taken: what a handler broke into would leave it nowhere. */
    PyObject *delayed = gate_delay_signals(&self->gate, true);
    if (delayed == NULL) return -1;
    const uint8_t *frame = ah_call_take_foreign(&schedule->call->call, &link, &nbytes);
    PyObject *given =
        PyObject_CallMethod(self->gate.owner, "deliver", "ly#O", schedule->ranks[link],
                            (const char *)frame, (Py_ssize_t)nbytes, schedule->compiled);
    int going = given == NULL ? -1 : given == Py_True;
    Py_XDECREF(given);
    return gate_allow_signals(delayed) < 0 ? -1 : going;
}

/* Carry a schedule out as far as it goes here: 1: it has come to its end; 0: it goes on elsewhere;
 * -1 likewise, with an exception. */
static int carry_out(LinkCollectivesObject *self, const LinkSchedule *schedule, LinkHold hold) {
    LinkCallObject *call = schedule->call;
    int64_t until = ah_link_now() + hold.least, last = until - hold.least + hold.most;
    int ended = call->call.at;
    for (;;) {
        ah_call_status status;
        call->is_running = true;
        Py_BEGIN_ALLOW_THREADS
        status = link_call_run(call, until, GATE_SPIN_NS);
        Py_END_ALLOW_THREADS
        call->is_running = false;
        int going = 0;
        switch (status) {
        case AH_CALL_DONE: return 1;
        case AH_CALL_LATE:
            if (until < last &&
                (hold.is_long ? call->call.at > ended : ah_call_has_come(&call->call)))
                going = gate_is_undisturbed(&self->gate);
            until = link_at_most(ah_link_now() + GATE_TURN_NS, last);
            ended = call->call.at;
            break;
        case AH_CALL_FOREIGN: going = deliver(self, schedule); break;
        case AH_CALL_STUCK: break;
        }
        if (going <= 0) return going;
    }
}

/* How far a call has come here. */
typedef enum {
    CALL_UNDER_WAY,
    CALL_UNCOMPARED, /* it has ended, and nothing is known of the others' results, or of its later
                      * steps */
    CALL_COMPARING,
    CALL_COMPARED,
} Progress;

/* Compare the result with those of the other ranks: 1: they are the same; 0 or, with an exception,
 * -1: not so, or not yet, as `progress` says. */
static int compare(LinkCollectivesObject *self, LinkPlan *plan, const LinkArguments *given,
                   LinkHold hold, Progress *progress) {
    LinkComparison *comparison = &plan->comparison;
    *progress = CALL_UNCOMPARED;
    if (!compares(plan)) return 1;
    if (link_comparison_begin(comparison, self->sequence, given->arrays[0], self->checksum) < 0)
        return -1;
    *progress = CALL_COMPARING;
    int ended = carry_out(self, &comparison->schedule, hold);
    if (ended <= 0) return ended;
    link_call_end(comparison->schedule.call);
    *progress = CALL_COMPARED;
    return link_comparison_agrees(comparison);
}

/* Whether a composite call has ended with its first step: 1; 0 or, with an exception, -1: not so.
 */
static int has_ended(const LinkCallRequest *request, Progress *progress) {
    if (request->step.state == NULL) return 1;
    PyObject *more = PyObject_CallMethod(request->step.state, "has_more", NULL);
    int goes_on = more == NULL ? -1 : more != Py_False;
    Py_XDECREF(more);
    if (goes_on != 0) *progress = CALL_UNCOMPARED;
    return goes_on < 0 ? -1 : !goes_on;
}

/* Whether the later steps of a composite call have ended where it was handed over. */
static bool has_ended_behind(const LinkCallRequest *request) {
    if (request->step.state == NULL) return false;
    FirstError first = first_error_keep();
    PyObject *ended = PyObject_GetAttrString(request->step.state, "has_ended");
    bool is_over = ended == Py_True;
    Py_XDECREF(ended);
    first_error_add(&first);
    first_error_raise(&first);
    return is_over;
}

/* Whether Python has a part in what goes over the links, which nothing may break into. */
static bool needs_python(const LinkSchedule *schedule) {
    if (schedule->call == NULL) return false;
    bool needs = false; /* all links are asked: that prepares them */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(schedule->call->links); i++) {
        LinkStateObject *link = (LinkStateObject *)PyTuple_GET_ITEM(schedule->call->links, i);
        needs |= ah_link_is_encrypted(&link->link);
        if (schedule->call->call.has_digests) needs |= link_needs_python(link);
    }
    return needs;
}

/* Write down that the call has ended well, where others look; -1 with an exception. */
static int conclude(LinkCollectivesObject *self, uint64_t sequence, int64_t began) {
    double now = (double)ah_link_now() / NANOSECONDS;
    PyObject *number = PyLong_FromUnsignedLongLong(sequence), *since = PyFloat_FromDouble(now);
    PyObject *took = PyFloat_FromDouble(now - (double)began / NANOSECONDS), *done = NULL;
    if (number != NULL && since != NULL && took != NULL &&
        PyObject_SetAttr(self->progress, attribute_names.sequence, number) == 0 &&
        PyObject_SetAttr(self->progress, attribute_names.last_ended, number) == 0 &&
        PyObject_SetAttr(self->progress, attribute_names.last_completed, number) == 0 &&
        PyObject_SetAttr(self->progress, attribute_names.since, since) == 0 &&
        PyDict_SetItem(self->completed, self->group, number) == 0)
        done = PyObject_CallOneArg(self->note_duration, took);
    Py_XDECREF(number);
    Py_XDECREF(since);
    Py_XDECREF(took);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Let the loop know of what was read ahead, with an exception set or not; -1 with one. */
static int settle(LinkCollectivesObject *self, const LinkSchedule *schedule) {
    int failed = PyErr_Occurred() ? -1 : 0;
    PyObject *links = schedule->call == NULL ? NULL : schedule->call->links;
    for (Py_ssize_t i = 0; links != NULL && i < PyTuple_GET_SIZE(links); i++)
        if (gate_settle(&self->gate, schedule->ranks[i],
                        (LinkStateObject *)PyTuple_GET_ITEM(links, i)) < 0)
            failed = -1;
    return failed;
}

/* A call's progress, as `CallProgress` in Python. */
static PyObject *describe(LinkCollectivesObject *self, LinkPlan *plan, Progress progress) {
    LinkComparison *comparison = &plan->comparison;
    PyObject *goes_on = progress == CALL_COMPARING ? Py_True : Py_False;
    switch (progress) {
    case CALL_UNDER_WAY:
        return Py_BuildValue(
            "(ONO)", plan->own.compiled,
            PyBytes_FromStringAndSize((const char *)self->staging, (Py_ssize_t)plan->staging_bytes),
            Py_None);
    case CALL_UNCOMPARED: return Py_BuildValue("(OOO)", plan->own.compiled, Py_None, Py_None);
    case CALL_COMPARING:
    case CALL_COMPARED:
        return Py_BuildValue("(OO(OOOO))", plan->own.compiled, Py_None,
                             comparison->schedule.compiled, goes_on, comparison->mine,
                             comparison->digests);
    }
    return PyErr_Format(PyExc_SystemError, "no such progress");
}

/* Hand the rest of the call over to the loop: the work that ends with it; NULL with an exception.
 * One that is set before stays set. No handler of a signal may run, else the work may be lost. */
static PyObject *hand_over(LinkCollectivesObject *self, LinkPlan *plan, Progress progress,
                           const LinkCallRequest *request, int64_t limit, int64_t began) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    link_log_drop(&self->log, self->sequence);
    const LinkArguments *given = &request->arguments;
    PyObject *arguments = as_tuple(given, request->rest), *work = NULL;
    PyObject *state = describe(self, plan, progress);
    PyObject *waits = request->mode == LINK_BEGIN ? Py_False : Py_True;
    if (arguments != NULL && state != NULL)
        work = PyObject_CallMethod(
            self->gate.owner, "hand_over", "sOKOOddOOO", kind_names[given->kind], arguments,
            (unsigned long long)self->sequence, state, plan->how, (double)limit / NANOSECONDS,
            (double)began / NANOSECONDS, waits, request->value, request->label);
    Py_XDECREF(arguments);
    Py_XDECREF(state);
    if (type != NULL) {
        PyErr_Clear();
        PyErr_Restore(type, value, trace);
    }
    return work;
}

/* Delay the handlers of signals, if `delayed` does not, from now on. An exception that is set stays
 * so, and one of a handler that has run meanwhile is set. */
static PyObject *delay_signals(LinkCollectivesObject *self, PyObject *delayed) {
    if (delayed != NULL && delayed != Py_None) return delayed;
    FirstError first = first_error_keep();
    Py_XDECREF(delayed);
    delayed = NULL;
    for (int i = 0; i < FIRST_ERROR_ATTEMPTS && delayed == NULL; i++) {
        delayed = gate_delay_signals(&self->gate, true);
        first_error_add(&first);
    }
    first_error_raise(&first);
    return delayed;
}

static PyObject *await(LinkCollectivesObject *self, PyObject *work) {
    PyObject *done = PyObject_CallMethod(self->gate.owner, "wait", "O", work);
    Py_XDECREF(done);
    return done == NULL ? NULL : Py_NewRef(Py_True);
}

/* End a call that was handed over, with the exception that is set, and stays. */
static void abandon(LinkCollectivesObject *self, PyObject *work) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallMethod(self->gate.owner, "abandon", "OO", work, type);
    if (done == NULL) PyErr_WriteUnraisable(self->gate.owner);
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
}

/* Carry out a call that has its number, within the gate, which is left: what its mode says. */
static PyObject *carry_out_numbered(LinkCollectivesObject *self, LinkPlan *plan,
                                    const SignedCall *call, const LinkCallRequest *request,
                                    int64_t limit) {
    const LinkArguments *given = &request->arguments;
    LinkMode mode = request->mode;
    uint64_t sequence = self->sequence;
    int64_t began = ah_link_now();
    ah_memory memory[AH_AREAS];
    self->nbytes = 0;
    if (given->array_count > 0)
        self->nbytes = (size_t)PyArray_NBYTES(given->arrays[given->array_count - 1]);
    Py_XSETREF(self->how, Py_NewRef(plan->how));
    link_log_begin(&self->log, sequence, call->signature, plan->how, self->nbytes);
    plan_load(plan, given, self->staging);
    plan_locate(plan, given, self->staging, memory);
    link_call_begin(plan->own.call, sequence, call->bits, memory);
    bool is_whole = needs_python(&plan->own);
    is_whole |= needs_python(&plan->comparison.schedule);
    PyObject *delayed = gate_delay_signals(&self->gate, is_whole);
    Progress progress = CALL_UNDER_WAY;
    LinkHold hold = link_find_hold(self, request, limit);
    int ended = delayed == NULL || note(self->signatures, sequence, call->number) < 0 ||
                        note(self->calls, sequence, call->signature) < 0
                    ? -1
                    : carry_out(self, &plan->own, hold);
    if (ended > 0 && !plan_agrees(plan, self->staging)) ended = 0; /* it is judged elsewhere */
    if (ended > 0) {
        link_call_end(plan->own.call);
        plan_commit(plan, given, self->staging);
        ended = compare(self, plan, given, hold, &progress);
        if (ended > 0) ended = has_ended(request, &progress);
    }
    PyObject *work = NULL, *result = NULL;
    bool makes_work = mode == LINK_BEGIN && request->step.state == NULL;
    if (ended > 0) {
        link_log_end(&self->log, sequence);
        if (conclude(self, sequence, began) == 0 && settle(self, &plan->own) == 0 &&
            settle(self, &plan->comparison.schedule) == 0)
            result = makes_work ? PyObject_CallMethod(self->gate.owner, "make_completed_work", "OO",
                                                      request->value, request->label)
                                : Py_NewRef(Py_True);
    } else {
        delayed = delay_signals(self, delayed);
        work = hand_over(self, plan, progress, request, limit, began);
    }
    self->thread = 0;
    gate_leave(&self->gate, ended <= 0 && !has_ended_behind(request));
    bool is_interrupted = delayed == NULL || gate_allow_signals(delayed) < 0;
    if (is_interrupted) {
        if (work != NULL) abandon(self, work);
        Py_CLEAR(result);
    } else if (work != NULL) {
        bool awaits = mode == LINK_WAIT && request->step.state == NULL;
        result = awaits ? await(self, work) : Py_NewRef(work);
    }
    Py_XDECREF(work);
    return result;
}

/* The name of the composite call of which this is a step; NULL: it is none. */
static PyObject *find_operation(const LinkCallRequest *request) {
    if (request->step.state == NULL) return NULL;
    PyObject *name = PyObject_GetAttrString(request->step.signature, "operation");
    if (name == NULL) PyErr_Clear(); /* it is named as its step */
    return name;
}

/* Carry out a call as its caller makes it: as carry_out_numbered; False: nothing has happened. */
static PyObject *make_call(LinkCollectivesObject *self, const LinkCallRequest *request) {
    const LinkArguments *given = &request->arguments;
    int64_t limit = read_limit(self, request->timeout);
    if (limit <= 2 * GATE_HOLD_NS) Py_RETURN_FALSE;
    int entered = enter(self);
    if (entered < 0) return NULL;
    if (entered == 0) Py_RETURN_FALSE;
    LinkPlan *plan = find_plan(self, request);
    uint64_t sequence = 0;
    SignedCall call;
    if (plan != NULL && are_lent(plan) && reserve_staging(self, plan->staging_bytes) &&
        !((has_label(request) || request->step.state != NULL) && compares(plan)) &&
        sign(self, plan, request, &call) > 0 && (sequence = take_number(self)) != 0) {
        self->sequence = sequence;
        self->label = request->label;
        if (request->mode != LINK_BEGIN) self->thread = PyThread_get_thread_ident();
        self->kind = given->kind;
        Py_XSETREF(self->operation, find_operation(request));
        return carry_out_numbered(self, plan, &call, request, limit);
    }
    gate_leave(&self->gate, false);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_FALSE;
}

PyObject *link_collectives_run(LinkCollectivesObject *self, const LinkCallRequest *request) {
    if (!link_collectives_takes(request)) Py_RETURN_FALSE;
    return make_call(self, request);
}

PyObject *link_collectives_start(LinkCollectivesObject *self, LinkCallRequest *request) {
    PyObject *work = NULL;
    request->caller = link_find_caller(self, request);
    /* Nothing that is under way is to be held up for a call behind it. */
    if (!PyErr_Occurred() && link_collectives_takes(request) && find_next(self))
        work = make_call(self, request);
    self->begun_at = (double)ah_link_now() / NANOSECONDS;
    if (work == Py_False) Py_CLEAR(work);
    if (work == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return work;
}
