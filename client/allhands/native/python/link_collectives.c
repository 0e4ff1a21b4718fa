#include "python/link_collectives.h"

#include <structmember.h>

#include "python/kind_methods.h"
#include "python/kind_names.h"
#include "python/link_collectives_state.h"

PyTypeObject *LinkCollectives_Type;

#define MOST_ARGUMENTS 3 /* of a call, beside the timeout and the label */

/* ---------------------------------------------------------------- calls */

static bool read_root(LinkCollectivesObject *self, PyObject *rank, LinkArguments *given) {
    if (!PyLong_CheckExact(rank)) return false;
    long root = PyLong_AsLong(rank);
    if (root == -1 && PyErr_Occurred()) PyErr_Clear();
    if (root < 0 || root >= self->size) return false;
    given->root = (int)root;
    return true;
}

static bool read_array(LinkArguments *given, PyObject *x, bool written) {
    PyArrayObject *array = plain_array(x, written);
    if (array == NULL) return false;
    given->arrays[given->array_count++] = array;
    return true;
}

static bool lie_apart(const PyArrayObject *one, const PyArrayObject *other) {
    uintptr_t first = (uintptr_t)PyArray_DATA((PyArrayObject *)one);
    uintptr_t second = (uintptr_t)PyArray_DATA((PyArrayObject *)other);
    return first + (uintptr_t)PyArray_NBYTES((PyArrayObject *)one) <= second ||
           second + (uintptr_t)PyArray_NBYTES((PyArrayObject *)other) <= first;
}

/* Two arrays of one dtype that lie apart: the written one, and one that is read. */
static bool read_pair(LinkArguments *given, PyObject *output, PyObject *x) {
    return read_array(given, output, true) && read_array(given, x, false) &&
           PyArray_DESCR(given->arrays[0]) == PyArray_DESCR(given->arrays[1]) &&
           lie_apart(given->arrays[0], given->arrays[1]);
}

static bool is_of_shape(PyArrayObject *array, PyArrayObject *other) {
    return PyArray_DESCR(array) == PyArray_DESCR(other) &&
           PyArray_NDIM(array) == PyArray_NDIM(other) &&
           PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(other), PyArray_NDIM(other));
}

/* A list of arrays for each rank, of one shape and dtype, behind what has been read. */
static bool read_list(const LinkCollectivesObject *self, LinkArguments *given, PyObject *list,
                      bool written) {
    if (!(PyList_CheckExact(list) || PyTuple_CheckExact(list)) ||
        PySequence_Fast_GET_SIZE(list) != self->size || self->size >= LINK_ARRAYS)
        return false;
    int first = given->array_count;
    for (Py_ssize_t rank = 0; rank < self->size; rank++) {
        PyArrayObject *array = plain_array(PySequence_Fast_GET_ITEM(list, rank), written);
        if (array == NULL || (rank > 0 && !is_of_shape(array, given->arrays[first]))) return false;
        given->arrays[given->array_count++] = array;
    }
    return true;
}

static bool is_of_size(PyArrayObject *array, PyArrayObject *other) {
    return PyArray_DESCR(array) == PyArray_DESCR(other) &&
           PyArray_NBYTES(array) == PyArray_NBYTES(other);
}

/* Whether arrays that are written lie apart from one another and from the others. */
static bool are_apart(const LinkArguments *given, int written) {
    for (int at = 0; at < written; at++)
        for (int other = at + 1; other < given->array_count; other++)
            if (!lie_apart(given->arrays[at], given->arrays[other])) return false;
    return true;
}

/* A list of written arrays, and one that is read, all of one size. */
static bool read_outputs(const LinkCollectivesObject *self, LinkArguments *given, PyObject *outputs,
                         PyObject *x) {
    return read_list(self, given, outputs, true) && read_array(given, x, false) &&
           is_of_size(given->arrays[0], given->arrays[given->array_count - 1]) &&
           are_apart(given, given->array_count - 1);
}

