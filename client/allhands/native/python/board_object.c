#include "python/board_object.h"

#include <string.h>

#include "comm/host.h"
#include "kernels/copy.h"
#include "python/arrays.h"
#include "python/segment_object.h"

#define NANOSECONDS 1e9

typedef struct {
    PyObject_HEAD
    ah_board board;
    PyObject *segments; /* what keeps the areas mapped */
} BoardObject;

static PyTypeObject *Board_Type;

ah_board *board_of(PyObject *object) {
    if (Py_IS_TYPE(object, Board_Type)) return &((BoardObject *)object)->board;
    PyErr_SetString(PyExc_TypeError, "a board is a HostBoard");
    return NULL;
}

static PyObject *board_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", "segments", "offsets", "capacity", NULL};
    int rank;
    PyObject *segments, *offsets;
    Py_ssize_t capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!O!n", names, &rank, &PyTuple_Type, &segments,
                                     &PyTuple_Type, &offsets, &capacity))
        return NULL;
    Py_ssize_t size = PyTuple_GET_SIZE(segments);
    if (size < 1 || size > AH_BOARD_RANKS || rank < 0 || rank >= size || capacity < 0 ||
        PyTuple_GET_SIZE(offsets) != size)
        return PyErr_Format(PyExc_ValueError, "no such board");
    void *areas[AH_BOARD_RANKS];
    if (!segment_areas(segments, offsets, ah_board_bytes((size_t)capacity), areas)) return NULL;
    BoardObject *self = (BoardObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    ah_board_init(&self->board, rank, (int)size, areas, (size_t)capacity);
    self->segments = Py_NewRef(segments);
    return (PyObject *)self;
}

static void board_dealloc(BoardObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->segments);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static bool is_rank(const BoardObject *self, int rank) {
    if (rank >= 0 && rank < self->board.size) return true;
    PyErr_SetString(PyExc_ValueError, "no such rank on the board");
    return false;
}

static bool is_plain(PyObject *array, int flags) {
    if (PyArray_Check(array) && PyArray_CHKFLAGS((PyArrayObject *)array, flags)) return true;
    PyErr_SetString(PyExc_TypeError, "arrays must be contiguous, and writeable if written");
    return false;
}

static PyObject *board_over(BoardObject *self, PyObject *given) {
    unsigned long long number = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) return NULL;
    ah_board_over(&self->board, number);
    Py_RETURN_NONE;
}

static PyObject *board_give_up(BoardObject *self, PyObject *given) {
    unsigned long long number = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) return NULL;
    ah_board_give_up(&self->board, number);
    Py_RETURN_NONE;
}

static PyObject *board_full(BoardObject *self, PyObject *given) {
    unsigned long long number = PyLong_AsUnsignedLongLong(given);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(ah_board_full(&self->board, number));
}

static PyObject *board_post(BoardObject *self, PyObject *args) {
    unsigned long long number, signature;
    PyObject *arrays;
    if (!PyArg_ParseTuple(args, "KKO!", &number, &signature, &PyTuple_Type, &arrays)) return NULL;
    size_t total = 0;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(arrays); at++) {
        if (!is_plain(PyTuple_GET_ITEM(arrays, at), NPY_ARRAY_C_CONTIGUOUS)) return NULL;
        total += (size_t)PyArray_NBYTES((PyArrayObject *)PyTuple_GET_ITEM(arrays, at));
    }
    if (total > self->board.capacity || ah_board_full(&self->board, number) >= 0)
        return PyErr_Format(PyExc_ValueError, "there is no room for that");
    char *to = ah_board_room(&self->board, number);
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(arrays); at++) {
        PyArrayObject *one = (PyArrayObject *)PyTuple_GET_ITEM(arrays, at);
        ah_copy_bytes(to, PyArray_DATA(one), (size_t)PyArray_NBYTES(one));
        to += PyArray_NBYTES(one);
    }
    ah_board_post(&self->board, number, signature, total);
    Py_RETURN_NONE;
}

static PyObject *board_look(BoardObject *self, PyObject *args) {
    int rank;
    unsigned long long number, signature;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "iKKn", &rank, &number, &signature, &nbytes) ||
        !is_rank(self, rank))
        return NULL;
    return PyLong_FromLong(ah_board_look(&self->board, rank, number, signature, (size_t)nbytes));
}

static PyObject *board_read(BoardObject *self, PyObject *args) {
    int rank;
    unsigned long long number;
    Py_ssize_t from;
    PyObject *into;
    if (!PyArg_ParseTuple(args, "iKnO", &rank, &number, &from, &into) || !is_rank(self, rank) ||
        !is_plain(into, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE))
        return NULL;
    size_t nbytes = (size_t)PyArray_NBYTES((PyArrayObject *)into);
    if (from < 0 || (size_t)from > self->board.capacity ||
        nbytes > self->board.capacity - (size_t)from)
        return PyErr_Format(PyExc_ValueError, "no post is so long");
    ah_copy_bytes(PyArray_DATA((PyArrayObject *)into),
                  ah_board_data(&self->board, rank, number) + from, nbytes);
    Py_RETURN_NONE;
}

static PyObject *board_wait(BoardObject *self, PyObject *args) {
    int rank, room, there;
    unsigned long long number;
    double seconds, spin;
    if (!PyArg_ParseTuple(args, "iKpdd", &rank, &number, &room, &seconds, &spin) ||
        !is_rank(self, rank))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    there =
        ah_board_wait(&self->board, rank, number, room, ah_now() + (int64_t)(seconds * NANOSECONDS),
                      (int64_t)(spin * NANOSECONDS));
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(there);
}

static PyObject *board_wake(BoardObject *self, PyObject *unused) {
    (void)unused;
    ah_board_wake(&self->board);
    Py_RETURN_NONE;
}

static PyMethodDef board_methods[] = {
    {"over", (PyCFunction)board_over, METH_O, NULL},
    {"give_up", (PyCFunction)board_give_up, METH_O, NULL},
    {"full", (PyCFunction)board_full, METH_O, NULL},
    {"post", (PyCFunction)board_post, METH_VARARGS, NULL},
    {"look", (PyCFunction)board_look, METH_VARARGS, NULL},
    {"read", (PyCFunction)board_read, METH_VARARGS, NULL},
    {"wait", (PyCFunction)board_wait, METH_VARARGS, NULL},
    {"wake", (PyCFunction)board_wake, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot board_slots[] = {
    {Py_tp_new, board_new},
    {Py_tp_dealloc, board_dealloc},
    {Py_tp_methods, board_methods},
    {0, NULL},
};

static PyType_Spec board_spec = {
    .name = "allhands._native.HostBoard",
    .basicsize = sizeof(BoardObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = board_slots,
};

static PyObject *board_bytes(PyObject *unused, PyObject *given) {
    (void)unused;
    size_t capacity = PyLong_AsSize_t(given);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(ah_board_bytes(capacity));
}

static PyMethodDef functions[] = {
    {"board_bytes", board_bytes, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int add_board_type(PyObject *module) {
    Board_Type = (PyTypeObject *)PyType_FromSpec(&board_spec);
    if (Board_Type == NULL || PyModule_AddFunctions(module, functions) < 0) return -1;
    return PyModule_AddObjectRef(module, "HostBoard", (PyObject *)Board_Type);
}
