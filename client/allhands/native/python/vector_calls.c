#include "python/vector_calls.h"

#include "python/deadline.h"
#include "python/exchange_call.h"
#include "python/plain_arguments.h"
#include "python/plan.h"
#include "python/turn.h"

static const char *const operations[] = {"all_gather_v", "gather_v", "all_to_all_v"};
enum { ALL_GATHER_V, GATHER_V, ALL_TO_ALL_V };

static void keep_signed(SignedVector *kept, PyObject *made, PyArray_Descr *dtype, int root) {
    Py_XSETREF(kept->call, Py_NewRef(PyTuple_GET_ITEM(made, 0)));
    kept->signature = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(made, 1));
    Py_XSETREF(kept->dtype, Py_NewRef((PyObject *)dtype));
    kept->root = root;
}

/* The call as it travels, of a dtype and root (-1: none): mostly as the time before. NULL with an
 * exception. */
static const SignedVector *find_signed(CommObject *self, int which, PyArray_Descr *dtype,
                                       int root) {
    SignedVector *kept = &self->signed_vectors[which];
    if (kept->dtype == (PyObject *)dtype && kept->root == root) return kept;
    PyObject *module = PyImport_ImportModule("allhands.collectives.vector");
    PyObject *made = module ? PyObject_CallMethod(module, "sign_arrays", "sOi", operations[which],
                                                  (PyObject *)dtype, root)
                            : NULL;
    Py_XDECREF(module);
    if (made == NULL) return NULL;
    keep_signed(kept, made, dtype, root);
    Py_DECREF(made);
    return PyErr_Occurred() ? NULL : kept;
}

/* Run by the thread that has the turn, and give that back. */
static PyObject *run(CommObject *self, const Sources *sources, int which, PyArray_Descr *dtype,
                     int root, int64_t limit) {
    PyObject *received = NULL;
    const SignedVector *made = find_signed(self, which, dtype, root);
    if (made != NULL) {
        exchange_plan(&self->plan, sources, which == ALL_GATHER_V, made->call, operations[which],
                      made->signature);
        self->plan.labelsig = 0;
        received = exchange_run(self, 0, limit, 0, Py_None);
    }
    PyThread_release_lock(self->turn);
    return received;
}

/* Arrays for ranks: `count` of them, the first for all ranks or the root, or one for each rank. */
static PyObject *exchange(CommObject *self, int which, PyArrayObject *const *arrays, int count,
                          int root) {
    int64_t limit = read_plain_limit(self->timeout_ns, Py_None);
    if (self->verifies || self->run_atomic != NULL || limit <= 0) Py_RETURN_FALSE;
    int entered = comm_try_enter(self, operations[which], Py_None);
    if (entered < 0) return NULL;
    if (!entered) Py_RETURN_FALSE;
    Sources sources = {0};
    if (!sources_make_room(&sources, 2 * (size_t)count, 0, (size_t)count)) {
        PyThread_release_lock(self->turn);
        sources_release(&sources);
        return NULL;
    }
    for (int at = 0; at < count; at++)
        sources_add_array(&sources, at, root < 0 ? at : root, arrays[at]);
    PyObject *received = run(self, &sources, which, PyArray_DESCR(arrays[0]), root, limit);
    sources_release(&sources);
    if (received == NULL) return NULL;
    PyObject *result = root >= 0 && root != self->rank
                           ? Py_NewRef(Py_None)
                           : exchange_list_arrays(received, arrays[count == 1 ? 0 : self->rank]);
    Py_DECREF(received);
    return result;
}

static PyObject *refuse_count(Py_ssize_t wanted, Py_ssize_t nargs) {
    return PyErr_Format(PyExc_TypeError, "wants %zd arguments, has %zd", wanted, nargs);
}

/* x */
PyObject *comm_all_gather_v(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 1) return refuse_count(1, nargs);
    PyArrayObject *x = plain_array(args[0], false);
    if (x == NULL) Py_RETURN_FALSE;
    return exchange((CommObject *)self, ALL_GATHER_V, &x, 1, -1);
}

/* x, root */
PyObject *comm_gather_v(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) return refuse_count(2, nargs);
    PyArrayObject *x = plain_array(args[0], false);
    int root = plain_rank((CommObject *)self, args[1]);
    if (x == NULL || root < 0) Py_RETURN_FALSE;
    return exchange((CommObject *)self, GATHER_V, &x, 1, root);
}

/* One array for each rank; another thread may change a list meanwhile. */
PyObject *comm_all_to_all_v(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 1) return refuse_count(1, nargs);
    PyObject *given = PyList_CheckExact(args[0])    ? PyList_AsTuple(args[0])
                      : PyTuple_CheckExact(args[0]) ? Py_NewRef(args[0])
                                                    : Py_NewRef(Py_False);
    if (given == NULL) return NULL;
    PyArrayObject *arrays[AH_MAX_RANKS];
    bool are_plain = given != Py_False && PyTuple_GET_SIZE(given) == self->size;
    for (int rank = 0; are_plain && rank < self->size; rank++) {
        arrays[rank] = plain_array(PyTuple_GET_ITEM(given, rank), false);
        are_plain = arrays[rank] != NULL && PyArray_DESCR(arrays[rank]) == PyArray_DESCR(arrays[0]);
    }
    PyObject *result =
        are_plain ? exchange(self, ALL_TO_ALL_V, arrays, self->size, -1) : Py_NewRef(Py_False);
    Py_DECREF(given);
    return result;
}
