#include "python/record_ring.h"

size_t ring_size(size_t wanted) {
    size_t size = RECORDS_LEAST;
    while (size < wanted) size *= 2;
    return size;
}

PyObject *ring_rows(void *ring, size_t size, uint64_t newest, size_t last, ring_row row) {
    PyObject *list = PyList_New(0);
    uint64_t count = last < size ? last : size;
    uint64_t number = newest > count ? newest - count + 1 : 1;
    for (; list != NULL && number <= newest; number++) {
        PyObject *one = row(ring, number);
        if (one == NULL ? PyErr_Occurred() != NULL : PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}