/* What a rank gives for a list that is the root's alone. */
static bool is_no_list(PyObject *given) {
    return given == Py_None || (PyList_CheckExact(given) && PyList_GET_SIZE(given) == 0) ||
           (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 0);
}

/* Each reads what its arguments are besides the timeout and the label; false: they are not plain.
 */
typedef bool Reader(LinkCollectivesObject *self, PyObject *const *args, LinkArguments *given);

static bool read_barrier(LinkCollectivesObject *self, PyObject *const *args, LinkArguments *given) {
    (void)self, (void)args, (void)given;
    return true;
}

/* x, op */
static bool read_all_reduce(LinkCollectivesObject *self, PyObject *const *args,
                            LinkArguments *given) {
    (void)self;
    given->op = args[1];
    return read_array(given, args[0], true);
}

/* x, root, op */
static bool read_reduce(LinkCollectivesObject *self, PyObject *const *args, LinkArguments *given) {
    given->op = args[2];
    return read_root(self, args[1], given) && read_array(given, args[0], given->root == self->rank);
}

/* x, root */
static bool read_broadcast(LinkCollectivesObject *self, PyObject *const *args,
                           LinkArguments *given) {
    return read_root(self, args[1], given) && read_array(given, args[0], true);
}

/* output, x */
static bool read_all_gather_into_tensor(LinkCollectivesObject *self, PyObject *const *args,
                                        LinkArguments *given) {
    (void)self;
    return read_pair(given, args[0], args[1]);
}

/* outputs, x */
static bool read_all_gather(LinkCollectivesObject *self, PyObject *const *args,
                            LinkArguments *given) {
    return read_outputs(self, given, args[0], args[1]);
}

/* x, outputs on the root, root */
static bool read_gather(LinkCollectivesObject *self, PyObject *const *args, LinkArguments *given) {
    if (!read_root(self, args[2], given)) return false;
    if (given->root != self->rank) return is_no_list(args[1]) && read_array(given, args[0], false);
    return read_outputs(self, given, args[1], args[0]);
}

/* x, inputs on the root, root */
static bool read_scatter(LinkCollectivesObject *self, PyObject *const *args, LinkArguments *given) {
    if (!read_root(self, args[2], given) || !read_array(given, args[0], true)) return false;
    if (given->root != self->rank) return is_no_list(args[1]);
    return read_list(self, given, args[1], false) &&
           is_of_size(given->arrays[0], given->arrays[1]) && are_apart(given, 1);
}

/* output, x, op */
static bool read_reduce_scatter_tensor(LinkCollectivesObject *self, PyObject *const *args,
                                       LinkArguments *given) {
    (void)self;
    given->op = args[2];
    return read_pair(given, args[0], args[1]);
}

/* output, inputs, op */
static bool read_reduce_scatter(LinkCollectivesObject *self, PyObject *const *args,
                                LinkArguments *given) {
    given->op = args[2];
    return read_array(given, args[0], true) && read_list(self, given, args[1], false) &&
           is_of_size(given->arrays[0], given->arrays[1]) && are_apart(given, 1);
}

/* outputs, inputs: here all of one shape */
static bool read_all_to_all(LinkCollectivesObject *self, PyObject *const *args,
                            LinkArguments *given) {
    return 2 * self->size <= LINK_ARRAYS && read_list(self, given, args[0], true) &&
           read_list(self, given, args[1], false) &&
           is_of_shape(given->arrays[0], given->arrays[self->size]) && are_apart(given, self->size);
}

/* output, x: blocks of one size */
static bool read_all_to_all_single(LinkCollectivesObject *self, PyObject *const *args,
                                   LinkArguments *given) {
    return read_pair(given, args[0], args[1]) &&
           PyArray_SIZE(given->arrays[0]) == PyArray_SIZE(given->arrays[1]) &&
           PyArray_SIZE(given->arrays[0]) % self->size == 0;
}

