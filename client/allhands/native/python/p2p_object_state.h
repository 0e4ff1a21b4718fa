/* ShmP2P and Message: their state, which their files share. */
#ifndef ALLHANDS_P2P_OBJECT_STATE_H
#define ALLHANDS_P2P_OBJECT_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NO_IMPORT_ARRAY
#define PY_ARRAY_UNIQUE_SYMBOL allhands_array_api
#include <numpy/arrayobject.h>

#include "p2p/p2p.h"
#include "python/p2p_log.h"

#define NANOSECONDS 1000000000LL
#define TYPES 8

/* A dtype, as messages describe it to their receivers. */
typedef struct {
    PyObject *descr;
    PyObject *text; /* bytes */
    uint64_t hash;
} Type;

typedef struct {
    PyObject_HEAD
    ah_p2p *p2p;
    PyObject *segments; /* what keeps the memory mapped */
    PyObject *on_failure;
    PyObject *on_first; /* function for the first message here; NULL: there was one */
    int rank, size;
    int ranks[AH_MAX_RANKS]; /* of the world */
    int64_t timeout_ns;
    unsigned generation;
    bool closed;
    Type types[TYPES];
    int next_type;
    P2PLog log;
} P2PObject;

typedef struct {
    PyObject_HEAD
    P2PObject *owner;
    PyObject *array, *context, *text;
    ah_message message;
    bool held;    /* a reference of its own, while it is under way */
    bool claimed; /* a thread has taken it upon itself to report its end */
} MessageObject;

/* Of a wait, for its hooks. */
typedef struct {
    PyThreadState *saved;
} Waiting;

extern unsigned p2p_generation; /* counts forks: a child shares the memory, but is no member */

/* ---- p2p_object.c */

/* Results of `p2p_poll_array`, other than the place of the sender. */
enum { P2P_NOTHING = -1, P2P_CLOSED = -2, P2P_RAISED = -3 };

/* Whether this process may use it: it was not closed, nor inherited by a fork. */
bool p2p_is_open(const P2PObject *self);
/* An array that needs no second look, borrowed; NULL: it is for the careful way. */
PyArrayObject *plain_array_of(PyObject *given, bool written);
/* Seconds as nanoseconds; false with an exception. */
bool read_span(PyObject *given, int64_t *span);
/* Send, or receive, and wait until that is done, some nanoseconds at most. False with an exception.
 */
bool p2p_exchange(P2PObject *self, ah_message *message, PyArrayObject *array, int64_t limit,
                  PyObject *label);
/* Send what can go at once. 1: it has gone, 0: nothing has happened, -1 with an exception. */
int p2p_post(P2PObject *self, ah_message *message, PyArrayObject *array, PyObject *label);
/* Receive from whoever sends, if that comes within some nanoseconds. */
int p2p_poll_array(P2PObject *self, PyArrayObject *array, uint32_t tag, int64_t span);

/* ---- p2p_frames.c */

PyObject *p2p_send_frame(P2PObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *p2p_receive_frame(P2PObject *self, PyObject *const *args, Py_ssize_t nargs);

/* ---- message_type.c */

/* Describe an array by its message: type, signature, place; `text` is a new reference that its type
 * lives in. False with an exception. */
bool message_describe(P2PObject *self, ah_message *message, PyArrayObject *array, PyObject **text);

/* The method: the signature of a message, by the name of its dtype and its count. */
PyObject *message_signature(PyObject *unused, PyObject *args);

/* ---- message_object.c */

extern PyTypeObject *Message_Type;

ah_wait_hooks message_hooks(Waiting *waiting, int64_t timeout);
/* Start a message that is not waited for at once; NULL with an exception. */
PyObject *message_start(P2PObject *self, ah_message *message, PyArrayObject *array,
                        PyObject *context);
/* A message that is under way keeps itself; not any more. */
void message_release(MessageObject *self);
int add_message_type(PyObject *module);

#endif
