#define _GNU_SOURCE
#include "python/link_messages.h"

#include <structmember.h>
#include <time.h>

#include "links/message.h"
#include "python/arrays.h"
#include "python/attribute_names.h"
#include "python/clock.h"
#include "python/deadline.h"
#include "python/link_gate.h"
#include "python/link_object.h"
#include "python/p2p_log.h"

#define SIGNATURES 16
#define NANOSECONDS 1e9
#define HELD_BYTES (32 << 10)             /* sent without letting others have the interpreter */
#define SEND_PATIENCE_NS INT64_C(2000000) /* for a link that takes more of a message */

typedef struct {
    long rank; /* as callers have it */
    int place; /* in the group */
    LinkStateObject *link;
    PyObject *key; /* of the counts of messages */
} Peer;

/* The signature of messages of a dtype and a count, which takes Python some microseconds. */
typedef struct {
    PyObject *descr;
    npy_intp count;
    uint64_t signature;
} Signature;

typedef struct {
    PyObject_HEAD
    LinkGate gate;
    PyObject *order;
    PyObject *sent, *received; /* counts of messages, by key */
    Peer *peers;
    int peer_count;
    unsigned long long group;
    bool has_digests; /* of the frames of the group */
    bool may_receive; /* no receive is posted, and no message waits for one */
    Signature signatures[SIGNATURES];
    int next_signature;
    P2PLog log;
} LinkMessagesObject;

static PyTypeObject *LinkMessages_Type;

/* ---------------------------------------------------------------- arguments */

static Peer *find_peer(LinkMessagesObject *self, PyObject *rank) {
    if (!PyLong_CheckExact(rank)) return NULL;
    long wanted = PyLong_AsLong(rank);
    if (wanted == -1 && PyErr_Occurred()) PyErr_Clear();
    for (int i = 0; i < self->peer_count; i++)
        if (self->peers[i].rank == wanted) return &self->peers[i];
    return NULL;
}

/* The nanoseconds that a message may take; 0: no plain timeout. */
static int64_t read_limit(LinkMessagesObject *self, PyObject *timeout) {
    PyObject *given = timeout == Py_None ? PyObject_GetAttr(self->order, attribute_names.timeout)
                                         : Py_NewRef(timeout);
    double seconds = given == NULL ? -1 : PyFloat_AsDouble(given);
    Py_XDECREF(given);
    if (PyErr_Occurred()) PyErr_Clear();
    if (!(seconds > 0) || !(seconds < 1e9)) return 0;
    return limit_by_deadlines((int64_t)(seconds * NANOSECONDS));
}

/* 1: found; -1 with an exception. */
static int sign(LinkMessagesObject *self, PyArrayObject *array, uint64_t *signature) {
    PyObject *descr = (PyObject *)PyArray_DESCR(array);
    npy_intp count = PyArray_SIZE(array);
    for (int i = 0; i < SIGNATURES; i++)
        if (self->signatures[i].descr == descr && self->signatures[i].count == count) {
            *signature = self->signatures[i].signature;
            return 1;
        }
    PyObject *made = PyObject_CallMethod(self->gate.owner, "sign", "On", descr, (Py_ssize_t)count);
    if (made == NULL) return -1;
    *signature = PyLong_AsUnsignedLongLong(made);
    Py_DECREF(made);
    if (PyErr_Occurred()) return -1;
    Signature *kept = &self->signatures[self->next_signature++ % SIGNATURES];
    PyObject *before = kept->descr; /* whose end may run other threads: not before all is written */
    *kept = (Signature){Py_NewRef(descr), count, *signature};
    Py_XDECREF(before);
    return 1;
}

typedef struct {
    PyArrayObject *array;
    Peer *peer;
    ah_frame frame;
} Asked;

/* Read the arguments: array, rank, tag, timeout, label. 1: a message for this way; 0: not; -1 with
 * an exception. */