/* What calls of a kind have before the timeout and the label; without a reader they do not go this
 * way. */
static const struct {
    Reader *read;
    Py_ssize_t count;
} forms[AH_KINDS] = {
    [AH_KIND_BARRIER] = {read_barrier, 0},
    [AH_KIND_ALL_REDUCE] = {read_all_reduce, 2},
    [AH_KIND_REDUCE] = {read_reduce, 3},
    [AH_KIND_BROADCAST] = {read_broadcast, 2},
    [AH_KIND_GATHER] = {read_gather, 3},
    [AH_KIND_SCATTER] = {read_scatter, 3},
    [AH_KIND_ALL_GATHER] = {read_all_gather, 2},
    [AH_KIND_ALL_GATHER_INTO_TENSOR] = {read_all_gather_into_tensor, 2},
    [AH_KIND_REDUCE_SCATTER_TENSOR] = {read_reduce_scatter_tensor, 3},
    [AH_KIND_REDUCE_SCATTER] = {read_reduce_scatter, 3},
    [AH_KIND_ALL_TO_ALL] = {read_all_to_all, 2},
    [AH_KIND_ALL_TO_ALL_SINGLE] = {read_all_to_all_single, 2},
};

int link_collectives_read(LinkCollectivesObject *self, ah_kind kind, PyObject *const *args,
                          Py_ssize_t nargs, LinkMode mode, LinkCallRequest *request) {
    if (forms[kind].read == NULL) return 0;
    Py_ssize_t count = forms[kind].count, wanted = count + 2 + (mode == LINK_BEGIN);
    if (nargs != wanted) {
        PyErr_Format(PyExc_TypeError, "wants %zd arguments, has %zd", wanted, nargs);
        return -1;
    }
    *request = (LinkCallRequest){
        .arguments = {.kind = kind, .root = -1},
        .timeout = args[count],
        .label = args[count + 1],
        .mode = mode,
        .value = mode == LINK_BEGIN ? args[count + 2] : Py_None,
    };
    if (!forms[kind].read(self, args, &request->arguments)) return 0;
    bool has_list = link_has_list(&request->arguments);
    request->rest = args + (has_list ? 2 : request->arguments.array_count);
    bool is_elsewhere = kind == AH_KIND_REDUCE && request->arguments.root != self->rank;
    if (is_elsewhere && request->value == args[0]) request->value = Py_None;
    return 1;
}

static PyObject *make_call(PyObject *self_, PyObject *const *args, Py_ssize_t nargs, ah_kind kind,
                           LinkMode mode) {
    LinkCollectivesObject *self = (LinkCollectivesObject *)self_;
    LinkCallRequest request;
    int read = link_collectives_read(self, kind, args, nargs, mode, &request);
    if (read < 0) return NULL;
    if (read == 0) return Py_NewRef(mode == LINK_BEGIN ? Py_None : Py_False);
    /* Another thread may change a list meanwhile. */
    link_hold_arrays(&request.arguments);
    PyObject *result = mode == LINK_BEGIN ? link_collectives_start(self, &request)
                                          : link_collectives_run(self, &request);
    link_release_arrays(&request.arguments);
    return result;
}

static bool find_kind(PyObject *name, ah_kind *kind) {
    for (int i = 0; i < AH_KINDS; i++)
        if (PyUnicode_CompareWithASCIIString(name, kind_names[i]) == 0) {
            *kind = (ah_kind)i;
            return true;
        }
    PyErr_SetString(PyExc_ValueError, "no such kind of calls");
    return false;
}

