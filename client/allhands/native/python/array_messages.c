#include "python/array_messages.h"

#include <string.h>

#include "python/block_pool.h"

#define ALIGNMENT 16 /* of the array in its message */
#define NUMBER (sizeof(int64_t))

static size_t head_bytes(int64_t ndim) {
    size_t nbytes = (HEAD_NUMBERS + (size_t)ndim) * NUMBER;
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t array_head_write(ArrayHead *head, PyArrayObject *array) {
    int ndim = PyArray_NDIM(array);
    size_t nbytes = head_bytes(ndim);
    int64_t *numbers = head->numbers;
    numbers[0] = (int64_t)nbytes;
    numbers[1] = 1;
    numbers[2] = 0;
    numbers[3] = ndim;
    for (int at = 0; at < ndim; at++) numbers[HEAD_NUMBERS + at] = PyArray_DIM(array, at);
    if (nbytes > (HEAD_NUMBERS + (size_t)ndim) * NUMBER) numbers[HEAD_NUMBERS + ndim] = 0;
    return nbytes;
}

static bool multiply(size_t *product, int64_t factor) {
    return factor >= 0 && !__builtin_mul_overflow(*product, (size_t)factor, product);
}

PyObject *array_message_read(PyArrayObject *message, PyArray_Descr *dtype) {
    const char *data = PyArray_DATA(message);
    size_t nbytes = (size_t)PyArray_NBYTES(message);
    int64_t numbers[HEAD_NUMBERS];
    npy_intp dims[HEAD_DIMS];
    if (nbytes < sizeof numbers)
        return PyErr_Format(PyExc_ValueError, "what came is no array: it has %zu bytes", nbytes);
    memcpy(numbers, data, sizeof numbers);
    int64_t ndim = numbers[3];
    if (numbers[1] != 1 || numbers[2] != 0 || ndim < 0 || ndim > HEAD_DIMS ||
        (size_t)numbers[0] != head_bytes(ndim) || nbytes < head_bytes(ndim))
        return PyErr_Format(PyExc_ValueError, "what came is no array: its head is of no array");
    size_t wanted = (size_t)PyDataType_ELSIZE(dtype);
    bool fits = true;
    for (int at = 0; at < ndim; at++) {
        int64_t dim;
        memcpy(&dim, data + (HEAD_NUMBERS + (size_t)at) * NUMBER, sizeof dim);
        fits = fits && multiply(&wanted, dim);
        dims[at] = (npy_intp)dim;
    }
    if (!fits || wanted != nbytes - head_bytes(ndim))
        return PyErr_Format(PyExc_ValueError, "%zu bytes came for an array of other bytes",
                            nbytes - head_bytes(ndim));
    return array_over((PyObject *)message, (char *)PyArray_DATA(message) + head_bytes(ndim),
                      (int)ndim, dims, (PyArray_Descr *)Py_NewRef((PyObject *)dtype));
}

PyObject *array_copy(PyArrayObject *array) {
    size_t nbytes = (size_t)PyArray_NBYTES(array);
    if (nbytes < POOL_SMALLEST) return PyArray_NewCopy(array, NPY_CORDER);
    PyObject *memory = pool_new_array(nbytes);
    if (memory == NULL) return NULL;
    memcpy(PyArray_DATA((PyArrayObject *)memory), PyArray_DATA(array), nbytes);
    PyObject *copy = array_over(memory, PyArray_DATA((PyArrayObject *)memory), PyArray_NDIM(array),
                                PyArray_DIMS(array),
                                (PyArray_Descr *)Py_NewRef((PyObject *)PyArray_DESCR(array)));
    Py_DECREF(memory);
    return copy;
}