static int read_arguments(LinkMessagesObject *self, PyObject *const *args, Py_ssize_t nargs,
                          bool receives, Asked *asked) {
    if (nargs != 5) {
        PyErr_Format(PyExc_TypeError, "wants 5 arguments, has %zd", nargs);
        return -1;
    }
    asked->array = plain_array(args[0], receives);
    if (asked->array == NULL || !PyLong_CheckExact(args[2]) ||
        (args[4] != Py_None && !PyUnicode_CheckExact(args[4])))
        return 0;
    long tag = PyLong_AsLong(args[2]);
    if (tag == -1 && PyErr_Occurred()) PyErr_Clear();
    size_t nbytes = (size_t)PyArray_NBYTES(asked->array);
    if (tag < 0 || tag > UINT32_MAX || nbytes > AH_MESSAGE_LONGEST) return 0;
    if (nbytes > AH_FRAME_PAYLOAD && self->has_digests) return 0;
    if (read_limit(self, args[3]) <= 2 * gate_hold(nbytes)) return 0;
    asked->frame = (ah_frame){.kind = AH_FRAME_DATA,
                              .group = self->group,
                              .part = (uint32_t)tag,
                              .total = nbytes,
                              .length = ah_message_first(nbytes),
                              .flags = AH_FRAME_P2P | (self->has_digests ? AH_FRAME_DIGEST : 0)};
    return sign(self, asked->array, &asked->frame.signature);
}

/* The number of the next message under a key of counts; 0 with an exception. */
static uint64_t next_count(PyObject *counts, PyObject *key) {
    PyObject *count = PyDict_GetItemWithError(counts, key);
    if (count == NULL) return PyErr_Occurred() ? 0 : 1;
    uint64_t last = PyLong_AsUnsignedLongLong(count);
    return PyErr_Occurred() ? 0 : last + 1;
}

static int set_count(PyObject *counts, PyObject *key, uint64_t count) {
    PyObject *value = PyLong_FromUnsignedLongLong(count);
    int failed = value == NULL ? -1 : PyDict_SetItem(counts, key, value);
    Py_XDECREF(value);
    return failed;
}

/* Whether no message is on its way to the loop, which this one must not pass; -1 with an exception.
 */
static int is_first(LinkMessagesObject *self) {
    PyObject *queued = PyObject_GetAttr(self->order, attribute_names.queued_messages);
    if (queued == NULL) return -1;
    long count = PyLong_AsLong(queued);
    Py_DECREF(queued);
    return PyErr_Occurred() ? -1 : count == 0;
}

/* Enter the gate for a message; 1: entered, and there is a link. Else as gate_enter. */
static int enter(LinkMessagesObject *self, Asked *asked, PyObject *rank) {
    int entered = gate_enter(&self->gate);
    if (entered != 1) return entered;
    int first = is_first(self);
    asked->peer = first > 0 ? find_peer(self, rank) : NULL; /* now that new ones are known */
    if (asked->peer != NULL && asked->peer->link->link.is_lent && !asked->peer->link->link.has_rest)
        return 1;
    gate_leave(&self->gate, false);
    return first < 0 ? -1 : 0;
}

/* ---------------------------------------------------------------- the log */

static uint64_t begin_record(LinkMessagesObject *self, const Asked *asked, bool receives,
                             PyObject *label, ah_message *message) {
    *message = (ah_message){.count = (size_t)PyArray_SIZE(asked->array),
                            .nbytes = asked->frame.total,
                            .tag = asked->frame.part,
                            .peer = asked->peer->place,
                            .source = asked->peer->place,
                            .receives = receives,
                            .way = AH_WAY_EAGER};
    if (self->log.ring == NULL) return 0;
    return log_begin(&self->log, message, (PyObject *)PyArray_DESCR(asked->array), clock_now(),
                     label);
}

/* ---------------------------------------------------------------- send */

