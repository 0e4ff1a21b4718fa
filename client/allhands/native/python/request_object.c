#include "python/request_object.h"

#include <structmember.h>

#include "comm/call.h"
#include "python/async_calls.h"
#include "python/call_run.h"
#include "python/deadline.h"
#include "python/inline_calls.h"
#include "python/plan.h"
#include "python/turn.h"

typedef enum { RESTING, POSTED, ENDED, FAILED, QUEUED } State;

/* An all_reduce whose arguments were looked at once. */
typedef struct AllReduceRequest {
    PyObject_HEAD
    PyObject *order; /* gets the communicator in time */
    PyObject *x, *op, *fallback, *label;
    CommObject *comm;
    PyObject *work;  /* of a call that went the other way */
    PyObject *error; /* of one that was finished on the way of another call */
    PyObject *dtype; /* of x, when it was looked at */
    PyThread_type_lock
        ended_lock; /* held while it is posted: who finishes it may go on in another call */
    int64_t timeout;
    State state;
    Plan plan;
    size_t nbytes;
    RunningCall running;
} RequestObject;

static PyTypeObject *Request_Type;

static int finish_all_reduce(RequestObject *self) {
    CommObject *comm = self->comm;
    comm->pending = NULL;
    comm->plan.kind = self->plan.kind; /* for the hooks; the rest stays where it is */
    comm->plan.dtype = self->plan.dtype;
    comm->plan.count = self->plan.count;
    comm->plan.itemsize = self->plan.itemsize;
    comm->plan.out[0] = self->plan.out[0];
    comm->plan.op = self->plan.op;
    comm->plan.root = self->plan.root;
    ah_status status = ah_all_reduce_finish(comm->comm, self->plan.op, self->plan.type,
                                            self->plan.out[0], self->plan.count);
    return call_end(comm, &self->running, status, self->label == Py_None ? NULL : self->label);
}

/* Keep the exception that is set for who waits. */
static void keep_error(RequestObject *self) {
    PyObject *type, *traceback;
    PyErr_Fetch(&type, &self->error, &traceback);
    PyErr_NormalizeException(&type, &self->error, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
}

/* CommObject.finish_pending */
static int finish_pending(CommObject *comm) {
    RequestObject *pending = (RequestObject *)comm->pending;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    Plan kept = comm->plan;
    bool failed = finish_all_reduce(pending) < 0;
    if (failed) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Fetch(&type, &value, &traceback);
            call_raise(comm, &pending->running, AH_INTERRUPTED,
                       pending->label == Py_None ? NULL : pending->label);
        }
        keep_error(pending);
    }
    pending->state = failed ? FAILED : ENDED; /* not before: who waits looks at it */
    PyThread_release_lock(pending->ended_lock);
    comm->plan = kept;
    Py_DECREF(pending);
    if (type == NULL) return 0;
    PyErr_Restore(type, value, traceback);
    return -1;
}

/* Look at the arguments; `plan.out[0]` stays NULL where they are not plain, or not for this. */
static void look_at_arguments(RequestObject *self) {
    PyArrayObject *x = plain_array(self->x, true);
    self->plan.op = comm_op_index(self->comm, self->op);
    if (x == NULL || self->plan.op < 0) return;
    plan_type(&self->plan, x);
    if (!plan_label(&self->plan, self->label)) return;
    self->dtype = Py_NewRef(self->plan.dtype);
    self->plan.kind = AH_KIND_ALL_REDUCE;
    self->plan.root = -1;
    self->plan.count = (size_t)PyArray_SIZE(x);
    self->plan.out[0] = PyArray_DATA(x);
    self->nbytes = (size_t)PyArray_NBYTES(x);
    if (!ah_supports(self->plan.op, self->plan.type) ||
        !ah_all_reduce_splits(self->comm->comm, self->plan.type, self->plan.count))
        self->plan.out[0] = NULL;
}

