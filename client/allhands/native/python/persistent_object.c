#include "python/arrays.h"
#include "python/deadline.h"

#include <structmember.h>

typedef enum { RESTING, POSTED, ENDED, FAILED, QUEUED } State;

/* An all_reduce whose arguments were looked at once; or one call of it that was posted. */
typedef struct Persistent {
    PyObject_HEAD
    PyObject *order; /* has the lane, sooner or later; NULL of one that was posted, as fallback */
    PyObject *x, *op, *fallback, *label;
    PyObject *shape; /* that x had before it was made flat; NULL: it was not */
    LaneObject *lane;
    PyObject *work;  /* of a call that went the other way */
    PyObject *error; /* of one that was finished on the way of another call */
    PyObject *dtype; /* of x, when it was looked at */
    PyThread_type_lock over; /* held while it is posted: who finishes it may go on in another call */
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
    return lane_end(lane, &self->running, status, self->label == Py_None ? NULL : self->label);
}

/* Keep the exception that is set for who waits. */
static void keep_error(PersistentObject *self)
{
    PyObject *type, *traceback;
    PyErr_Fetch(&type, &self->error, &traceback);
    PyErr_NormalizeException(&type, &self->error, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
}

int lane_finish_pending(LaneObject *lane)
{
    PersistentObject *pending = lane->pending;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    Plan kept = lane->plan;
    bool failed = finish(pending) < 0;
    if (failed) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Fetch(&type, &value, &traceback);
            lane_complain(lane, &pending->running, AH_INTERRUPTED,
                     pending->label == Py_None ? NULL : pending->label);
        }
        keep_error(pending);
    }
    pending->state = failed ? FAILED : ENDED; /* not before: who waits looks at it */
    PyThread_release_lock(pending->over);
    lane->plan = kept;
    Py_DECREF(pending);
    if (type == NULL)
        return 0;
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* Look at the arguments; `plan.out[0]` stays NULL where they are not plain, or not for this. */
static void prepare(PersistentObject *self)
{
    PyArrayObject *x = plain_array(self->x, true);
    self->plan.op = lane_op_index(self->lane, self->op);
    if (x == NULL || self->plan.op < 0)
        return;
    plan_type(&self->plan, x);
    if (!plan_label(&self->plan, self->label))
        return;
    self->dtype = Py_NewRef(self->plan.dtype);
    self->plan.kind = ALL_REDUCE;
    self->plan.root = -1;
    self->plan.count = (size_t)PyArray_SIZE(x);
    self->plan.out[0] = PyArray_DATA(x);
    self->nbytes = (size_t)PyArray_NBYTES(x);
    if (!ah_supports(self->plan.op, self->plan.type) ||
        !ah_all_reduce_splits(self->lane->lane, self->plan.type, self->plan.count))
        self->plan.out[0] = NULL;
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
    prepare(self);
    return true;
}

/* Give this rank's part, by who has the turn, which is given back; -1 with an exception set. */
static int begin(PersistentObject *self, int64_t timeout)
{
    LaneObject *lane = self->lane;
    Plan *plan = &lane->plan;
    PyObject *label = self->label == Py_None ? NULL : self->label;
    plan->kind = ALL_REDUCE;
    plan->op = self->plan.op;
    plan->root = -1;
    plan->count = self->plan.count;
    plan_type(plan, (PyArrayObject *)self->x); /* its shape may have been set anew */
    if (self->shape != NULL && !plan_shape(plan, self->shape)) {
        PyThread_release_lock(lane->turn);
        return -1;
    }
    plan->labelsig = self->plan.labelsig;
    lane_begin(lane, &self->running, ++lane->taken, timeout, 0, label);
    lane->inside = PyThread_get_thread_ident();
    ah_status status = ah_all_reduce_start(lane->lane, &self->running.call, plan->op, plan->type,
                                           self->plan.out[0], plan->count);
    lane->inside = 0;
    int failed = 0;
    if (status == AH_OK) {
        self->state = POSTED;
        PyThread_acquire_lock(self->over, NOWAIT_LOCK);
        lane->pending = (PersistentObject *)Py_NewRef((PyObject *)self);
    } else
        failed = lane_end(lane, &self->running, status, label);
    PyThread_release_lock(lane->turn);
    return failed;
}