/* Hand over what could not leave at once: it is copied, so the array is free. */
static int send_rest(LinkMessagesObject *self, const Asked *asked, size_t sent) {
    size_t total = ah_message_bytes(&asked->frame);
    PyObject *rest = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(total - sent));
    if (rest != NULL)
        ah_message_copy(&asked->frame, PyArray_DATA(asked->array), sent,
                        (uint8_t *)PyBytes_AS_STRING(rest));
    return gate_send_rest(&self->gate, asked->peer->rank, asked->peer->link, rest);
}

/* Give a message that leaves next its digest, if it has one; false: that is not possible. */
static bool add_digest(const LinkMessagesObject *self, Asked *asked) {
    ah_link *link = &asked->peer->link->link;
    return !self->has_digests || ah_frame_digest(link->signer, link->signed_frames, &asked->frame,
                                                 PyArray_DATA(asked->array), &asked->frame.digest);
}

/* Whether Python has a part in what goes over a link, which nothing may break into. */
static bool needs_python(const LinkMessagesObject *self, LinkStateObject *link) {
    return ah_link_is_encrypted(&link->link) || (self->has_digests && link_needs_python(link));
}

/* Send what leaves at once; who sends the rest finds out if the link has failed. */
static size_t send_message(ah_link *link, const Asked *asked) {
    const uint8_t *payload = PyArray_DATA(asked->array);
    size_t sent;
    if (asked->frame.total <= HELD_BYTES) return ah_link_send(link, &asked->frame, payload, 0);
    Py_INCREF(asked->array);
    Py_BEGIN_ALLOW_THREADS
    sent = ah_link_send(link, &asked->frame, payload, SEND_PATIENCE_NS);
    Py_END_ALLOW_THREADS
    Py_DECREF(asked->array);
    return sent;
}

static PyObject *messages_send(LinkMessagesObject *self, PyObject *const *args, Py_ssize_t nargs) {
    Asked asked;
    int plain = read_arguments(self, args, nargs, false, &asked);
    if (plain > 0) plain = enter(self, &asked, args[1]);
    if (plain < 0) return NULL;
    if (plain != 1) return PyLong_FromLong(plain);
    ah_link *link = &asked.peer->link->link;
    uint64_t count = asked.frame.sequence = next_count(self->sent, asked.peer->key);
    PyObject *delayed = NULL;
    bool is_possible = count != 0 && link->credit >= (int64_t)asked.frame.total && link->out >= 0;
    if (is_possible)
        delayed = gate_delay_signals(&self->gate, needs_python(self, asked.peer->link));
    if (delayed == NULL || !add_digest(self, &asked)) {
        gate_leave(&self->gate, false);
        if (delayed != NULL && gate_allow_signals(delayed) < 0) return NULL;
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    }
    ah_message message;
    uint64_t entry = begin_record(self, &asked, false, args[4], &message);
    link->credit -= (int64_t)asked.frame.total;
    link->signed_frames += self->has_digests;
    size_t sent = send_message(link, &asked);
    bool has_rest = link->has_unsent || sent < ah_message_bytes(&asked.frame);
    int failed = set_count(self->sent, asked.peer->key, count);
    if (!failed && has_rest) failed = send_rest(self, &asked, sent);
    log_end(&self->log, entry, &message, failed ? AH_FAILED : AH_DELIVERED);
    if (gate_leave(&self->gate, has_rest) < 0) failed = -1;
    if (gate_allow_signals(delayed) < 0) failed = -1;
    return failed ? NULL : PyLong_FromLong(1);
}

/* ---------------------------------------------------------------- recv */

/* Give the frame that came first to its receiver; 1: go on, 0: not here; -1 with an exception. */
static int deliver(LinkMessagesObject *self, const Asked *asked, size_t nbytes) {
    ah_link *link = &asked->peer->link->link;
    const uint8_t *bytes = link->data + link->start;
    ah_frame frame;
    ah_frame_unpack(bytes, &frame);
    PyObject *given = PyObject_CallMethod(self->gate.owner, "deliver", "ln", asked->peer->rank,
                                          (Py_ssize_t)nbytes);
    Py_XDECREF(given);
    if (given == NULL) return -1;
    /* Another message under this tag comes before the one that is asked for, or does not fit. */
    bool is_same_queue =
        frame.flags & AH_FRAME_P2P && frame.group == self->group && frame.part == asked->frame.part;
    return link->in >= 0 && !is_same_queue;
}

