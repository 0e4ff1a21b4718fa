#define _GNU_SOURCE
#include "lane_object.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NO_IMPORT_ARRAY
#define PY_ARRAY_UNIQUE_SYMBOL allhands_array_api
#include <numpy/arrayobject.h>

#include "arena.h"
#include "segment_object.h"

#define NANOSECONDS 1000000000LL
#define TICK_NS (50 * 1000000LL) /* how late Ctrl-C may be seen by a call that is blocked */
#define RECORDS 64
#define ASK_AFTER_NS NANOSECONDS /* being blocked so long is worth the coordinator's attention */

typedef enum {
    BARRIER,
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    GATHER,
    SCATTER,
    ALL_GATHER,
    ALL_GATHER_INTO_TENSOR,
    REDUCE_SCATTER,
    REDUCE_SCATTER_TENSOR,
    ALL_TO_ALL,
    ALL_TO_ALL_SINGLE,
    KINDS
} Kind;

static const char *const kind_names[KINDS] = {
    "barrier",        "all_reduce",            "reduce",     "broadcast",
    "gather",         "scatter",               "all_gather", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
};

static const char *const variant_names[] = {
    [AH_NONE] = "nothing",       [AH_SLOTS] = "slots",   [AH_STAGED] = "staged",
    [AH_SWAP] = "swap",          [AH_MAILBOXES] = "mailboxes", [AH_DIRECT] = "direct",
    [AH_ATTACH] = "attach",
};

/* What one call does, checked: everything that the collectives of arena.h want to know. */
typedef struct {
    Kind kind;
    ah_type type;      /* of what is reduced */
    uint64_t typesig;  /* equal on all ranks exactly when their dtypes are */
    int op;
    int root;
    size_t count;      /* elements of the array, or of each rank's block */
    size_t itemsize;
    const void *in[AH_MAX_RANKS];
    void *out[AH_MAX_RANKS];
    size_t send[AH_MAX_RANKS], recv[AH_MAX_RANKS]; /* bytes; only of all_to_all */
    PyObject *dtype;   /* borrowed; NULL: none */
} Plan;

/* What a call was, for people and for peers that made another one. */
typedef struct {
    uint64_t sequence;
    Kind kind;
    int op;
    int root;
    size_t count;
    size_t itemsize;
} Record;

struct Persistent;

typedef struct {
    PyObject_HEAD
    ah_lane *lane;
    PyObject *segments; /* what keeps the areas mapped */
    PyObject *ops;
    PyObject *on_failure, *on_slow;
    PyThread_type_lock turn; /* held by the call that runs */
    int rank, size;
    int64_t timeout_ns;
    uint64_t taken;     /* number of the latest call that has one */
    uint64_t limit;     /* calls above need a rank that has left */
    Py_ssize_t queued;  /* calls that have a number and not ended, but for those of fast callers */
    uint64_t begun, ended, completed;
    const char *current; /* the operation under way; "" between calls */
    int64_t since_ns;
    unsigned generation;
    bool closed;
    struct Persistent *pending; /* a call that was started and not finished yet */
    Plan plan; /* of the call that runs; too large for the stack of a fast call */
    ah_variant variant; /* of the call that ended last */
    Record records[RECORDS];
    PyObject *dtypes[RECORDS]; /* of the same calls; NULL: none */
} LaneObject;

/* How a call that runs and the hooks find each other. */
typedef struct {
    LaneObject *self;
    ah_call call;
    PyThreadState *saved;
    int64_t timeout;
    int64_t ask_at;
    bool asked;
} Running;

static PyTypeObject *Lane_Type;
static unsigned generation; /* counts forks: a child shares the memory, but is no member */

static void in_child(void) { generation++; }

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NANOSECONDS + now.tv_nsec;
}

/* ---------------------------------------------------------------- arrays */

ah_type type_of_number(int number)
{
    switch (number) {
    case NPY_BOOL: return AH_BOOL;
    case NPY_INT8: return AH_INT8;
    case NPY_INT16: return AH_INT16;
    case NPY_INT32: return AH_INT32;
    case NPY_UINT8: return AH_UINT8;
    case NPY_UINT16: return AH_UINT16;
    case NPY_UINT32: return AH_UINT32;
    case NPY_FLOAT16: return AH_FLOAT16;
    case NPY_FLOAT32: return AH_FLOAT32;
    case NPY_FLOAT64: return AH_FLOAT64;
    case NPY_COMPLEX64: return AH_COMPLEX64;
    case NPY_COMPLEX128: return AH_COMPLEX128;
    default: break;
    }
    /* C has three names for two sizes. */
    switch (number) {
    case NPY_LONG: return sizeof(long) == 8 ? AH_INT64 : AH_INT32;
    case NPY_LONGLONG: return AH_INT64;
    case NPY_ULONG: return sizeof(long) == 8 ? AH_UINT64 : AH_UINT32;
    case NPY_ULONGLONG: return AH_UINT64;
    default: return AH_TYPES;
    }
}

/* An array that needs no second look; everything else is for the careful way. */
static PyArrayObject *plain(PyObject *given, bool written)
{
    if (!PyArray_CheckExact(given))
        return NULL;
    PyArrayObject *array = (PyArrayObject *)given;
    int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    if (!PyArray_CHKFLAGS(array, wanted) || !PyArray_ISNOTSWAPPED(array))
        return NULL;
    return type_of_number(PyArray_TYPE(array)) == AH_TYPES ? NULL : array;
}

static bool apart(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
    uintptr_t first = (uintptr_t)one, second = (uintptr_t)other;
    return first + one_bytes <= second || second + other_bytes <= first;
}

static void typed(Plan *plan, PyArrayObject *array)
{
    plan->type = type_of_number(PyArray_TYPE(array));
    plan->typesig = plan->type + 1;
    plan->itemsize = (size_t)PyArray_ITEMSIZE(array);
    plan->dtype = (PyObject *)PyArray_DESCR(array);
}

