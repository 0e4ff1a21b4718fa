/* Messages of arrays whose shapes only the sender knows: a head, and the bytes of the array.
 *
 * collectives/array_messages.py writes and reads the same; the dtype is agreed on by the call.
 */
#ifndef ALLHANDS_ARRAY_MESSAGES_H
#define ALLHANDS_ARRAY_MESSAGES_H

#include "python/arrays.h"

/* Of what NumPy knows at all. */
#define HEAD_DIMS 64
#define HEAD_NUMBERS 4 /* before the dimensions */

/* Little-endian: its bytes, 1 for one array, 0 for no name of a dtype, and the dimensions. */
typedef struct {
    int64_t numbers[HEAD_NUMBERS + HEAD_DIMS];
} ArrayHead;

/* Write the head of an array; returns its bytes. */
size_t array_head_write(ArrayHead *head, PyArrayObject *array);
/* A new reference to the array of a message, of a dtype, in the memory of the message, which is an
 * array of bytes; NULL with an exception. */
PyObject *array_message_read(PyArrayObject *message, PyArray_Descr *dtype);
/* A new array with the content of a contiguous one. */
PyObject *array_copy(PyArrayObject *array);

#endif