/* 1: received; 0: not here; -1 with an exception. */
static int receive(LinkMessagesObject *self, Asked *asked, bool waits) {
    ah_link *link = &asked->peer->link->link;
    uint8_t *target = PyArray_DATA(asked->array);
    uint64_t count = next_count(self->received, asked->peer->key);
    size_t nbytes = asked->frame.total;
    int64_t hold = waits ? gate_hold(nbytes) : gate_brief_hold(nbytes, count);
    int64_t until = ah_link_now() + hold;
    for (;;) {
        ah_message_status status;
        size_t foreign = 0;
        asked->frame.sequence = next_count(self->received, asked->peer->key);
        if (asked->frame.sequence == 0) return -1;
        Py_BEGIN_ALLOW_THREADS
        status = ah_link_receive(link, &asked->frame, target, until, GATE_SPIN_NS, &foreign);
        Py_END_ALLOW_THREADS
        if (status == AH_MESSAGE_DONE)
            return set_count(self->received, asked->peer->key, asked->frame.sequence) < 0 ? -1 : 1;
        if (status != AH_MESSAGE_FOREIGN) return 0;
        int going = deliver(self, asked, foreign);
        if (going <= 0) return going;
    }
}

/* Receive; a caller that does not wait is held only for moments. */
static PyObject *take(LinkMessagesObject *self, PyObject *const *args, Py_ssize_t nargs,
                      bool waits) {
    Asked asked;
    int plain = read_arguments(self, args, nargs, true, &asked);
    if (plain > 0) plain = enter(self, &asked, args[1]);
    if (plain < 0) return NULL;
    if (plain != 1) return PyLong_FromLong(plain == GATE_BUSY ? -GATE_BUSY : -1);
    if (!self->may_receive) {
        gate_leave(&self->gate, false);
        return PyLong_FromLong(-1);
    }
    PyObject *delayed = gate_delay_signals(&self->gate, needs_python(self, asked.peer->link));
    if (delayed == NULL) {
        gate_leave(&self->gate, false);
        return NULL;
    }
    ah_message message;
    Py_INCREF(asked.array);
    int64_t started = self->log.ring == NULL ? 0 : clock_now();
    int received = receive(self, &asked, waits);
    if (received > 0) {
        uint64_t entry = begin_record(self, &asked, true, args[4], &message);
        if (entry) self->log.ring[entry & self->log.mask].started = started;
        log_end(&self->log, entry, &message, AH_DELIVERED);
    }
    Py_DECREF(asked.array);
    int failed = gate_settle(&self->gate, asked.peer->rank, asked.peer->link);
    long sender = received > 0 ? asked.peer->rank : -1; /* the peers are the holder's */
    if (gate_leave(&self->gate, received <= 0) < 0) failed = -1;
    if (gate_allow_signals(delayed) < 0) failed = -1;
    return failed ? NULL : PyLong_FromLong(sender);
}

static PyObject *messages_recv(LinkMessagesObject *self, PyObject *const *args, Py_ssize_t nargs) {
    return take(self, args, nargs, true);
}

static PyObject *messages_try_recv(LinkMessagesObject *self, PyObject *const *args,
                                   Py_ssize_t nargs) {
    return take(self, args, nargs, false);
}

static PyObject *messages_records(LinkMessagesObject *self, PyObject *args) {
    Py_ssize_t last;
    if (!PyArg_ParseTuple(args, "n", &last)) return NULL;
    return log_rows(&self->log, last < 0 ? 0 : (size_t)last);
}