static PyObject *persistent_start(PersistentObject *self, PyObject *unused)
{
    (void)unused;
    if (self->state != RESTING)
        return PyErr_Format(PyExc_RuntimeError, "started already: wait() for it first");
    PyArrayObject *x = (PyArrayObject *)self->x;
    bool same = bind(self) && self->plan.out[0] != NULL && PyArray_NDIM(x) <= SHAPE_DIMS &&
                self->plan.out[0] == PyArray_DATA(x) && self->dtype == (PyObject *)PyArray_DESCR(x) &&
                self->nbytes == (size_t)PyArray_NBYTES(x) && PyArray_CHKFLAGS(x, NPY_ARRAY_WRITEABLE);
    int64_t timeout = 0;
    if (same)
        timeout = within_deadlines(self->timeout ? self->timeout : self->lane->timeout_ns);
    int entered =
        same && timeout > 0 ? lane_enter(self->lane, lane_kind_names[ALL_REDUCE], self->label) : 0;
    if (entered < 0)
        return NULL;
    if (entered) {
        if (begin(self, timeout) < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    if ((self->work = PyObject_CallNoArgs(self->fallback)) == NULL)
        return NULL;
    self->state = QUEUED;
    Py_RETURN_NONE;
}

/* Wait until another thread has finished it; -1 with an exception: of a signal handler. */
static int await_over(PersistentObject *self)
{
    for (;;) {
        PyLockStatus got;
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->over, -1, 1);
        Py_END_ALLOW_THREADS
        if (got == PY_LOCK_ACQUIRED) {
            PyThread_release_lock(self->over);
            return 0;
        }
        if (Py_MakePendingCalls() < 0)
            return -1;
    }
}

static PyObject *persistent_wait(PersistentObject *self, PyObject *unused)
{
    (void)unused;
    if (self->state == POSTED && !lane_is_own(self->lane))
        return NULL;
    if (self->state == POSTED) {
        PyThread_type_lock turn = self->lane->turn;
        if (!PyThread_acquire_lock(turn, NOWAIT_LOCK)) {
            /* Whoever has the turn finishes this first. */
            if (await_over(self) < 0)
                return NULL;
        } else if (self->state != POSTED)
            PyThread_release_lock(turn);
        else if (self->order == NULL) {
            int failed = lane_finish_pending(self->lane);
            PyThread_release_lock(turn);
            if (failed)
                return NULL;
        } else {
            self->state = RESTING;
            int failed = finish(self);
            PyThread_release_lock(self->over);
            PyThread_release_lock(turn);
            Py_DECREF(self); /* the lane's */
            if (failed)
                return NULL;
            Py_RETURN_TRUE;
        }
    }
    State state = self->state;
    if (self->order != NULL)
        self->state = RESTING;
    switch (state) {
    case ENDED:
        Py_RETURN_TRUE;
    case FAILED: {
        PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
        if (self->order != NULL)
            Py_CLEAR(self->error);
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

PyObject *lane_post(PyObject *lane, PyObject *const *args, Py_ssize_t nargs)
{
    LaneObject *on = (LaneObject *)lane;
    if (nargs != 5 || !PyArray_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "post(x, op, timeout, label, shape)");
    double timeout = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (on->pending != NULL || !(timeout > 0) || !(timeout < 1e9))
        Py_RETURN_NONE;
    PersistentObject *self = (PersistentObject *)Persistent_Type->tp_alloc(Persistent_Type, 0);
    if (self == NULL)
        return NULL;
    self->lane = (LaneObject *)Py_NewRef(lane);
    self->x = Py_NewRef(args[0]);
    self->op = Py_NewRef(args[1]);
    self->label = Py_NewRef(args[3]);
    self->shape = Py_NewRef(args[4]);
    self->over = PyThread_allocate_lock();
    if (self->over == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    prepare(self);
    /* There is nothing pending, so this waits for nobody; nor does it where there is room. */
    int entered = self->plan.out[0] == NULL
                      ? 0
                      : lane_enter(on, lane_kind_names[ALL_REDUCE], self->label);
    if (entered < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (entered && !ah_slot_is_free(on->lane, on->taken + 1)) {
        PyThread_release_lock(on->turn);
        entered = 0;
    }
    if (!entered) {
        Py_DECREF(self);
        Py_RETURN_NONE;
    }
    if (begin(self, (int64_t)(timeout * NANOSECONDS)) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            Py_DECREF(self);
            return NULL;
        }
        keep_error(self);
        self->state = FAILED;
    }
    return (PyObject *)self;
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
    self->over = PyThread_allocate_lock();
    if (self->over == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
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
    Py_XDECREF(self->shape);
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->lane);
    if (self->over != NULL)
        PyThread_free_lock(self->over);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef persistent_methods[] = {
    {"start", (PyCFunction)persistent_start, METH_NOARGS, NULL},
    {"wait", (PyCFunction)persistent_wait, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef persistent_members[] = {
    {"sequence", T_ULONGLONG, offsetof(PersistentObject, running.call.sequence), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot persistent_slots[] = {
    {Py_tp_members, persistent_members},
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

int add_persistent_type(PyObject *module)
{
    Persistent_Type = (PyTypeObject *)PyType_FromSpec(&persistent_spec);
    if (Persistent_Type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Persistent", (PyObject *)Persistent_Type);
}
