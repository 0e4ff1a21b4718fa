#include "python/received.h"

#include "python/array_messages.h"

PyObject *take_received(CommObject *self) {
    PyObject *received = self->received;
    self->received = NULL;
    return received ? received : PyTuple_Pack(1, Py_None); /* one rank alone */
}

PyObject *list_received_arrays(PyObject *received, PyArrayObject *own) {
    Py_ssize_t size = PyTuple_GET_SIZE(received);
    PyObject *arrays = PyList_New(size);
    for (Py_ssize_t rank = 0; rank < size && arrays != NULL; rank++) {
        PyObject *message = PyTuple_GET_ITEM(received, rank);
        PyObject *array = message == Py_None
                              ? array_copy(own)
                              : array_message_read((PyArrayObject *)message, PyArray_DESCR(own));
        if (array == NULL)
            Py_CLEAR(arrays);
        else
            PyList_SET_ITEM(arrays, rank, array);
    }
    return arrays;
}
