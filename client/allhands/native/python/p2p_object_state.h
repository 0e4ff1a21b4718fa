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
