#include "python/call_records.h"

#include <stdlib.h>
#include <string.h>

#include "python/async_queue.h"
#include "python/call_site.h"
#include "python/record_ring.h"

const char *const variant_names[] = {
    [AH_NONE] = "nothing",  [AH_SLOTS] = "slots",         [AH_STAGED] = "staged",
    [AH_SWAP] = "swap",     [AH_MAILBOXES] = "mailboxes", [AH_DIRECT] = "direct",
    [AH_ATTACH] = "attach",
};

bool records_new(CommObject *self, size_t wanted) {
    size_t count = ring_size(wanted);
    self->records = aligned_alloc(_Alignof(Record), count * sizeof(Record));
    self->shapes = calloc(count, sizeof(Shape)); /* untouched pages cost nothing */
    if (self->records == NULL || self->shapes == NULL) {
        free(self->records);
        self->records = NULL;
        return false;
    }
    memset(self->records, 0, count * sizeof(Record));
    self->mask = count - 1;
    self->records_all = wanted > 0;
    start_times_init(&self->start_times);
    return true;
}

void records_free(CommObject *self) {
    for (size_t at = 0; self->records != NULL && at <= self->mask; at++) {
        if (self->records[at].ndim == SHAPE_LONG) Py_DECREF(self->shapes[at].tuple);
        Py_XDECREF(self->records[at].dtype);
        Py_XDECREF(self->records[at].code);
        Py_XDECREF(self->records[at].label);
    }
    free(self->records);
    free(self->shapes);
}

PyObject *record_shape(const CommObject *self, const Record *record) {
    const Shape *kept = &self->shapes[record - self->records];
    if (record->ndim == SHAPE_NONE) Py_RETURN_NONE;
    if (record->ndim == SHAPE_LONG) return Py_NewRef(kept->tuple);
    if (record->ndim == 1) return Py_BuildValue("(n)", (Py_ssize_t)record->amount);
    PyObject *shape = PyTuple_New(record->ndim);
    for (int at = 0; shape != NULL && at < record->ndim; at++) {
        PyObject *one = PyLong_FromSsize_t(kept->dims[at]);
        if (one == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, at, one);
    }
    return shape;
}

PyObject *call_splits(const CommObject *self, ah_kind kind) {
    if (!ah_kind_has_splits(kind)) Py_RETURN_NONE;
    PyObject *both = PyList_New(0);
    for (int at = 0; both != NULL && at < 2 * self->size; at++) {
        const size_t *nbytes = at < self->size ? self->plan.send : self->plan.recv;
        PyObject *one = PyLong_FromSize_t(nbytes[at % self->size]);
        if (one == NULL || PyList_Append(both, one) < 0) Py_CLEAR(both);
        Py_XDECREF(one);
    }
    return both;
}

/* Whether it is a composite call, which stands for the dtype. */
static bool is_composite(const Record *record) {
    return record->dtype != NULL && !PyArray_DescrCheck(record->dtype);
}

PyObject *record_operation(const Record *record) {
    if (is_composite(record)) return PyObject_GetAttrString(record->dtype, "operation");
    return PyUnicode_FromString(kind_names[record->kind]);
}

size_t record_bytes(const Record *record) {
    if (is_composite(record) || ah_kind_has_splits((ah_kind)record->kind)) return record->amount;
    PyArray_Descr *dtype = (PyArray_Descr *)record->dtype;
    return dtype == NULL ? 0 : record->amount * (size_t)PyDataType_ELSIZE(dtype);
}

static size_t record_count(const Record *record) {
    if (is_composite(record) || ah_kind_has_splits((ah_kind)record->kind)) return 0;
    return record->amount;
}

/* The record of a number given; NULL: there is none any more, or with an exception. */
static const Record *find_record(CommObject *self, PyObject *given) {
    unsigned long long sequence = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || sequence == 0) return NULL;
    const Record *record = record_of(self, sequence);
    return record->sequence == sequence ? record : NULL;
}