static bool find_comm(RequestObject *self) {
    if (self->comm != NULL) return true;
    PyObject *comm = PyObject_GetAttrString(self->order, "comm");
    if (comm == NULL) {
        PyErr_Clear();
        return false;
    }
    if (!PyObject_TypeCheck(comm, Comm_Type)) {
        Py_DECREF(comm);
        return false;
    }
    self->comm = (CommObject *)comm;
    look_at_arguments(self);
    return true;
}

/* Give this rank's part, by who has the turn, which is given back; -1 with an exception set. */
static int start_all_reduce(RequestObject *self, int64_t timeout) {
    CommObject *comm = self->comm;
    Plan *plan = &comm->plan;
    PyObject *label = self->label == Py_None ? NULL : self->label;
    plan->kind = AH_KIND_ALL_REDUCE;
    plan->op = self->plan.op;
    plan->root = -1;
    plan->count = self->plan.count;
    plan_type(plan, (PyArrayObject *)self->x); /* its shape may have been set anew */
    plan->labelsig = self->plan.labelsig;
    call_begin(comm, &self->running, ++comm->last_number, timeout, 0, label);
    comm->inline_thread = PyThread_get_thread_ident();
    ah_status status = ah_all_reduce_start(comm->comm, &self->running.call, plan->op, plan->type,
                                           self->plan.out[0], plan->count);
    comm->inline_thread = 0;
    int failed = 0;
    if (status == AH_OK) {
        self->state = POSTED;
        PyThread_acquire_lock(self->ended_lock, NOWAIT_LOCK);
        comm->pending = Py_NewRef((PyObject *)self);
        comm->finish_pending = finish_pending;
    } else
        failed = call_end(comm, &self->running, status, label);
    PyThread_release_lock(comm->turn);
    return failed;
}

/* Queue it where it is large, or others are ahead: at the communicator at once, if that takes it.
 */
static PyObject *start_queued(RequestObject *self) {
    if (self->comm == NULL) return PyObject_CallNoArgs(self->fallback);
    PyObject *timeout = self->timeout == 0
                            ? Py_NewRef(Py_None)
                            : PyFloat_FromDouble((double)self->timeout / NANOSECONDS);
    if (timeout == NULL) return NULL;
    PyObject *args[] = {self->x, self->op, timeout, self->label, self->x};
    PyObject *work = comm_start_all_reduce((PyObject *)self->comm, args, 5);
    Py_DECREF(timeout);
    if (work != Py_None) return work;
    Py_DECREF(work);
    return PyObject_CallNoArgs(self->fallback);
}

static PyObject *request_start(RequestObject *self, PyObject *unused) {
    (void)unused;
    if (self->state != RESTING)
        return PyErr_Format(PyExc_RuntimeError, "started already: wait() for it first");
    PyArrayObject *x = (PyArrayObject *)self->x;
    bool same =
        find_comm(self) && self->plan.out[0] != NULL && PyArray_NDIM(x) <= SHAPE_DIMS &&
        self->plan.out[0] == PyArray_DATA(x) && self->dtype == (PyObject *)PyArray_DESCR(x) &&
        self->nbytes == (size_t)PyArray_NBYTES(x) && PyArray_CHKFLAGS(x, NPY_ARRAY_WRITEABLE) &&
        self->comm->first_async == NULL; /* which would be waited for */
    int64_t timeout = 0;
    if (same) timeout = limit_by_deadlines(self->timeout ? self->timeout : self->comm->timeout_ns);
    int entered = same && timeout > 0
                      ? comm_try_enter(self->comm, kind_names[AH_KIND_ALL_REDUCE], self->label)
                      : 0;
    if (entered < 0) return NULL;
    if (entered) {
        if (start_all_reduce(self, timeout) < 0) return NULL;
        Py_RETURN_NONE;
    }
    if ((self->work = start_queued(self)) == NULL) return NULL;
    self->state = QUEUED;
    Py_RETURN_NONE;
}