/* ---------------------------------------------------------------- running */

static void pause_python(void *owner)
{
    Running *running = owner;
    running->saved = PyEval_SaveThread();
}

static void resume_python(void *owner)
{
    Running *running = owner;
    PyEval_RestoreThread(running->saved);
    running->saved = NULL;
}

static bool tick_python(void *owner, uint64_t waiting)
{
    Running *running = owner;
    LaneObject *self = running->self;
    PyEval_RestoreThread(running->saved);
    bool interrupted = PyErr_CheckSignals() < 0;
    if (!interrupted && !running->asked && now_ns() >= running->ask_at) {
        running->asked = true;
        PyObject *done =
            PyObject_CallFunction(self->on_slow, "KsKd", (unsigned long long)running->call.sequence,
                                  kind_names[self->plan.kind], (unsigned long long)waiting,
                                  (double)running->call.deadline / NANOSECONDS);
        interrupted = done == NULL;
        Py_XDECREF(done);
    }
    running->saved = PyEval_SaveThread();
    return interrupted;
}

static uint64_t mixed(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u; /* splitmix64 (Steele, Lea & Flood 2014) */
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static uint64_t signature(const Plan *plan)
{
    uint64_t names = (uint64_t)plan->kind | (uint64_t)(plan->op + 1) << 8 |
                     (uint64_t)(plan->root + 1) << 16;
    return mixed(mixed(names ^ plan->typesig << 24) + plan->count);
}

static ah_status carry_out(LaneObject *self, ah_call *call)
{
    Plan *plan = &self->plan;
    ah_lane *lane = self->lane;
    size_t nbytes = plan->count * plan->itemsize;
    switch (plan->kind) {
    case BARRIER:
        return ah_barrier(lane, call);
    case ALL_REDUCE:
        return ah_all_reduce(lane, call, plan->op, plan->type, plan->out[0], plan->count);
    case REDUCE:
        return ah_reduce(lane, call, plan->op, plan->type, plan->in[0], plan->out[0], plan->count,
                         plan->root);
    case BROADCAST:
        return ah_broadcast(lane, call, plan->out[0], nbytes, plan->root);
    case GATHER:
        return ah_gather(lane, call, plan->in[0], plan->out, nbytes, plan->root);
    case SCATTER:
        return ah_scatter(lane, call, plan->in, plan->out[0], nbytes, plan->root);
    case ALL_GATHER:
    case ALL_GATHER_INTO_TENSOR:
        return ah_all_gather(lane, call, plan->in[0], plan->out, nbytes);
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_TENSOR:
        return ah_reduce_scatter(lane, call, plan->op, plan->type, plan->in, plan->out[0],
                                 plan->count);
    case ALL_TO_ALL:
    case ALL_TO_ALL_SINGLE:
        return ah_all_to_all(lane, call, plan->in, plan->send, plan->out, plan->recv);
    case KINDS:
        break;
    }
    Py_UNREACHABLE();
}

/* Begin the plan as call number `sequence`, by who holds the turn. */
static void begin(LaneObject *self, Running *running, uint64_t sequence, int64_t timeout,
                  int64_t deadline)
{
    Plan *plan = &self->plan;
    int64_t now = now_ns();
    int64_t ask = timeout / 2 < ASK_AFTER_NS ? timeout / 2 : ASK_AFTER_NS;
    *running = (Running){.self = self, .timeout = timeout, .ask_at = now + ask};
    running->call = (ah_call){
        .sequence = sequence,
        .signature = signature(plan),
        .deadline = deadline ? deadline : now + timeout,
        .pause = pause_python,
        .resume = resume_python,
        .tick = tick_python,
        .tick_ns = timeout / 4 < TICK_NS ? timeout / 4 : TICK_NS,
        .owner = running,
    };
    self->begun = sequence;
    self->current = kind_names[plan->kind];
    self->since_ns = now;
    self->records[sequence % RECORDS] = (Record){
        .sequence = sequence,
        .kind = plan->kind,
        .op = plan->op,
        .root = plan->root,
        .count = plan->count,
        .itemsize = plan->itemsize,
    };
    Py_XSETREF(self->dtypes[sequence % RECORDS], Py_XNewRef(plan->dtype));
}

/* What a rank gives to and expects from each, in bytes, where ranks may differ in that; else None. */
static PyObject *shares(const LaneObject *self, Kind kind)
{
    if (kind != ALL_TO_ALL && kind != ALL_TO_ALL_SINGLE)
        Py_RETURN_NONE;
    PyObject *both = PyList_New(0);
    for (int at = 0; both != NULL && at < 2 * self->size; at++) {
        const size_t *nbytes = at < self->size ? self->plan.send : self->plan.recv;
        PyObject *one = PyLong_FromSize_t(nbytes[at % self->size]);
        if (one == NULL || PyList_Append(both, one) < 0)
            Py_CLEAR(both);
        Py_XDECREF(one);
    }
    return both;
}

/* Set the exception of a call that failed. */
static void complain(LaneObject *self, const Running *running, ah_status status, PyObject *label)
{
    /* The description is taken before others may have the turn, and with it the plan. */
    static const char *const names[] = {"ok", "timeout", "interrupted", "mismatch", "abandoned"};
    const Plan *plan = &self->plan;
    PyObject *ragged = shares(self, plan->kind);
    if (ragged == NULL)
        return;
    PyObject *done = PyObject_CallFunction(
        self->on_failure, "sKsOniiNKKdO", names[status], (unsigned long long)running->call.sequence,
        kind_names[plan->kind], plan->dtype ? plan->dtype : Py_None, (Py_ssize_t)plan->count,
        plan->op, plan->root, ragged, (unsigned long long)running->call.waiting,
        (unsigned long long)running->call.culprits, (double)running->timeout / NANOSECONDS,
        label ? label : Py_None);
    if (done != NULL) {
        Py_DECREF(done);
        PyErr_SetString(PyExc_SystemError, "a call that failed must raise");
    }
}

/* End what was begun; -1 with an exception set unless it ended well. */
static int end(LaneObject *self, Running *running, ah_status status, PyObject *label)
{
    Plan *plan = &self->plan;
    unsigned long long sequence = running->call.sequence;
    self->variant = running->call.variant;
    if (status == AH_OK) {
        self->completed = sequence;
        if (running->asked) {
            PyObject *done = PyObject_CallFunction(self->on_slow, "Ksid", sequence,
                                                   kind_names[plan->kind], 0, 0.0);
            Py_XDECREF(done);
        }
    } else if (!PyErr_Occurred())
        complain(self, running, status, label);
    self->ended = sequence;
    self->current = "";
    if (status != AH_OK)
        self->since_ns = now_ns();
    return PyErr_Occurred() ? -1 : 0;
}

static int run(LaneObject *self, uint64_t sequence, int64_t timeout, int64_t deadline,
               PyObject *label)
{
    Running running;
    begin(self, &running, sequence, timeout, deadline);
    return end(self, &running, carry_out(self, &running.call), label);
}

static int finish_pending(LaneObject *self);

/* ---------------------------------------------------------------- calls on the caller's thread */

static bool is_open(const LaneObject *self)
{
    return !self->closed && self->queued == 0 && self->taken < self->limit &&
           self->generation == generation;
}

/* Take the turn at once, if nobody else has a call here and nothing speaks against it: 1. Else 0,
 * or -1 with an exception that is for whoever calls. */
static int enter(LaneObject *self)
{
    if (!is_open(self) || !PyThread_acquire_lock(self->turn, NOWAIT_LOCK))
        return 0;
    if (self->pending == NULL)
        return 1;
    /* That takes time, in which others may have taken a number. */
    int entered = finish_pending(self) < 0 ? -1 : is_open(self);
    if (entered <= 0)
        PyThread_release_lock(self->turn);
    return entered;
}

/* Turn down what is not plain: the careful way looks again and says what is wrong. */
static PyObject *not_here(LaneObject *self)
{
    PyThread_release_lock(self->turn);
    Py_RETURN_FALSE;
}

static PyObject *run_here(LaneObject *self, PyObject *timeout, PyObject *label)
{
    int64_t limit = self->timeout_ns;
    if (timeout != Py_None) {
        double seconds = PyFloat_AsDouble(timeout);
        if (PyErr_Occurred() || !(seconds > 0) || !(seconds < 1e9)) {
            PyErr_Clear();
            return not_here(self);
        }
        limit = (int64_t)(seconds * NANOSECONDS);
    }
    int failed = run(self, ++self->taken, limit, 0, label == Py_None ? NULL : label);
    PyThread_release_lock(self->turn);
    if (failed)
        return NULL;
    Py_RETURN_TRUE;
}

static int op_index(LaneObject *self, PyObject *op)
{
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(self->ops); at++)
        if (PyTuple_GET_ITEM(self->ops, at) == op)
            return (int)at;
    return -1;
}

