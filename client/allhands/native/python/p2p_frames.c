#define _GNU_SOURCE
/* Messages that have an envelope: frames with a head of numbers, and small data in the frame
 * itself; larger data in a message behind it. `allhands.mpi.progress.frames` has the layout. */
#include <string.h>

#include "kernels/copy.h"
#include "python/buffer_spec.h"
#include "python/deadline.h"
#include "python/p2p_object_state.h"

#define FRAME_TAG 0
#define DATA_TAGS ((1LL << 31) - 2)
#define KIND_MESSAGE 1

typedef struct {
    int64_t kind, context, nbytes, number, sender, tag, source, wants_ack, unused[2];
} Head;

/* The frame, if it is one: bytes of an array, with room for a head. */
static PyArrayObject *frame_of(PyObject *given) {
    PyArrayObject *array = plain_array_of(given, true);
    if (array == NULL || PyArray_NBYTES(array) < (npy_intp)sizeof(Head)) {
        PyErr_SetString(PyExc_ValueError, "this array is no frame");
        return NULL;
    }
    return array;
}

static bool read_numbers(PyObject *const *args, int count, int64_t *numbers) {
    for (int at = 0; at < count; at++) {
        numbers[at] = PyLong_AsLongLong(args[at]);
        if (PyErr_Occurred()) return false;
    }
    return true;
}

static npy_intp room_of(PyArrayObject *frame) {
    return PyArray_NBYTES(frame) - (npy_intp)sizeof(Head);
}

/* Exchange the first bytes of an array, which are behind a frame. False with an exception. */
static bool exchange_data(P2PObject *self, const Head *head, int place, bool receives,
                          PyArrayObject *array, int64_t limit) {
    npy_intp nbytes = (npy_intp)head->nbytes;
    PyObject *bytes = PyArray_SimpleNewFromData(1, &nbytes, NPY_UINT8, PyArray_DATA(array));
    if (bytes == NULL) return false;
    ah_message message = {
        .receives = receives, .peer = place, .tag = (uint32_t)(1 + head->number % DATA_TAGS)};
    bool is_done = p2p_exchange(self, &message, (PyArrayObject *)bytes, limit, Py_None);
    Py_DECREF(bytes);
    return is_done;
}

/* Send a frame with the data of an array, or with the data behind it. 1: it has gone, 0: nothing
 * has happened, -1 with an exception. */
static int send_data(P2PObject *self, PyArrayObject *frame, PyArrayObject *data,
                     const int64_t *numbers, bool waits) {
    int64_t place = numbers[0], limit = read_plain_limit(self->timeout_ns, Py_None);
    if (place < 0 || place >= self->size || place == self->rank || limit == 0 || !p2p_is_open(self))
        return 0;
    Head head = {.kind = KIND_MESSAGE,
                 .context = numbers[1],
                 .nbytes = PyArray_NBYTES(data),
                 .sender = numbers[2],
                 .tag = numbers[3],
                 .source = numbers[4],
                 .number = numbers[5]};
    bool is_behind = head.nbytes > room_of(frame);
    if (is_behind && !waits) return 0;
    char *bytes = PyArray_BYTES(frame);
    memcpy(bytes, &head, sizeof(Head));
    if (!is_behind) ah_copy_bytes(bytes + sizeof(Head), PyArray_BYTES(data), (size_t)head.nbytes);
    ah_message message = {.peer = (int)place, .tag = FRAME_TAG};
    int posted = p2p_post(self, &message, frame, Py_None);
    if (posted <= 0 || !is_behind) return posted;
    return exchange_data(self, &head, (int)place, false, data, limit) ? 1 : -1;
}

PyObject *p2p_send_frame(P2PObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 9) /* frame, spec, place, context, sender, tag, source, number, waits */
        return PyErr_Format(PyExc_TypeError, "wants 9 arguments, has %zd", nargs);
    int64_t numbers[6];
    PyArrayObject *frame = frame_of(args[0]);
    if (frame == NULL || !read_numbers(args + 2, 6, numbers)) return NULL;
    PyArrayObject *data = spec_array(args[1], false, false, 1);
    if (data == NULL) Py_RETURN_FALSE;
    int sent = send_data(self, frame, data, numbers, args[8] == Py_True);
    Py_DECREF(data);
    return sent < 0 ? NULL : PyBool_FromLong(sent);
}

/* Receive a frame and its data; as `receive_frame`, P2P_RAISED with an exception. */
static int receive_data(P2PObject *self, PyArrayObject *frame, PyArrayObject *memory,
                        const int64_t *wanted, int64_t span, int64_t limit) {
    int sender = p2p_poll_array(self, frame, FRAME_TAG, span);
    if (sender < 0) return sender;
    Head head;
    char *bytes = PyArray_BYTES(frame);
    memcpy(&head, bytes, sizeof(Head));
    bool fits = head.kind == KIND_MESSAGE && head.context == wanted[0] && !head.wants_ack &&
                (wanted[1] < 0 || head.source == wanted[1]) &&
                (wanted[2] < 0 || head.tag == wanted[2]) && head.nbytes >= 0 &&
                head.nbytes <= PyArray_NBYTES(memory);
    if (!fits) return 0;
    if (head.nbytes <= room_of(frame)) {
        ah_copy_bytes(PyArray_BYTES(memory), bytes + sizeof(Head), (size_t)head.nbytes);
        return 1;
    }
    bytes[0] = 0; /* no frame is in hand any more, should this fail */
    return exchange_data(self, &head, sender, true, memory, limit) ? 1 : P2P_RAISED;
}

PyObject *p2p_receive_frame(P2PObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 6) /* frame, spec, context, source, tag, seconds */
        return PyErr_Format(PyExc_TypeError, "wants 6 arguments, has %zd", nargs);
    int64_t wanted[3], span, limit = read_plain_limit(self->timeout_ns, Py_None);
    PyArrayObject *frame = frame_of(args[0]);
    if (frame == NULL || !read_numbers(args + 2, 3, wanted) || !read_span(args[5], &span))
        return NULL;
    PyArrayObject *memory = limit == 0 ? NULL : spec_array(args[1], true, false, 1);
    if (memory == NULL) return PyLong_FromLong(P2P_CLOSED);
    int received = receive_data(self, frame, memory, wanted, span, limit);
    Py_DECREF(memory);
    return received == P2P_RAISED ? NULL : PyLong_FromLong(received);
}
