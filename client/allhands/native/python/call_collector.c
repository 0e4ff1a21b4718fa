#include "python/call_collector.h"

#include <structmember.h>

#include "python/inline_calls.h"
#include "python/plan.h"

/* Stands for a group's way in a block that collects a thread's calls: takes all_reduces of one
 * dtype and operation, and declines all else. */
typedef struct {
    PyObject_HEAD
    PyObject *ops;    /* tuple of the operations, by their numbers in the core */
    PyObject *arrays; /* a list */
    PyObject *op;     /* of them; NULL: there is none yet */
    int number;       /* of their dtype */
    Py_ssize_t nbytes;
    unsigned long thread;
} CollectorObject;

static PyTypeObject *Collector_Type;

static PyObject *collector_all_reduce(CollectorObject *self, PyObject *const *args,
                                      Py_ssize_t nargs) {
    /* x, op, timeout, label */
    if (nargs != 4 || args[2] != Py_None || args[3] != Py_None ||
        self->thread != PyThread_get_thread_ident())
        Py_RETURN_FALSE;
    PyArrayObject *x = plain_array(args[0], true);
    if (x == NULL) Py_RETURN_FALSE;
    int op = find_op(self->ops, args[1]);
    if (op < 0 || !ah_supports(op, type_of_number(PyArray_TYPE(x)))) Py_RETURN_FALSE;
    if (self->op == NULL) {
        self->op = Py_NewRef(args[1]);
        self->number = PyArray_TYPE(x);
    }
    if (self->op != args[1] || self->number != PyArray_TYPE(x)) Py_RETURN_FALSE;
    if (PyList_Append(self->arrays, args[0]) < 0) return NULL;
    self->nbytes += PyArray_NBYTES(x);
    Py_RETURN_TRUE;
}

static PyObject *collector_decline(CollectorObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self, (void)args, (void)nargs;
    Py_RETURN_FALSE;
}

static PyObject *collector_start(CollectorObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self, (void)args, (void)nargs;
    Py_RETURN_NONE;
}

/* Give the shapes of what was collected since the last time: of each array how many dimensions it
 * has, then these. */
static PyObject *collector_shapes(CollectorObject *self, PyObject *unused) {
    (void)unused;
    Py_ssize_t count = PyList_GET_SIZE(self->arrays), numbers = count;
    for (Py_ssize_t at = 0; at < count; at++)
        numbers += PyArray_NDIM((PyArrayObject *)PyList_GET_ITEM(self->arrays, at));
    PyObject *packed = PyBytes_FromStringAndSize(NULL, numbers * (Py_ssize_t)sizeof(int64_t));
    if (packed == NULL) return NULL;
    int64_t *next = (int64_t *)PyBytes_AS_STRING(packed);
    for (Py_ssize_t at = 0; at < count; at++) {
        PyArrayObject *array = (PyArrayObject *)PyList_GET_ITEM(self->arrays, at);
        *next++ = PyArray_NDIM(array);
        for (int dim = 0; dim < PyArray_NDIM(array); dim++) *next++ = PyArray_DIM(array, dim);
    }
    return packed;
}

/* Give what was collected since the last time: the arrays, the operation or None, and the bytes. */
static PyObject *collector_take(CollectorObject *self, PyObject *unused) {
    (void)unused;
    PyObject *empty = PyList_New(0);
    if (empty == NULL) return NULL;
    PyObject *taken =
        Py_BuildValue("NNn", self->arrays, self->op ? self->op : Py_NewRef(Py_None), self->nbytes);
    self->arrays = empty;
    self->op = NULL;
    self->nbytes = 0;
    return taken;
}

static PyObject *collector_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"ops", "thread", NULL};
    PyObject *ops;
    unsigned long thread;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!k", names, &PyTuple_Type, &ops, &thread))
        return NULL;
    if (PyTuple_GET_SIZE(ops) > AH_OPS) {
        PyErr_SetString(PyExc_ValueError, "more operations than the core has");
        return NULL;
    }
    CollectorObject *self = (CollectorObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->ops = Py_NewRef(ops);
    self->thread = thread;
    self->arrays = PyList_New(0);
    if (self->arrays == NULL) Py_CLEAR(self);
    return (PyObject *)self;
}

static int collector_traverse(CollectorObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->ops);
    Py_VISIT(self->arrays);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int collector_clear(CollectorObject *self) {
    Py_CLEAR(self->arrays);
    return 0;
}

static void collector_dealloc(CollectorObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->arrays);
    Py_XDECREF(self->op);
    Py_XDECREF(self->ops);
    type->tp_free(self);
    Py_DECREF(type);
}

#define DECLINED(name) {#name, (PyCFunction)(void (*)(void))collector_decline, METH_FASTCALL, NULL},
#define DECLINED_LISTS(name, kind) DECLINED(name)
#define NEVER_STARTED(name, kind)                                                                  \
    {"start_" #name, (PyCFunction)(void (*)(void))collector_start, METH_FASTCALL, NULL},

static PyMethodDef collector_methods[] = {
    {"all_reduce", (PyCFunction)(void (*)(void))collector_all_reduce, METH_FASTCALL, NULL},
    {"shapes", (PyCFunction)collector_shapes, METH_NOARGS, NULL},
    {"take", (PyCFunction)collector_take, METH_NOARGS, NULL},
    /* clang-format off */
    DECLINED(barrier)
    DECLINED(reduce)
    DECLINED(broadcast)
    DECLINED(all_gather_into_tensor)
    DECLINED(reduce_scatter_tensor)
    DECLINED(all_to_all_single)
    DECLINED(scan)
    DECLINED(exscan)
    LIST_METHODS(DECLINED_LISTS)
    PLAIN_METHODS(NEVER_STARTED)
    /* clang-format on */
    {NULL, NULL, 0, NULL},
};

static PyType_Slot collector_slots[] = {
    {Py_tp_doc, "Collector of a thread's calls on a group; described in _native.pyi."},
    {Py_tp_new, collector_new},
    {Py_tp_dealloc, collector_dealloc},
    {Py_tp_traverse, collector_traverse},
    {Py_tp_clear, collector_clear},
    {Py_tp_methods, collector_methods},
    {0, NULL},
};

static PyType_Spec collector_spec = {
    .name = "allhands._native.CallCollector",
    .basicsize = sizeof(CollectorObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = collector_slots,
};

int add_collector_type(PyObject *module) {
    Collector_Type = (PyTypeObject *)PyType_FromSpec(&collector_spec);
    if (Collector_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "CallCollector", (PyObject *)Collector_Type);
}
