/* Messages of arrays whose shapes only the sender knows: a head, and the bytes of the array.
 *
 * collectives/array_messages.py writes and reads the same. The dtype is agreed on by the call, or
 * its name is in the head.
 */
#ifndef ALLHANDS_ARRAY_MESSAGES_H
#define ALLHANDS_ARRAY_MESSAGES_H

#include "python/arrays.h"

/* Of what NumPy knows at all. */
#define HEAD_DIMS 64
#define HEAD_NUMBERS 4 /* before the dimensions */

#define NAME_BYTES 32 /* of the longest name of a dtype in a head that is written here */

/* Little-endian: its bytes, 1 for one array, the bytes of the name of a dtype, the dimensions; then
 * that name. */
typedef struct {
    int64_t numbers[HEAD_NUMBERS + HEAD_DIMS + NAME_BYTES / sizeof(int64_t)];
} ArrayHead;

/* How a dtype travels. */
typedef struct {
    PyObject *dtype; /* NULL: none */
    size_t nbytes;
    char bytes[NAME_BYTES];
} DtypeName;

/* The name of a dtype, kept until that of another is asked for; NULL with an exception, or for one
 * that is longer than the names that are written here. */
const DtypeName *find_dtype_name(PyArray_Descr *dtype);
/* Write the head of an array, with the name of its dtype or NULL; returns its bytes. */
size_t array_head_write(ArrayHead *head, PyArrayObject *array, const DtypeName *name);
/* A new reference to the array of a message, of a dtype, in the memory of the message, which is an
 * array of bytes; NULL with an exception. */
PyObject *array_message_read(PyArrayObject *message, PyArray_Descr *dtype);
/* The same, of the dtype that is named in its head. */
PyObject *typed_message_read(PyArrayObject *message);
/* A new array of the shape and dtype of another, of any content; and one with its content, which is
 * contiguous. */
PyObject *array_new_like(PyArrayObject *array);
PyObject *array_copy(PyArrayObject *array);

#endif