static PyObject *messages_totals(LinkMessagesObject *self, PyObject *unused) {
    (void)unused;
    return call_totals_tuple(&self->log.totals);
}

/* ---------------------------------------------------------------- life */

static PyObject *messages_add_peer(LinkMessagesObject *self, PyObject *args) {
    Peer peer;
    PyObject *link, *key;
    if (!PyArg_ParseTuple(args, "liO!O", &peer.rank, &peer.place, LinkState_Type, &link, &key))
        return NULL;
    Peer *peers = PyMem_Realloc(self->peers, ((size_t)self->peer_count + 1) * sizeof *peers);
    if (peers == NULL) return PyErr_NoMemory();
    peer.link = (LinkStateObject *)Py_NewRef(link);
    peer.key = Py_NewRef(key);
    self->peers = peers;
    peers[self->peer_count++] = peer;
    Py_RETURN_NONE;
}

static PyObject *messages_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"thread", "owner",   "order",   "sent", "received",
                            "group",  "digests", "records", NULL};
    PyObject *thread, *owner, *order, *sent, *received;
    unsigned long long group;
    int digests;
    Py_ssize_t records;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO!O!Kpn", names, &thread, &owner, &order,
                                     &PyDict_Type, &sent, &PyDict_Type, &received, &group, &digests,
                                     &records))
        return NULL;
    LinkMessagesObject *self = (LinkMessagesObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->order = Py_NewRef(order);
    self->sent = Py_NewRef(sent);
    self->received = Py_NewRef(received);
    self->group = group;
    self->has_digests = digests;
    if (gate_init(&self->gate, thread, owner) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    if (!log_new(&self->log, records > 0 ? (size_t)records : 0)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static int messages_clear(LinkMessagesObject *self) {
    gate_clear(&self->gate);
    Py_CLEAR(self->order);
    Py_CLEAR(self->sent);
    Py_CLEAR(self->received);
    return 0;
}

static int messages_traverse(LinkMessagesObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->order);
    return gate_visit(&self->gate, visit, arg);
}

static void messages_dealloc(LinkMessagesObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    messages_clear(self);
    for (int i = 0; i < self->peer_count; i++) {
        Py_XDECREF((PyObject *)self->peers[i].link);
        Py_XDECREF(self->peers[i].key);
    }
    PyMem_Free(self->peers);
    for (int i = 0; i < SIGNATURES; i++) Py_XDECREF(self->signatures[i].descr);
    log_free(&self->log);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef messages_methods[] = {
    {"send", (PyCFunction)(void (*)(void))messages_send, METH_FASTCALL, NULL},
    {"recv", (PyCFunction)(void (*)(void))messages_recv, METH_FASTCALL, NULL},
    {"try_recv", (PyCFunction)(void (*)(void))messages_try_recv, METH_FASTCALL, NULL},
    {"add_peer", (PyCFunction)messages_add_peer, METH_VARARGS, NULL},
    {"records", (PyCFunction)messages_records, METH_VARARGS, NULL},
    {"totals", (PyCFunction)messages_totals, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef messages_members[] = {
    {"may_receive", T_BOOL, offsetof(LinkMessagesObject, may_receive), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot messages_slots[] = {
    {Py_tp_new, messages_new},
    {Py_tp_dealloc, messages_dealloc},
    {Py_tp_clear, messages_clear},
    {Py_tp_traverse, messages_traverse},
    {Py_tp_methods, messages_methods},
    {Py_tp_members, messages_members},
    {0, NULL},
};

static PyType_Spec messages_spec = {
    .name = "allhands._native.LinkMessages",
    .basicsize = sizeof(LinkMessagesObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = messages_slots,
};

int add_link_messages_type(PyObject *module) {
    LinkMessages_Type = (PyTypeObject *)PyType_FromSpec(&messages_spec);
    if (LinkMessages_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "LinkMessages", (PyObject *)LinkMessages_Type);
}