static int rank_of(LaneObject *self, PyObject *given)
{
    if (!PyLong_CheckExact(given))
        return -1;
    long rank = PyLong_AsLong(given);
    if (rank == -1 && PyErr_Occurred())
        PyErr_Clear();
    return rank < 0 || rank >= self->size ? -1 : (int)rank;
}

#define FAST(self_, wanted)                                                                        \
    LaneObject *self = (LaneObject *)(self_);                                                      \
    if (nargs != (wanted)) {                                                                       \
        PyErr_Format(PyExc_TypeError, "wants %d arguments, has %zd", (wanted), nargs);             \
        return NULL;                                                                               \
    }                                                                                              \
    int entered = enter(self);                                                                     \
    if (entered < 0)                                                                               \
        return NULL;                                                                               \
    if (!entered)                                                                                  \
        Py_RETURN_FALSE;                                                                           \
    Plan *plan = &self->plan;                                                                      \
    plan->op = plan->root = -1;                                                                    \
    plan->dtype = NULL

static PyObject *lane_barrier(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 2);
    plan->kind = BARRIER;
    plan->count = plan->itemsize = 0;
    plan->typesig = 0;
    return run_here(self, args[0], args[1]);
}

static PyObject *lane_all_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 4); /* x, op, timeout, label */
    PyArrayObject *x = plain(args[0], true);
    if (x == NULL || (plan->op = op_index(self, args[1])) < 0)
        return not_here(self);
    typed(plan, x);
    if (!ah_supports(plan->op, plan->type))
        return not_here(self);
    plan->kind = ALL_REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_here(self, args[2], args[3]);
}

static PyObject *lane_reduce(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 5); /* x, root, op, timeout, label */
    if ((plan->root = rank_of(self, args[1])) < 0 || (plan->op = op_index(self, args[2])) < 0)
        return not_here(self);
    PyArrayObject *x = plain(args[0], plan->root == self->rank);
    if (x == NULL)
        return not_here(self);
    typed(plan, x);
    if (!ah_supports(plan->op, plan->type))
        return not_here(self);
    plan->kind = REDUCE;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->in[0] = PyArray_DATA(x);
    plan->out[0] = plan->root == self->rank ? PyArray_DATA(x) : NULL;
    return run_here(self, args[3], args[4]);
}

static PyObject *lane_broadcast(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 4); /* x, root, timeout, label */
    PyArrayObject *x = plain(args[0], true);
    if (x == NULL || (plan->root = rank_of(self, args[1])) < 0)
        return not_here(self);
    typed(plan, x);
    plan->kind = BROADCAST;
    plan->count = (size_t)PyArray_SIZE(x);
    plan->out[0] = PyArray_DATA(x);
    return run_here(self, args[2], args[3]);
}