/* Wait until another thread has finished it; -1 with an exception: of a signal handler. */
static int await_end(RequestObject *self) {
    for (;;) {
        PyLockStatus got;
        Py_BEGIN_ALLOW_THREADS
        got = PyThread_acquire_lock_timed(self->ended_lock, -1, 1);
        Py_END_ALLOW_THREADS
        if (got == PY_LOCK_ACQUIRED) {
            PyThread_release_lock(self->ended_lock);
            return 0;
        }
        if (Py_MakePendingCalls() < 0) return -1;
    }
}

static PyObject *request_wait(RequestObject *self, PyObject *unused) {
    (void)unused;
    if (self->state == POSTED && !comm_is_own(self->comm)) return NULL;
    if (self->state == POSTED) {
        PyThread_type_lock turn = self->comm->turn;
        if (!PyThread_acquire_lock(turn, NOWAIT_LOCK)) {
            /* Whoever has the turn finishes this first. */
            if (await_end(self) < 0) return NULL;
        } else if (self->state != POSTED)
            PyThread_release_lock(turn);
        else {
            self->state = RESTING;
            int failed = finish_all_reduce(self);
            PyThread_release_lock(self->ended_lock);
            PyThread_release_lock(turn);
            Py_DECREF(self); /* the communicator's */
            if (failed) return NULL;
            Py_RETURN_TRUE;
        }
    }
    State state = self->state;
    self->state = RESTING;
    switch (state) {
    case ENDED: Py_RETURN_TRUE;
    case FAILED: {
        PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
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
    default: return PyErr_Format(PyExc_RuntimeError, "not started: start() it first");
    }
}

static PyObject *request_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *order, *x, *op, *fallback, *label;
    double timeout;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0)
        return PyErr_Format(PyExc_TypeError, "arguments by position only");
    if (!PyArg_ParseTuple(args, "OO!OOdO", &order, &PyArray_Type, &x, &op, &fallback, &timeout,
                          &label))
        return NULL;
    RequestObject *self = (RequestObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->order = Py_NewRef(order);
    self->x = Py_NewRef(x);
    self->op = Py_NewRef(op);
    self->fallback = Py_NewRef(fallback);
    self->label = Py_NewRef(label);
    self->timeout = (int64_t)(timeout * NANOSECONDS);
    self->ended_lock = PyThread_allocate_lock();
    if (self->ended_lock == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int request_traverse(RequestObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->order);
    Py_VISIT(self->x);
    Py_VISIT(self->op);
    Py_VISIT(self->fallback);
    Py_VISIT(self->comm);
    Py_VISIT(self->work);
    Py_VISIT(self->error);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int request_clear(RequestObject *self) {
    Py_CLEAR(self->fallback);
    Py_CLEAR(self->work);
    Py_CLEAR(self->error);
    return 0;
}

static void request_dealloc(RequestObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    request_clear(self);
    Py_XDECREF(self->order);
    Py_XDECREF(self->x);
    Py_XDECREF(self->op);
    Py_XDECREF(self->label);
    Py_XDECREF(self->dtype);
    Py_XDECREF(self->comm);
    if (self->ended_lock != NULL) PyThread_free_lock(self->ended_lock);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef request_methods[] = {
    {"start", (PyCFunction)request_start, METH_NOARGS, NULL},
    {"wait", (PyCFunction)request_wait, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef request_members[] = {
    {"sequence", T_ULONGLONG, offsetof(RequestObject, running.call.sequence), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot request_slots[] = {
    {Py_tp_members, request_members},
    {Py_tp_doc, "A call whose arguments were looked at once; described in _native.pyi."},
    {Py_tp_new, request_new},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_traverse, request_traverse},
    {Py_tp_clear, request_clear},
    {Py_tp_methods, request_methods},
    {0, NULL},
};

static PyType_Spec request_spec = {
    .name = "allhands._native.AllReduceRequest",
    .basicsize = sizeof(RequestObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = request_slots,
};

int add_request_type(PyObject *module) {
    Request_Type = (PyTypeObject *)PyType_FromSpec(&request_spec);
    if (Request_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "AllReduceRequest", (PyObject *)Request_Type);
}
