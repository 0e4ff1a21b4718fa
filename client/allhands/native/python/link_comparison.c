#include "python/link_comparison.h"

static PyArrayObject *as_array(PyObject *array) { return (PyArrayObject *)array; }

static ah_piece piece_of(PyObject *array) {
    return (ah_piece){PyArray_DATA(as_array(array)), (size_t)PyArray_NBYTES(as_array(array))};
}

/* Find the memory of the areas of an exchange. */
static void locate(LinkComparison *self, ah_memory memory[AH_AREAS]) {
    self->pieces[AH_AREA_INPUT] = piece_of(self->mine);
    self->pieces[AH_AREA_OUTPUT] = piece_of(self->digests);
    self->pieces[AH_AREA_SCRATCH] = piece_of(self->scratch);
    for (int area = 0; area < AH_AREAS; area++) memory[area] = (ah_memory){&self->pieces[area], 1};
}

static bool is_digests(PyObject *array) {
    return PyArray_Check(array) && PyArray_IS_C_CONTIGUOUS(as_array(array)) &&
           PyArray_ISWRITEABLE(as_array(array)) && PyArray_TYPE(as_array(array)) == NPY_UINT64;
}

bool link_comparison_read(LinkComparison *self, bool has_array, PyObject *row) {
    PyObject *call, *compiled, *ranks, *mine, *digests, *scratch;
    int is_same;
    if (row == Py_None) return true;
    if (!PyTuple_Check(row)) {
        PyErr_SetString(PyExc_TypeError, "a comparison is a tuple");
        return false;
    }
    if (!PyArg_ParseTuple(row, "O!OO!OOO!p", LinkCall_Type, &call, &compiled, &PyTuple_Type, &ranks,
                          &mine, &digests, &PyArray_Type, &scratch, &is_same))
        return false;
    if (!is_digests(mine) || !is_digests(digests) || PyArray_SIZE(as_array(mine)) < 1 ||
        (is_same && !has_array)) {
        PyErr_SetString(PyExc_ValueError, "no such comparison");
        return false;
    }
    self->mine = Py_NewRef(mine);
    self->digests = Py_NewRef(digests);
    self->scratch = Py_NewRef(scratch);
    self->is_same = is_same;
    if (!link_schedule_read(&self->schedule, call, compiled, ranks)) return false;
    ah_memory memory[AH_AREAS];
    locate(self, memory);
    if (link_call_fits(self->schedule.call, memory)) return true;
    PyErr_SetString(PyExc_ValueError, "a comparison exchanges one digest of each rank");
    return false;
}

void link_comparison_clear(LinkComparison *self) {
    link_schedule_clear(&self->schedule);
    Py_XDECREF(self->mine);
    Py_XDECREF(self->digests);
    Py_XDECREF(self->scratch);
}

/* The digest of a result, as compute_digest has it; -1 with an exception. */
static int compute_digest(PyArrayObject *result, PyObject *checksum, uint64_t *digest) {
    PyObject *bytes =
        PyMemoryView_FromMemory(PyArray_DATA(result), PyArray_NBYTES(result), PyBUF_READ);
    PyObject *made = bytes == NULL ? NULL : PyObject_CallOneArg(checksum, bytes);
    Py_XDECREF(bytes);
    if (made == NULL) return -1;
    *digest = PyLong_AsUnsignedLongLong(made);
    Py_DECREF(made);
    return PyErr_Occurred() ? -1 : 0;
}

int link_comparison_begin(LinkComparison *self, uint64_t sequence, PyArrayObject *result,
                          PyObject *checksum) {
    uint64_t *mine = PyArray_DATA(as_array(self->mine));
    ah_memory memory[AH_AREAS];
    *mine = 0; /* where results differ by rank */
    if (self->is_same && compute_digest(result, checksum, mine) < 0) return -1;
    locate(self, memory);
    link_call_begin(self->schedule.call, sequence, self->schedule.call->signature, memory);
    return 0;
}

bool link_comparison_agrees(const LinkComparison *self) {
    const uint64_t *all = PyArray_DATA(as_array(self->digests));
    for (npy_intp i = 1; i < PyArray_SIZE(as_array(self->digests)); i++)
        if (all[i] != all[0]) return false;
    return true;
}
