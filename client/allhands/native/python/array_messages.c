#include "python/array_messages.h"

#include <string.h>

#include "kernels/copy.h"
#include "python/block_pool.h"

#define ALIGNMENT 16 /* of the array in its message */
#define NUMBER (sizeof(int64_t))

static size_t head_bytes(int64_t ndim, size_t name_bytes) {
    size_t nbytes = (HEAD_NUMBERS + (size_t)ndim) * NUMBER + name_bytes;
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t array_head_write(ArrayHead *head, PyArrayObject *array, const DtypeName *name) {
    int ndim = PyArray_NDIM(array);
    size_t name_bytes = name ? name->nbytes : 0, nbytes = head_bytes(ndim, name_bytes);
    int64_t *numbers = head->numbers;
    numbers[0] = (int64_t)nbytes;
    numbers[1] = 1;
    numbers[2] = (int64_t)name_bytes;
    numbers[3] = ndim;
    for (int at = 0; at < ndim; at++) numbers[HEAD_NUMBERS + at] = PyArray_DIM(array, at);
    char *rest = (char *)(numbers + HEAD_NUMBERS + ndim);
    if (name_bytes) memcpy(rest, name->bytes, name_bytes);
    memset(rest + name_bytes, 0, nbytes - (size_t)(rest - (char *)head) - name_bytes);
    return nbytes;
}

/* ---------------------------------------------------------------- names of dtypes */

static PyObject *call_dtypes(const char *function, PyObject *argument) {
    PyObject *module = PyImport_ImportModule("allhands.data.dtypes");
    PyObject *found = module ? PyObject_CallMethod(module, function, "O", argument) : NULL;
    Py_XDECREF(module);
    return found;
}

static void keep_name(DtypeName *kept, const char *bytes, size_t nbytes, PyObject *dtype) {
    if (nbytes > NAME_BYTES) return;
    memcpy(kept->bytes, bytes, nbytes);
    kept->nbytes = nbytes;
    Py_XSETREF(kept->dtype, Py_NewRef(dtype));
}

const DtypeName *find_dtype_name(PyArray_Descr *dtype) {
    static DtypeName kept;
    if (kept.dtype == (PyObject *)dtype) return &kept;
    PyObject *name = call_dtypes("get_dtype_name", (PyObject *)dtype);
    Py_ssize_t nbytes;
    const char *bytes = name ? PyUnicode_AsUTF8AndSize(name, &nbytes) : NULL;
    if (bytes != NULL) keep_name(&kept, bytes, (size_t)nbytes, (PyObject *)dtype);
    Py_XDECREF(name);
    return kept.dtype == (PyObject *)dtype ? &kept : NULL;
}

/* A new reference to the dtype of a name; NULL with an exception. */
static PyArray_Descr *find_named_dtype(const char *bytes, size_t nbytes) {
    static DtypeName kept;
    if (kept.dtype != NULL && kept.nbytes == nbytes && memcmp(kept.bytes, bytes, nbytes) == 0)
        return (PyArray_Descr *)Py_NewRef(kept.dtype);
    PyObject *name = PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)nbytes, NULL);
    PyObject *dtype = name ? call_dtypes("parse_dtype", name) : NULL;
    Py_XDECREF(name);
    if (dtype != NULL) keep_name(&kept, bytes, nbytes, dtype);
    return (PyArray_Descr *)dtype;
}

/* ---------------------------------------------------------------- messages that came */

/* What a head says. */
typedef struct {
    int ndim;
    npy_intp dims[HEAD_DIMS];
    const char *name;
    size_t name_bytes;
    size_t nbytes; /* of the head */
} Head;