static PyObject *none_or_error(void) {
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

PyObject *comm_describe(CommObject *self, PyObject *given) {
    const Record *record = find_record(self, given);
    if (record == NULL) return none_or_error();
    PyObject *ragged = record->sequence == self->begun ? call_splits(self, (ah_kind)record->kind)
                                                       : Py_NewRef(Py_None);
    PyObject *shape = ragged == NULL ? NULL : record_shape(self, record);
    if (shape == NULL) {
        Py_XDECREF(ragged);
        return NULL;
    }
    return Py_BuildValue("NOniiNNO", record_operation(record),
                         record->dtype ? record->dtype : Py_None, (Py_ssize_t)record_count(record),
                         record->op, record->root, ragged, shape,
                         record->label ? record->label : Py_None);
}

static PyObject *site_of(const Record *record) {
    if (record->code == NULL) Py_RETURN_NONE;
    return call_site_tuple(record->code, record->instruction);
}

PyObject *comm_call_site(CommObject *self, PyObject *given) {
    const Record *record = find_record(self, given);
    return record == NULL ? none_or_error() : site_of(record);
}

static PyObject *row(void *comm, uint64_t sequence) {
    CommObject *self = comm;
    const Record *one = record_of(self, sequence);
    if (one->sequence != sequence) return NULL; /* of a call not made here, or overwritten */
    /* What follows may let another thread go on with the ring: with references of its own. */
    Record record = *one;
    Py_XINCREF(record.dtype);
    Py_XINCREF(record.code);
    Py_XINCREF(record.label);
    int outcome = record.outcome_bits & 15;
    bool runs = outcome == OUTCOME_RUNNING && record.sequence == self->begun;
    PyObject *shape = record_shape(self, one), *source = site_of(&record), *made = NULL;
    if (source == NULL || shape == NULL) {
        Py_XDECREF(source);
        Py_XDECREF(shape);
    } else
        made = Py_BuildValue(
            "KNOnniiLLisONOKN", (unsigned long long)record.sequence, record_operation(&record),
            record.dtype ? record.dtype : Py_None, (Py_ssize_t)record_count(&record),
            (Py_ssize_t)record_bytes(&record), record.op, record.root, (long long)record.started,
            (long long)record.finished, outcome, variant_names[record.outcome_bits >> 4 & 7],
            record.outcome_bits & RECORD_QUEUED ? Py_True : Py_False, source,
            record.label ? record.label : Py_None, (unsigned long long)(runs ? self->waiting : 0),
            shape);
    Py_XDECREF(record.dtype);
    Py_XDECREF(record.code);
    Py_XDECREF(record.label);
    return made;
}

PyObject *comm_records(CommObject *self, PyObject *given) {
    size_t last = PyLong_AsSize_t(given);
    if (PyErr_Occurred()) return NULL;
    if (!self->records_all) last = 0;
    uint64_t queued = async_last_number(self);
    return ring_rows(self, self->mask + 1, queued > self->begun ? queued : self->begun, last, row);
}

PyObject *comm_set_outcome(CommObject *self, PyObject *args) {
    unsigned long long sequence;
    int outcome;
    if (!PyArg_ParseTuple(args, "Ki", &sequence, &outcome)) return NULL;
    if (outcome <= OUTCOME_RUNNING || outcome >= OUTCOMES)
        return PyErr_Format(PyExc_ValueError, "no such outcome: %d", outcome);
    Record *record = record_of(self, sequence);
    if (record->sequence == sequence)
        record->outcome_bits = (uint8_t)((record->outcome_bits & ~15) | outcome);
    Py_RETURN_NONE;
}

/* A tuple of names, in the order of their numbers; NULL with an exception. */
static PyObject *tuple_of(const char *const names[], int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int at = 0; tuple != NULL && at < count; at++) {
        PyObject *name = PyUnicode_FromString(names[at]);
        if (name == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, at, name);
    }
    return tuple;
}

static int add_tuple(PyObject *module, const char *constant, PyObject *tuple) {
    int failed = tuple == NULL ? -1 : PyModule_AddObjectRef(module, constant, tuple);
    Py_XDECREF(tuple);
    return failed;
}

int add_record_constants(PyObject *module) {
    static const char *const outcomes[OUTCOMES] = {
        [OUTCOME_RUNNING] = "running",     [OUTCOME_OK] = "ok",
        [OUTCOME_TIMEOUT] = "timeout",     [OUTCOME_MISMATCH] = "mismatch",
        [OUTCOME_ABORTED] = "aborted",     [OUTCOME_FAILED] = "failed",
        [OUTCOME_CANCELLED] = "cancelled",
    };
    if (add_tuple(module, "OUTCOMES", tuple_of(outcomes, OUTCOMES)) < 0 ||
        add_tuple(module, "KINDS", tuple_of(kind_names, AH_KINDS)) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "STARTS_KEPT", STARTS_KEPT);
}

PyObject *comm_totals(CommObject *self, PyObject *unused) {
    (void)unused;
    return call_totals_tuple(&self->totals);
}

PyObject *comm_start_times(CommObject *self, PyObject *unused) {
    (void)unused;
    return start_times_take(&self->start_times);
}