/* kind, arguments, signature, number, timeout, label, state, waits */
static PyObject *run_step(PyObject *self_, PyObject *args) {
    LinkCollectivesObject *self = (LinkCollectivesObject *)self_;
    PyObject *name, *arguments, *timeout, *label, *all[MOST_ARGUMENTS + 2];
    LinkStep step;
    LinkCallRequest request;
    ah_kind kind;
    int waits;
    if (!PyArg_ParseTuple(args, "UO!OO!OOOp", &name, &PyTuple_Type, &arguments, &step.signature,
                          &PyLong_Type, &step.number, &timeout, &label, &step.state, &waits) ||
        !find_kind(name, &kind))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (count > MOST_ARGUMENTS) return PyErr_Format(PyExc_TypeError, "too many arguments");
    for (Py_ssize_t i = 0; i < count; i++) all[i] = PyTuple_GET_ITEM(arguments, i);
    all[count] = timeout;
    all[count + 1] = label;
    int read = link_collectives_read(self, kind, all, count + 2, LINK_WAIT, &request);
    if (read < 0) return NULL;
    if (read == 0) Py_RETURN_FALSE;
    request.step = step;
    request.value = step.state;
    if (waits) return link_collectives_run(self, &request);
    request.mode = LINK_BEGIN;
    PyObject *begun = link_collectives_start(self, &request);
    if (begun != Py_None) return begun;
    Py_DECREF(begun);
    Py_RETURN_FALSE;
}

#define DEFINE_METHODS(name, kind)                                                                 \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {               \
        return make_call(self, args, nargs, kind, LINK_WAIT);                                      \
    }                                                                                              \
    static PyObject *start_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {       \
        return make_call(self, args, nargs, kind, LINK_BEGIN);                                     \
    }

/* clang-format off */
PLAIN_METHODS(DEFINE_METHODS)
/* clang-format on */

/* ---------------------------------------------------------------- what others ask */

static PyObject *records(LinkCollectivesObject *self, PyObject *given) {
    size_t last = PyLong_AsSize_t(given);
    return PyErr_Occurred() ? NULL : link_log_rows(&self->log, last);
}

static PyObject *call_site(LinkCollectivesObject *self, PyObject *given) {
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    return PyErr_Occurred() ? NULL : link_log_site(&self->log, sequence);
}

static PyObject *start_times(LinkCollectivesObject *self, PyObject *unused) {
    (void)unused;
    return start_times_take(&self->log.start_times);
}

static PyObject *totals(LinkCollectivesObject *self, PyObject *unused) {
    (void)unused;
    return call_totals_tuple(&self->log.totals);
}

static PyObject *get_operation(const LinkCollectivesObject *self) {
    if (self->operation != NULL) return Py_NewRef(self->operation);
    return PyUnicode_FromString(kind_names[self->kind]);
}

static PyObject *inline_call(LinkCollectivesObject *self, PyObject *unused) {
    (void)unused;
    if (self->thread == 0) Py_RETURN_NONE;
    PyObject *name = get_operation(self);
    return Py_BuildValue("kKNO", self->thread, (unsigned long long)self->sequence, name,
                         self->label);
}

static PyObject *last_call(LinkCollectivesObject *self, PyObject *unused) {
    (void)unused;
    if (self->how == NULL) Py_RETURN_NONE;
    return Py_BuildValue("KNnO", (unsigned long long)self->sequence, get_operation(self),
                         (Py_ssize_t)self->nbytes, self->how);
}

static PyObject *is_held(LinkCollectivesObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(!link_collectives_goes_on(self));
}