/* Two plain arrays of one dtype that lie apart. */
static bool pair(PyObject *output, PyObject *input, PyArrayObject **out, PyArrayObject **in)
{
    *out = plain(output, true);
    *in = plain(input, false);
    return *out != NULL && *in != NULL && PyArray_TYPE(*out) == PyArray_TYPE(*in) &&
           apart(PyArray_DATA(*out), (size_t)PyArray_NBYTES(*out), PyArray_DATA(*in),
                 (size_t)PyArray_NBYTES(*in));
}

static void spread(void *places[], void *first, size_t nbytes, int size)
{
    for (int rank = 0; rank < size; rank++)
        places[rank] = (char *)first + (size_t)rank * nbytes;
}

static PyObject *lane_all_gather_into_tensor(PyObject *self_, PyObject *const *args,
                                             Py_ssize_t nargs)
{
    FAST(self_, 4); /* output, x, timeout, label */
    PyArrayObject *out, *in;
    if (!pair(args[0], args[1], &out, &in) || PyArray_SIZE(out) != PyArray_SIZE(in) * self->size)
        return not_here(self);
    typed(plan, in);
    plan->kind = ALL_GATHER_INTO_TENSOR;
    plan->count = (size_t)PyArray_SIZE(in);
    plan->in[0] = PyArray_DATA(in);
    spread(plan->out, PyArray_DATA(out), plan->count * plan->itemsize, self->size);
    return run_here(self, args[2], args[3]);
}

static PyObject *lane_reduce_scatter_tensor(PyObject *self_, PyObject *const *args,
                                            Py_ssize_t nargs)
{
    FAST(self_, 5); /* output, x, op, timeout, label */
    PyArrayObject *out, *in;
    if (!pair(args[0], args[1], &out, &in) || PyArray_SIZE(in) != PyArray_SIZE(out) * self->size ||
        (plan->op = op_index(self, args[2])) < 0)
        return not_here(self);
    typed(plan, in);
    if (!ah_supports(plan->op, plan->type))
        return not_here(self);
    plan->kind = REDUCE_SCATTER_TENSOR;
    plan->count = (size_t)PyArray_SIZE(out);
    plan->out[0] = PyArray_DATA(out);
    spread((void **)plan->in, PyArray_DATA(in), plan->count * plan->itemsize, self->size);
    return run_here(self, args[3], args[4]);
}

static PyObject *lane_all_to_all_single(PyObject *self_, PyObject *const *args, Py_ssize_t nargs)
{
    FAST(self_, 4); /* output, x, timeout, label; equal shares */
    PyArrayObject *out, *in;
    if (!pair(args[0], args[1], &out, &in) || PyArray_NDIM(in) == 0 || PyArray_NDIM(out) == 0 ||
        PyArray_DIM(in, 0) % self->size || PyArray_DIM(out, 0) % self->size ||
        PyArray_SIZE(in) != PyArray_SIZE(out))
        return not_here(self);
    typed(plan, in);
    plan->kind = ALL_TO_ALL_SINGLE;
    plan->count = 0; /* ranks may differ in it */
    size_t share = (size_t)PyArray_NBYTES(in) / (size_t)self->size;
    for (int rank = 0; rank < self->size; rank++)
        plan->send[rank] = plan->recv[rank] = share;
    spread((void **)plan->in, PyArray_DATA(in), share, self->size);
    spread(plan->out, PyArray_DATA(out), share, self->size);
    return run_here(self, args[2], args[3]);
}

/* ---------------------------------------------------------------- calls from the queue */

static PyObject *lane_take(LaneObject *self, PyObject *unused)
{
    (void)unused;
    self->queued++;
    return PyLong_FromUnsignedLongLong(++self->taken);
}

static PyObject *lane_give_back(LaneObject *self, PyObject *unused)
{
    (void)unused;
    self->queued--;
    Py_RETURN_NONE;
}

static bool fill(PyObject *arrays, Plan *plan, void *places[], size_t share, const size_t *shares,
                 int size, bool written)
{
    Py_ssize_t given = PyTuple_GET_SIZE(arrays);
    size_t total = 0;
    for (Py_ssize_t at = 0; at < given; at++) {
        PyObject *item = PyTuple_GET_ITEM(arrays, at);
        int wanted = NPY_ARRAY_C_CONTIGUOUS | (written ? NPY_ARRAY_WRITEABLE : 0);
        if (!PyArray_Check(item) || !PyArray_CHKFLAGS((PyArrayObject *)item, wanted) ||
            (size_t)PyArray_ITEMSIZE((PyArrayObject *)item) != plan->itemsize) {
            PyErr_SetString(PyExc_TypeError, "arrays must be contiguous and of the dtype given");
            return false;
        }
        size_t nbytes = (size_t)PyArray_NBYTES((PyArrayObject *)item);
        if (given == size && nbytes != (shares ? shares[at] : share)) {
            PyErr_SetString(PyExc_ValueError, "an array has another size than its block");
            return false;
        }
        places[at] = PyArray_DATA((PyArrayObject *)item);
        total += nbytes;
    }
    if (given != 1 || size == 1 || total == share)
        return true; /* one for each rank, or the only one that this rank has */
    size_t offset = 0;
    for (int rank = 0; rank < size; rank++) {
        places[rank] = (char *)places[0] + offset;
        offset += shares ? shares[rank] : share;
    }
    if (total != offset) {
        PyErr_SetString(PyExc_ValueError, "an array has another size than its blocks");
        return false;
    }
    return true;
}

static bool sizes(PyObject *given, size_t itemsize, size_t nbytes[], int size)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != size) {
        PyErr_SetString(PyExc_ValueError, "one count for each rank is needed");
        return false;
    }
    for (int rank = 0; rank < size; rank++) {
        size_t count = PyLong_AsSize_t(PyTuple_GET_ITEM(given, rank));
        if (PyErr_Occurred())
            return false;
        nbytes[rank] = count * itemsize;
    }
    return true;
}