/* false with an exception: it is of no array. */
static bool read_head(PyArrayObject *message, Head *head) {
    const char *data = PyArray_DATA(message);
    size_t nbytes = (size_t)PyArray_NBYTES(message);
    int64_t numbers[HEAD_NUMBERS];
    if (nbytes < sizeof numbers) {
        PyErr_Format(PyExc_ValueError, "what came is no array: it has %zu bytes", nbytes);
        return false;
    }
    memcpy(numbers, data, sizeof numbers);
    int64_t name_bytes = numbers[2], ndim = numbers[3];
    if (numbers[1] != 1 || name_bytes < 0 || (uint64_t)name_bytes > nbytes || ndim < 0 ||
        ndim > HEAD_DIMS || (size_t)numbers[0] != head_bytes(ndim, (size_t)name_bytes) ||
        nbytes < head_bytes(ndim, (size_t)name_bytes)) {
        PyErr_Format(PyExc_ValueError, "what came is no array: its head is of no array");
        return false;
    }
    head->ndim = (int)ndim;
    for (int at = 0; at < ndim; at++) {
        int64_t dim;
        memcpy(&dim, data + (HEAD_NUMBERS + (size_t)at) * NUMBER, sizeof dim);
        head->dims[at] = (npy_intp)dim;
    }
    head->name = data + (HEAD_NUMBERS + (size_t)ndim) * NUMBER;
    head->name_bytes = (size_t)name_bytes;
    head->nbytes = (size_t)numbers[0];
    return true;
}

static bool multiply(size_t *product, int64_t factor) {
    return factor >= 0 && !__builtin_mul_overflow(*product, (size_t)factor, product);
}

static PyObject *read_data(PyArrayObject *message, const Head *head, PyArray_Descr *dtype) {
    size_t nbytes = (size_t)PyArray_NBYTES(message) - head->nbytes;
    size_t wanted = (size_t)PyDataType_ELSIZE(dtype);
    bool fits = true;
    for (int at = 0; at < head->ndim; at++) fits = fits && multiply(&wanted, head->dims[at]);
    if (!fits || wanted != nbytes)
        return PyErr_Format(PyExc_ValueError, "%zu bytes came for an array of other bytes", nbytes);
    return array_over((PyObject *)message, (char *)PyArray_DATA(message) + head->nbytes, head->ndim,
                      head->dims, (PyArray_Descr *)Py_NewRef((PyObject *)dtype));
}

PyObject *array_message_read(PyArrayObject *message, PyArray_Descr *dtype) {
    Head head;
    if (!read_head(message, &head)) return NULL;
    if (head.name_bytes)
        return PyErr_Format(PyExc_ValueError, "what came is no array: its head is of no array");
    return read_data(message, &head, dtype);
}

PyObject *typed_message_read(PyArrayObject *message) {
    Head head;
    if (!read_head(message, &head)) return NULL;
    PyArray_Descr *dtype = find_named_dtype(head.name, head.name_bytes);
    PyObject *array = dtype ? read_data(message, &head, dtype) : NULL;
    Py_XDECREF(dtype);
    return array;
}

/* ---------------------------------------------------------------- new arrays */

PyObject *array_new_like(PyArrayObject *array) {
    size_t nbytes = (size_t)PyArray_NBYTES(array);
    if (nbytes < POOL_SMALLEST) return PyArray_NewLikeArray(array, NPY_CORDER, NULL, 0);
    PyObject *memory = pool_new_array(nbytes);
    if (memory == NULL) return NULL;
    PyObject *made = array_over(memory, PyArray_DATA((PyArrayObject *)memory), PyArray_NDIM(array),
                                PyArray_DIMS(array),
                                (PyArray_Descr *)Py_NewRef((PyObject *)PyArray_DESCR(array)));
    Py_DECREF(memory);
    return made;
}

PyObject *array_copy(PyArrayObject *array) {
    PyObject *copy = array_new_like(array);
    if (copy != NULL)
        ah_copy_bytes(PyArray_DATA((PyArrayObject *)copy), PyArray_DATA(array),
                      (size_t)PyArray_NBYTES(array));
    return copy;
}
