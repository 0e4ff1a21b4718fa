#include "python/vector_calls.h"

#include "python/deadline.h"
#include "python/exchange_call.h"
#include "python/plain_arguments.h"
#include "python/plan.h"
#include "python/received.h"
#include "python/turn.h"

static const char *const operations[] = {"all_gather_v", "gather_v", "all_to_all_v", "scatter_v"};
enum { ALL_GATHER_V, GATHER_V, ALL_TO_ALL_V, SCATTER_V };

static void keep_signed(SignedVector *kept, PyObject *made, PyObject *dtype, int root) {
    Py_XSETREF(kept->call, Py_NewRef(PyTuple_GET_ITEM(made, 0)));
    kept->signature = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(made, 1));
    Py_XSETREF(kept->dtype, Py_NewRef(dtype));
    kept->root = root;
}

/* The call as it travels, of a dtype (None: it is not agreed on) and root (-1: none): mostly as the
 * time before. NULL with an exception. */
static const SignedVector *find_signed(CommObject *self, int which, PyObject *dtype, int root) {
    SignedVector *kept = &self->signed_vectors[which];
    if (kept->dtype == dtype && kept->root == root) return kept;
    PyObject *module = PyImport_ImportModule("allhands.collectives.vector");
    PyObject *made =
        module ? PyObject_CallMethod(module, "sign_arrays", "sOi", operations[which], dtype, root)
               : NULL;
    Py_XDECREF(module);
    if (made == NULL) return NULL;
    keep_signed(kept, made, dtype, root);
    Py_DECREF(made);
    return PyErr_Occurred() ? NULL : kept;
}

/* Run by the thread that has the turn, and give that back. `is_same` and `root` are as in
 * ah_messages. */
static PyObject *run(CommObject *self, const Sources *sources, bool is_same, int root,
                     const SignedVector *made, int64_t limit) {
    PyObject *received = NULL;
    if (made != NULL) {
        ptrdiff_t which = made - self->signed_vectors;
        exchange_plan(&self->plan, sources, is_same, made->call, operations[which],
                      made->signature);
        self->plan.messages.root = root;
        self->plan.messages.to_root = which == GATHER_V;
        self->plan.labelsig = 0;
        received = exchange_run(self, 0, limit, 0, Py_None);
    }
    PyThread_release_lock(self->turn);
    return received;
}

/* Begin a call of so many arrays: 1, with the turn; 0: it is not possible now, and nothing has
 * happened; -1 with an exception. */
static int begin(CommObject *self, int which, int count, Sources *sources, int64_t *limit) {
    *limit = read_plain_limit(self->timeout_ns, Py_None);
    if (self->verifies || self->run_atomic != NULL || *limit <= 0) return 0;
    int entered = comm_try_enter(self, operations[which], Py_None);
    if (entered <= 0 || sources_make_room(sources, 2 * (size_t)count, 0, (size_t)count))
        return entered;
    PyThread_release_lock(self->turn);
    sources_release(sources);
    return -1;
}

/* Arrays for ranks: `count` of them, the first for all ranks or the root, or one for each rank. */
static PyObject *exchange(CommObject *self, int which, PyArrayObject *const *arrays, int count,
                          int root) {
    Sources sources = {0};
    int64_t limit;
    int begun = begin(self, which, count, &sources, &limit);
    if (begun < 0) return NULL;
    if (!begun) Py_RETURN_FALSE;
    for (int at = 0; at < count; at++)
        sources_add_array(&sources, at, root < 0 ? at : root, arrays[at], NULL);
    const SignedVector *made = find_signed(self, which, (PyObject *)PyArray_DESCR(arrays[0]), root);
    PyObject *received = run(self, &sources, which == ALL_GATHER_V, root, made, limit);
    sources_release(&sources);
    if (received == NULL) return NULL;
    PyObject *result = root >= 0 && root != self->rank
                           ? Py_NewRef(Py_None)
                           : list_received_arrays(received, arrays[count == 1 ? 0 : self->rank]);
    Py_DECREF(received);
    return result;
}

/* An array for each rank on the root, none elsewhere. */
static PyObject *scatter(CommObject *self, PyArrayObject *const *arrays, int root) {
    bool is_root = self->rank == root;
    const DtypeName *name = is_root ? find_dtype_name(PyArray_DESCR(arrays[0])) : NULL;
    if (is_root && name == NULL) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    Sources sources = {0};
    int64_t limit;
    int begun = begin(self, SCATTER_V, is_root ? self->size : 0, &sources, &limit);
    if (begun < 0) return NULL;
    if (!begun) Py_RETURN_FALSE;
    for (int rank = 0; is_root && rank < self->size; rank++)
        sources_add_array(&sources, rank, rank, arrays[rank], name);
    const SignedVector *made = find_signed(self, SCATTER_V, Py_None, root);
    PyObject *received = run(self, &sources, !is_root, root, made, limit);
    sources_release(&sources);
    if (received == NULL) return NULL;
    PyObject *result = is_root
                           ? array_copy(arrays[root])
                           : typed_message_read((PyArrayObject *)PyTuple_GET_ITEM(received, root));
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

/* arrays: one for each rank on the root, elsewhere none; root */
PyObject *comm_scatter_v(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 2) return refuse_count(2, nargs);
    int root = plain_rank(self, args[1]);
    if (root < 0) Py_RETURN_FALSE;
    PyArrayObject *arrays[AH_MAX_RANKS];
    PyObject *given = plain_tuple(args[0]);
    if (given == NULL) return NULL;
    bool fits = self->rank == root
                    ? plain_arrays(self, given, arrays)
                    : args[0] == Py_None || (given != Py_None && PyTuple_GET_SIZE(given) == 0);
    PyObject *result = fits ? scatter(self, arrays, root) : Py_NewRef(Py_False);
    Py_DECREF(given);
    return result;
}

/* arrays: one for each rank */
PyObject *comm_all_to_all_v(PyObject *self_, PyObject *const *args, Py_ssize_t nargs) {
    CommObject *self = (CommObject *)self_;
    if (nargs != 1) return refuse_count(1, nargs);
    PyArrayObject *arrays[AH_MAX_RANKS];
    PyObject *given = plain_tuple(args[0]);
    if (given == NULL) return NULL;
    PyObject *result = plain_arrays(self, given, arrays)
                           ? exchange(self, ALL_TO_ALL_V, arrays, self->size, -1)
                           : Py_NewRef(Py_False);
    Py_DECREF(given);
    return result;
}