/* Wait for the turn, and for what was started before; -1 with an exception: without the turn. */
static int await_turn(LaneObject *self)
{
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->turn, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    if (self->pending == NULL || finish_pending(self) == 0)
        return 0;
    PyThread_release_lock(self->turn);
    return -1;
}

static PyObject *lane_run(LaneObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sequence", "kind",    "dtype",   "typesig", "op",      "root",
                            "count",    "sources", "targets", "send",    "recv",    "timeout",
                            "deadline", "label",   NULL};
    unsigned long long sequence, typesig;
    const char *kind;
    PyObject *dtype, *op, *sources, *targets, *send, *recv, *label;
    int root;
    Py_ssize_t count;
    double timeout, deadline;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KsOKOinO!O!OOddO", names, &sequence, &kind,
                                     &dtype, &typesig, &op, &root, &count, &PyTuple_Type, &sources,
                                     &PyTuple_Type, &targets, &send, &recv, &timeout, &deadline,
                                     &label))
        return NULL;
    bool now = sequence == 0;
    if (now) {
        int entered = enter(self);
        if (entered < 0)
            return NULL;
        if (!entered)
            Py_RETURN_FALSE;
    } else if (await_turn(self) < 0)
        return NULL;
    Plan *plan = &self->plan;
    plan->kind = KINDS;
    for (int at = 0; at < KINDS; at++)
        if (strcmp(kind_names[at], kind) == 0)
            plan->kind = at;
    plan->type = AH_TYPES;
    plan->typesig = typesig;
    plan->itemsize = 0;
    plan->dtype = NULL;
    plan->op = op == Py_None ? -1 : op_index(self, op);
    plan->root = root;
    plan->count = (size_t)count;
    bool whole = plan->kind != KINDS && count >= 0 && root >= -1 && root < self->size &&
                 (op == Py_None || plan->op >= 0);
    if (whole && dtype != Py_None) {
        whole = PyArray_DescrCheck(dtype);
        if (whole) {
            PyArray_Descr *descr = (PyArray_Descr *)dtype;
            plan->type = type_of_number(descr->type_num);
            plan->itemsize = (size_t)PyDataType_ELSIZE(descr);
            plan->dtype = dtype;
            if (typesig == 0)
                plan->typesig = plan->type + 1;
        }
    }
    bool reduces = plan->op >= 0;
    whole = whole && (!reduces || (plan->type != AH_TYPES && ah_supports(plan->op, plan->type)));
    if (!whole) {
        PyErr_SetString(PyExc_ValueError, "no such call over shared memory");
        goto refused;
    }
    bool exchanges = plan->kind == ALL_TO_ALL || plan->kind == ALL_TO_ALL_SINGLE;
    if (exchanges && (!sizes(send, plan->itemsize, plan->send, self->size) ||
                      !sizes(recv, plan->itemsize, plan->recv, self->size)))
        goto refused;
    if (exchanges)
        plan->count = 0;
    size_t share = (size_t)count * plan->itemsize;
    if (PyTuple_GET_SIZE(sources) > self->size || PyTuple_GET_SIZE(targets) > self->size ||
        !fill(sources, plan, (void **)plan->in, share, exchanges ? plan->send : NULL, self->size,
              false) ||
        !fill(targets, plan, plan->out, share, exchanges ? plan->recv : NULL, self->size, true)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "more arrays than ranks");
        goto refused;
    }
    if (PyTuple_GET_SIZE(targets) == 0)
        plan->out[0] = NULL;
    if (now)
        sequence = ++self->taken;
    int failed = run(self, sequence, (int64_t)(timeout * NANOSECONDS),
                     (int64_t)(deadline * NANOSECONDS), label == Py_None ? NULL : label);
    PyThread_release_lock(self->turn);
    if (failed)
        return NULL;
    Py_RETURN_TRUE;
refused:
    PyThread_release_lock(self->turn);
    return NULL;
}

/* ---------------------------------------------------------------- state */

static PyObject *lane_progress(LaneObject *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("KKKsd", (unsigned long long)self->begun, (unsigned long long)self->ended,
                         (unsigned long long)self->completed, self->current,
                         (double)self->since_ns / NANOSECONDS);
}

static PyObject *lane_last(LaneObject *self, PyObject *unused)
{
    (void)unused;
    const Record *record = &self->records[self->ended % RECORDS];
    if (self->ended == 0)
        Py_RETURN_NONE;
    return Py_BuildValue("Ksns", (unsigned long long)record->sequence, kind_names[record->kind],
                         (Py_ssize_t)(record->count * record->itemsize),
                         variant_names[self->variant]);
}

static PyObject *lane_record(LaneObject *self, PyObject *given)
{
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred())
        return NULL;
    const Record *record = &self->records[sequence % RECORDS];
    if (sequence == 0 || record->sequence != sequence)
        Py_RETURN_NONE;
    PyObject *dtype = self->dtypes[sequence % RECORDS];
    PyObject *ragged = sequence == self->begun ? shares(self, record->kind) : Py_NewRef(Py_None);
    if (ragged == NULL)
        return NULL;
    return Py_BuildValue("sOniiN", kind_names[record->kind], dtype ? dtype : Py_None,
                         (Py_ssize_t)record->count, record->op, record->root, ragged);
}

static PyObject *lane_interrupt(LaneObject *self, PyObject *given)
{
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred())
        return NULL;
    ah_lane_interrupt(self->lane, sequence);
    Py_RETURN_NONE;
}

static PyObject *lane_limit(LaneObject *self, PyObject *given)
{
    unsigned long long limit = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred())
        return NULL;
    if (limit < self->limit)
        self->limit = limit;
    Py_RETURN_NONE;
}

/* End what runs and turn down all to come. */
static PyObject *lane_close(LaneObject *self, PyObject *unused)
{
    (void)unused;
    self->closed = true;
    ah_lane_interrupt(self->lane, UINT64_MAX);
    Py_RETURN_NONE;
}