static PyObject *forget_plans(LinkCollectivesObject *self, PyObject *unused) {
    (void)unused;
    plans_clear(&self->plans);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- life */

static PyObject *collectives_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {
        "thread",    "owner",         "order",    "progress", "group", "signatures", "calls",
        "completed", "note_duration", "checksum", "rank",     "size",  "records",    NULL};
    PyObject *thread, *owner, *order, *progress, *group, *signatures, *calls, *completed, *hear;
    PyObject *checksum;
    int rank, size;
    Py_ssize_t kept;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO!O!O!O!OOiin", names, &thread, &owner,
                                     &order, &progress, &PyLong_Type, &group, &PyDict_Type,
                                     &signatures, &PyDict_Type, &calls, &PyDict_Type, &completed,
                                     &hear, &checksum, &rank, &size, &kept))
        return NULL;
    LinkCollectivesObject *self = (LinkCollectivesObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    plans_init(&self->plans);
    self->order = Py_NewRef(order);
    self->progress = Py_NewRef(progress);
    self->group = Py_NewRef(group);
    self->signatures = Py_NewRef(signatures);
    self->calls = Py_NewRef(calls);
    self->completed = Py_NewRef(completed);
    self->note_duration = Py_NewRef(hear);
    self->checksum = Py_NewRef(checksum);
    self->rank = rank;
    self->size = size;
    if (gate_init(&self->gate, thread, owner) < 0 ||
        (self->lock = gate_find(order, "lock", "acquire")) == NULL ||
        (self->unlock = gate_find(order, "lock", "release")) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    if (!link_log_new(&self->log, kept > 0 ? (size_t)kept : 0)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int collectives_clear(LinkCollectivesObject *self) {
    gate_clear(&self->gate);
    plans_clear(&self->plans);
    Py_CLEAR(self->order);
    Py_CLEAR(self->progress);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->unlock);
    Py_CLEAR(self->note_duration);
    Py_CLEAR(self->checksum);
    return 0;
}

static int collectives_traverse(LinkCollectivesObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->order);
    Py_VISIT(self->progress);
    Py_VISIT(self->note_duration);
    return gate_visit(&self->gate, visit, arg);
}

static void collectives_dealloc(LinkCollectivesObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    collectives_clear(self);
    Py_XDECREF(self->group);
    Py_XDECREF(self->signatures);
    Py_XDECREF(self->calls);
    Py_XDECREF(self->completed);
    Py_XDECREF(self->how);
    Py_XDECREF(self->operation);
    PyMem_Free(self->staging);
    link_log_free(&self->log);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL, NULL
#define METHODS(name, kind) {#name, FAST(name)}, {"start_" #name, FAST(start_##name)},

static PyMethodDef collectives_methods[] = {
    /* clang-format off */
    PLAIN_METHODS(METHODS)
    /* clang-format on */
    {"run_step", run_step, METH_VARARGS, NULL},
    {"records", (PyCFunction)records, METH_O, NULL},
    {"call_site", (PyCFunction)call_site, METH_O, NULL},
    {"start_times", (PyCFunction)start_times, METH_NOARGS, NULL},
    {"totals", (PyCFunction)totals, METH_NOARGS, NULL},
    {"inline_call", (PyCFunction)inline_call, METH_NOARGS, NULL},
    {"last_call", (PyCFunction)last_call, METH_NOARGS, NULL},
    {"is_held", (PyCFunction)is_held, METH_NOARGS, NULL},
    {"forget_plans", (PyCFunction)forget_plans, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef collectives_members[] = {
    {"prepared", T_ULONGLONG, offsetof(LinkCollectivesObject, prepared), 0, NULL},
    {"soon_waiting", T_ULONG, offsetof(LinkCollectivesObject, soon_waiting), 0, NULL},
    {"begun_at", T_DOUBLE, offsetof(LinkCollectivesObject, begun_at), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot collectives_slots[] = {
    {Py_tp_members, collectives_members},
    {Py_tp_new, collectives_new},
    {Py_tp_dealloc, collectives_dealloc},
    {Py_tp_clear, collectives_clear},
    {Py_tp_traverse, collectives_traverse},
    {Py_tp_methods, collectives_methods},
    {0, NULL},
};

static PyType_Spec collectives_spec = {
    .name = "allhands._native.LinkCollectives",
    .basicsize = sizeof(LinkCollectivesObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = collectives_slots,
};

int add_link_collectives_type(PyObject *module) {
    LinkCollectives_Type = (PyTypeObject *)PyType_FromSpec(&collectives_spec);
    if (LinkCollectives_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "LinkCollectives", (PyObject *)LinkCollectives_Type);
}