static PyObject *lane_idle(LaneObject *self, PyObject *unused)
{
    (void)unused;
    if (await_turn(self) < 0)
        return NULL;
    PyThread_release_lock(self->turn);
    Py_RETURN_NONE;
}

/* Tell the others that they wait in vain for this rank in calls up to that number. */
static PyObject *lane_give_up(LaneObject *self, PyObject *given)
{
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || await_turn(self) < 0)
        return NULL;
    ah_call call = {.sequence = sequence};
    ah_lane_interrupt(self->lane, sequence);
    ah_barrier(self->lane, &call); /* interrupted before it begins, whatever it would have been */
    PyThread_release_lock(self->turn);
    Py_RETURN_NONE;
}

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"rank",       "segments", "offsets", "pids",       "heap_offset",
                            "heap_bytes", "limits",   "timeout", "ops",        "on_failure",
                            "on_slow",    "taken",    "queued",  NULL};
    unsigned long long taken;
    Py_ssize_t queued;
    int rank;
    PyObject *segments, *offsets, *pids, *ops, *on_failure, *on_slow;
    Py_ssize_t heap_offset, heap_bytes, slot_max, chunk, attach_min;
    double timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!O!nn(nnn)dO!OOKn", names, &rank,
                                     &PyTuple_Type, &segments, &PyTuple_Type, &offsets,
                                     &PyTuple_Type, &pids, &heap_offset, &heap_bytes, &slot_max,
                                     &chunk, &attach_min, &timeout, &PyTuple_Type, &ops,
                                     &on_failure, &on_slow, &taken, &queued))
        return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(segments);
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    if (size < 1 || size > AH_MAX_RANKS || rank < 0 || rank >= size || slot_max < 0 || chunk < 1 ||
        PyTuple_GET_SIZE(offsets) != size || PyTuple_GET_SIZE(pids) != size || heap_offset < 0 ||
        heap_bytes < 0 || !(timeout > 0) || !(timeout < 1e9))
        return PyErr_Format(PyExc_ValueError, "no such lane");
    size_t needed = ah_area_bytes((int)size, &limits);
    void *areas[AH_MAX_RANKS], *heaps[AH_MAX_RANKS];
    pid_t processes[AH_MAX_RANKS];
    for (Py_ssize_t at = 0; at < size; at++) {
        PyObject *item = PyTuple_GET_ITEM(segments, at);
        size_t offset = PyLong_AsSize_t(PyTuple_GET_ITEM(offsets, at));
        processes[at] = (pid_t)PyLong_AsLong(PyTuple_GET_ITEM(pids, at));
        if (PyErr_Occurred())
            return NULL;
        SegmentObject *segment = (SegmentObject *)item;
        if (!PyObject_TypeCheck(item, Segment_Type) || offset % 4096 ||
            offset > segment->nbytes || needed > segment->nbytes - offset ||
            (size_t)heap_offset > segment->nbytes ||
            (size_t)heap_bytes > segment->nbytes - (size_t)heap_offset)
            return PyErr_Format(PyExc_ValueError, "an area lies outside its segment");
        areas[at] = segment->base + offset;
        heaps[at] = segment->base + heap_offset;
    }
    LaneObject *self = (LaneObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lane = ah_lane_new(rank, (int)size, areas, processes, heaps, (size_t)heap_bytes, &limits);
    self->turn = PyThread_allocate_lock();
    self->segments = Py_NewRef(segments);
    self->ops = Py_NewRef(ops);
    self->on_failure = Py_NewRef(on_failure);
    self->on_slow = Py_NewRef(on_slow);
    self->rank = rank;
    self->size = (int)size;
    self->timeout_ns = (int64_t)(timeout * NANOSECONDS);
    self->limit = UINT64_MAX;
    self->taken = taken;
    self->queued = queued;
    self->current = "";
    self->since_ns = now_ns();
    self->generation = generation;
    if (self->lane == NULL || self->turn == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int lane_traverse(LaneObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->segments);
    Py_VISIT(self->ops);
    Py_VISIT(self->on_failure);
    Py_VISIT(self->on_slow);
    Py_VISIT((PyObject *)self->pending);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int lane_break(LaneObject *self)
{
    PyObject *pending = (PyObject *)self->pending;
    self->pending = NULL;
    Py_XDECREF(pending);
    Py_CLEAR(self->on_failure);
    Py_CLEAR(self->on_slow);
    return 0;
}

static void lane_dealloc(LaneObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    lane_break(self);
    if (self->lane != NULL)
        ah_lane_free(self->lane);
    if (self->turn != NULL)
        PyThread_free_lock(self->turn);
    Py_XDECREF(self->segments);
    Py_XDECREF(self->ops);
    for (int at = 0; at < RECORDS; at++)
        Py_XDECREF(self->dtypes[at]);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef lane_methods[] = {
    {"barrier", (PyCFunction)(void (*)(void))lane_barrier, METH_FASTCALL, NULL},
    {"all_reduce", (PyCFunction)(void (*)(void))lane_all_reduce, METH_FASTCALL, NULL},
    {"reduce", (PyCFunction)(void (*)(void))lane_reduce, METH_FASTCALL, NULL},
    {"broadcast", (PyCFunction)(void (*)(void))lane_broadcast, METH_FASTCALL, NULL},
    {"all_gather_into_tensor", (PyCFunction)(void (*)(void))lane_all_gather_into_tensor,
     METH_FASTCALL, NULL},
    {"reduce_scatter_tensor", (PyCFunction)(void (*)(void))lane_reduce_scatter_tensor,
     METH_FASTCALL, NULL},
    {"all_to_all_single", (PyCFunction)(void (*)(void))lane_all_to_all_single, METH_FASTCALL,
     NULL},
    {"take", (PyCFunction)lane_take, METH_NOARGS, NULL},
    {"give_back", (PyCFunction)lane_give_back, METH_NOARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))lane_run, METH_VARARGS | METH_KEYWORDS, NULL},
    {"progress", (PyCFunction)lane_progress, METH_NOARGS, NULL},
    {"last", (PyCFunction)lane_last, METH_NOARGS, NULL},
    {"record", (PyCFunction)lane_record, METH_O, NULL},
    {"give_up", (PyCFunction)lane_give_up, METH_O, NULL},
    {"interrupt", (PyCFunction)lane_interrupt, METH_O, NULL},
    {"limit", (PyCFunction)lane_limit, METH_O, NULL},
    {"close", (PyCFunction)lane_close, METH_NOARGS, NULL},
    {"idle", (PyCFunction)lane_idle, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef lane_members[] = {
    {"taken", T_ULONGLONG, offsetof(LaneObject, taken), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "The calls of one group over shared memory; described in _native.pyi."},
    {Py_tp_new, lane_new},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_traverse, lane_traverse},
    {Py_tp_clear, lane_break},
    {Py_tp_methods, lane_methods},
    {Py_tp_members, lane_members},
    {0, NULL},
};

static PyType_Spec lane_spec = {
    .name = "allhands._native.Lane",
    .basicsize = sizeof(LaneObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = lane_slots,
};

/* ---------------------------------------------------------------- Persistent */

typedef enum { RESTING, POSTED, ENDED, FAILED, QUEUED } State;

/* An all_reduce whose arguments were looked at once. */
typedef struct Persistent {
    PyObject_HEAD
    PyObject *order; /* has the lane, sooner or later */
    PyObject *x, *op, *fallback, *label;
    LaneObject *lane;
    PyObject *work;  /* of a call that went the other way */
    PyObject *error; /* of one that was finished on the way of another call */
    PyObject *dtype; /* of x, when it was looked at */
    int64_t timeout;
    State state;
    Plan plan;
    size_t nbytes;
    Running running;
} PersistentObject;

static PyTypeObject *Persistent_Type;

static int finish(PersistentObject *self)
{
    LaneObject *lane = self->lane;
    lane->pending = NULL;
    lane->plan.kind = self->plan.kind; /* for the hooks; the rest stays where it is */
    lane->plan.dtype = self->plan.dtype;
    lane->plan.count = self->plan.count;
    lane->plan.op = self->plan.op;
    lane->plan.root = self->plan.root;
    ah_status status = ah_all_reduce_finish(lane->lane, self->plan.op, self->plan.type,
                                            self->plan.out[0], self->plan.count);
    return end(lane, &self->running, status, self->label == Py_None ? NULL : self->label);
}

/* Another call comes: the one that was started goes first, as on all ranks. What goes wrong is for
 * who waits for that one; but Ctrl-C is for this caller: -1. */
static int finish_pending(LaneObject *lane)
{
    PersistentObject *pending = lane->pending;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    Plan kept = lane->plan;
    bool failed = finish(pending) < 0;
    if (failed) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Fetch(&type, &value, &traceback);
            complain(lane, &pending->running, AH_INTERRUPTED,
                     pending->label == Py_None ? NULL : pending->label);
        }
        PyObject *error_type, *error_traceback;
        PyErr_Fetch(&error_type, &pending->error, &error_traceback);
        PyErr_NormalizeException(&error_type, &pending->error, &error_traceback);
        Py_XDECREF(error_type);
        Py_XDECREF(error_traceback);
    }
    pending->state = failed ? FAILED : ENDED; /* not before: who waits looks at it */
    lane->plan = kept;
    Py_DECREF(pending);
    if (type == NULL)
        return 0;
    PyErr_Restore(type, value, traceback);
    return -1;
}

static bool bind(PersistentObject *self)
{
    if (self->lane != NULL)
        return true;
    PyObject *lane = PyObject_GetAttrString(self->order, "lane");
    if (lane == NULL) {
        PyErr_Clear();
        return false;
    }
    if (!PyObject_TypeCheck(lane, Lane_Type)) {
        Py_DECREF(lane);
        return false;
    }
    self->lane = (LaneObject *)lane;
    PyArrayObject *x = plain(self->x, true);
    self->plan.op = op_index(self->lane, self->op);
    if (x == NULL || self->plan.op < 0)
        return true;
    typed(&self->plan, x);
    self->dtype = Py_NewRef(self->plan.dtype);
    self->plan.kind = ALL_REDUCE;
    self->plan.root = -1;
    self->plan.count = (size_t)PyArray_SIZE(x);
    self->plan.out[0] = PyArray_DATA(x);
    self->nbytes = (size_t)PyArray_NBYTES(x);
    if (!ah_supports(self->plan.op, self->plan.type) ||
        !ah_all_reduce_splits(self->lane->lane, self->plan.type, self->plan.count))
        self->plan.out[0] = NULL;
    return true;
}

static PyObject *persistent_start(PersistentObject *self, PyObject *unused)
{
    (void)unused;
    if (self->state != RESTING)
        return PyErr_Format(PyExc_RuntimeError, "started already: wait() for it first");
    PyArrayObject *x = (PyArrayObject *)self->x;
    bool same = bind(self) && self->plan.out[0] != NULL &&
                self->plan.out[0] == PyArray_DATA(x) && self->dtype == (PyObject *)PyArray_DESCR(x) &&
                self->nbytes == (size_t)PyArray_NBYTES(x) && PyArray_CHKFLAGS(x, NPY_ARRAY_WRITEABLE);
    int entered = same ? enter(self->lane) : 0;
    if (entered < 0)
        return NULL;
    if (entered) {
        LaneObject *lane = self->lane;
        Plan *plan = &lane->plan;
        plan->kind = ALL_REDUCE;
        plan->type = self->plan.type;
        plan->typesig = self->plan.typesig;
        plan->op = self->plan.op;
        plan->root = -1;
        plan->count = self->plan.count;
        plan->itemsize = self->plan.itemsize;
        plan->dtype = self->plan.dtype;
        begin(lane, &self->running, ++lane->taken, self->timeout ? self->timeout : lane->timeout_ns,
              0);
        ah_status status = ah_all_reduce_start(lane->lane, &self->running.call, plan->op,
                                               plan->type, self->plan.out[0], plan->count);
        int failed = 0;
        if (status == AH_OK) {
            self->state = POSTED;
            lane->pending = (PersistentObject *)Py_NewRef((PyObject *)self);
        } else
            failed = end(lane, &self->running, status, self->label == Py_None ? NULL : self->label);
        PyThread_release_lock(lane->turn);
        if (failed)
            return NULL;
        Py_RETURN_NONE;
    }
    if ((self->work = PyObject_CallNoArgs(self->fallback)) == NULL)
        return NULL;
    self->state = QUEUED;
    Py_RETURN_NONE;
}

static PyObject *persistent_wait(PersistentObject *self, PyObject *unused)
{
    (void)unused;
    if (self->state == POSTED) {
        PyThread_type_lock turn = self->lane->turn;
        if (!PyThread_acquire_lock(turn, NOWAIT_LOCK)) {
            Py_BEGIN_ALLOW_THREADS
            PyThread_acquire_lock(turn, WAIT_LOCK);
            Py_END_ALLOW_THREADS
        }
        if (self->state == POSTED) {
            self->state = RESTING;
            int failed = finish(self);
            PyThread_release_lock(turn);
            Py_DECREF(self); /* the lane's */
            if (failed)
                return NULL;
            Py_RETURN_TRUE;
        }
        PyThread_release_lock(turn);
    }
    State state = self->state;
    self->state = RESTING;
    switch (state) {
    case ENDED:
        Py_RETURN_TRUE;
    case FAILED: {
        PyObject *error = self->error;
        self->error = NULL;
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
        return NULL;
    }
    case QUEUED: {
        PyObject *work = self->work;
        self->work = NULL;
        PyObject *result = PyObject_CallMethod(work, "wait", NULL);
        Py_DECREF(work);
        return result;
    }
    default:
        return PyErr_Format(PyExc_RuntimeError, "not started: start() it first");
    }
}

static PyObject *persistent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *order, *x, *op, *fallback, *label;
    double timeout;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "arguments by position only");
    if (!PyArg_ParseTuple(args, "OO!OOdO", &order, &PyArray_Type, &x, &op, &fallback, &timeout,
                          &label))
        return NULL;
    PersistentObject *self = (PersistentObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->order = Py_NewRef(order);
    self->x = Py_NewRef(x);
    self->op = Py_NewRef(op);
    self->fallback = Py_NewRef(fallback);
    self->label = Py_NewRef(label);
    self->timeout = (int64_t)(timeout * NANOSECONDS);
    return (PyObject *)self;
}

static int persistent_traverse(PersistentObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->order);
    Py_VISIT(self->x);
    Py_VISIT(self->op);
    Py_VISIT(self->fallback);
    Py_VISIT(self->lane);
    Py_VISIT(self->work);
    Py_VISIT(self->error);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int persistent_clear(PersistentObject *self)
{
    Py_CLEAR(self->fallback);
    Py_CLEAR(self->work);
    Py_CLEAR(self->error);
    return 0;
}

static void persistent_dealloc(PersistentObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    persistent_clear(self);
    Py_XDECREF(self->order);
    Py_XDECREF(self->x);
    Py_XDECREF(self->op);
    Py_XDECREF(self->label);
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->lane);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef persistent_methods[] = {
    {"start", (PyCFunction)persistent_start, METH_NOARGS, NULL},
    {"wait", (PyCFunction)persistent_wait, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot persistent_slots[] = {
    {Py_tp_doc, "A call whose arguments were looked at once; described in _native.pyi."},
    {Py_tp_new, persistent_new},
    {Py_tp_dealloc, persistent_dealloc},
    {Py_tp_traverse, persistent_traverse},
    {Py_tp_clear, persistent_clear},
    {Py_tp_methods, persistent_methods},
    {0, NULL},
};

static PyType_Spec persistent_spec = {
    .name = "allhands._native.Persistent",
    .basicsize = sizeof(PersistentObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = persistent_slots,
};

static PyObject *area_bytes(PyObject *unused, PyObject *args)
{
    int size;
    Py_ssize_t slot_max, chunk, attach_min;
    (void)unused;
    if (!PyArg_ParseTuple(args, "i(nnn)", &size, &slot_max, &chunk, &attach_min))
        return NULL;
    if (size < 1 || size > AH_MAX_RANKS || slot_max < 0 || chunk < 1)
        return PyErr_Format(PyExc_ValueError, "no such lane");
    ah_limits limits = {(size_t)slot_max, (size_t)chunk,
                        attach_min < 0 ? SIZE_MAX : (size_t)attach_min};
    return PyLong_FromSize_t(ah_area_bytes(size, &limits));
}

static PyMethodDef functions[] = {
    {"area_bytes", area_bytes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_lane_type(PyObject *module)
{
    Lane_Type = (PyTypeObject *)PyType_FromSpec(&lane_spec);
    Persistent_Type = (PyTypeObject *)PyType_FromSpec(&persistent_spec);
    if (Lane_Type == NULL || Persistent_Type == NULL || pthread_atfork(NULL, NULL, in_child) != 0)
        return -1;
    if (PyModule_AddIntConstant(module, "MAX_RANKS", AH_MAX_RANKS) < 0 ||
        PyModule_AddFunctions(module, functions) < 0)
        return -1;
    if (PyModule_AddObjectRef(module, "Persistent", (PyObject *)Persistent_Type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Lane", (PyObject *)Lane_Type);
}
