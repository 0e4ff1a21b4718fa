/* The connection is a TlsSocket of transport/tls_socket.py, whose SSLObject and memory BIOs the
 * loop uses as well. The system calls are made here, without the GIL; it is taken where bytes came
 * or are to go. What was encrypted and is not sent yet is the connection's `unsent`, and nowhere
 * else.
 *
 * Signal handlers must not run meanwhile: an exception within `SSLObject.read` loses what it read.
 */
#define _GNU_SOURCE
#include "python/tls_channel.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    RECORD_BYTES = 16 << 10, /* the longest record */
    WRITE_BYTES = 32 << 10,  /* encrypted at once: the peer decrypts them meanwhile */
};

typedef struct {
    PyObject_HEAD
    ah_channel channel;
    PyObject *connection;
    PyObject *incoming;
    PyObject *feed, *read, *pending;           /* incoming.write, and methods of the SSLObject */
    PyObject *write, *take;                    /* of the SSLObject, and outgoing.read */
    PyObject *want_read, *zero_return, *error; /* exceptions of ssl */
    Py_buffer page;
} TlsChannelObject;

PyTypeObject *TlsChannel_Type;

static TlsChannelObject *owner_of(ah_channel *channel) {
    return (TlsChannelObject *)((char *)channel - offsetof(TlsChannelObject, channel));
}

ah_channel *tls_channel_of(PyObject *self) { return &((TlsChannelObject *)self)->channel; }

/* Call a function with a view of memory. */
static PyObject *call_with(PyObject *function, const void *memory, size_t nbytes) {
    PyObject *view =
        PyMemoryView_FromMemory((char *)(uintptr_t)memory, (Py_ssize_t)nbytes, PyBUF_READ);
    if (view == NULL) return NULL;
    PyObject *result = PyObject_CallOneArg(function, view);
    Py_DECREF(view);
    return result;
}

/* The value of a number, which is given up; -1 with an exception. */
static Py_ssize_t take_size(PyObject *number) {
    Py_ssize_t value = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    return value;
}

/* ---------------------------------------------------------------- what comes */

/* Remember that nothing more can be decrypted, for the exception that is set. */
static void stop(TlsChannelObject *self, ah_link *link) {
    PyObject *type, *value, *trace, *done = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    link->has_stopped = true;
    done = PyObject_CallMethod(self->connection, "stop", "O", value == NULL ? Py_None : value);
    if (done == NULL) PyErr_WriteUnraisable(self->connection);
    Py_XDECREF(done);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Decrypt up to the end of a record: the bytes; 0: no whole record is there; -1 with an exception.
 */
static Py_ssize_t open_record(TlsChannelObject *self, uint8_t *to, size_t room) {
    PyObject *view = PyMemoryView_FromMemory((char *)to, (Py_ssize_t)room, PyBUF_WRITE);
    PyObject *wanted = view == NULL ? NULL : PyLong_FromSize_t(room);
    PyObject *arguments[] = {NULL, wanted, view};
    PyObject *got = NULL;
    if (wanted != NULL)
        got = PyObject_Vectorcall(self->read, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                  NULL);
    Py_XDECREF(wanted);
    Py_XDECREF(view);
    Py_ssize_t nbytes = take_size(got);
    if (nbytes > 0) return nbytes;
    if (nbytes == 0) { /* the peer has ended what it sends */
        PyErr_SetNone(self->zero_return);
        return -1;
    }
    if (!PyErr_ExceptionMatches(self->want_read)) return -1;
    PyErr_Clear();
    return 0;
}

/* Whether TLS has bytes that may be a record; -1 with an exception. `is_cut`: the last one may not
 * have been decrypted to its end. */
static int has_more(TlsChannelObject *self, bool is_cut) {
    Py_ssize_t encrypted = take_size(PyObject_GetAttrString(self->incoming, "pending"));
    if (encrypted != 0 || !is_cut) return encrypted < 0 ? -1 : encrypted > 0;
    Py_ssize_t plain = take_size(PyObject_CallNoArgs(self->pending));
    return plain < 0 ? -1 : plain > 0;
}

/* Decrypt all that has come; -1 with an exception. */
static int open_records(TlsChannelObject *self, ah_link *link, size_t came, uint8_t *target,
                        size_t nbytes, size_t *direct) {
    if (take_size(call_with(self->feed, self->page.buf, came)) < 0) return -1;
    Py_ssize_t most = take_size(PyObject_GetAttrString(self->incoming, "pending"));
    if (most < 0) return -1;
    /* TLS may hold the beginning of a record already, which is not pending any more. */
    if (!ah_link_reserve(link, (size_t)most + RECORD_BYTES)) {
        PyErr_NoMemory();
        return -1;
    }
    for (int more = 1; more > 0;) {
        bool is_direct = *direct < nbytes;
        uint8_t *to = is_direct ? target + *direct : link->data + link->end;
        size_t room = is_direct ? nbytes - *direct : link->room - link->end;
        Py_ssize_t got = open_record(self, to, room);
        if (got <= 0) return (int)got;
        if (is_direct)
            *direct += (size_t)got;
        else
            link->end += (size_t)got;
        more = has_more(self, (size_t)got == room);
        if (more < 0) return -1;
    }
    return 0;
}

static int64_t read_channel(ah_channel *channel, ah_link *link, uint8_t *target, size_t nbytes,
                            size_t *direct) {
    TlsChannelObject *self = owner_of(channel);
    *direct = 0;
    if (link->has_stopped) return -1;
    ssize_t came = read(link->in, self->page.buf, (size_t)self->page.len);
    if (came == 0) return -1;
    if (came < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
    size_t before = ah_link_pending(link);
    PyGILState_STATE state = PyGILState_Ensure();
    if (open_records(self, link, (size_t)came, target, nbytes, direct) < 0) stop(self, link);
    PyGILState_Release(state);
    size_t all = *direct + ah_link_pending(link) - before;
    return all == 0 && link->has_stopped ? -1 : (int64_t)all;
}

/* ---------------------------------------------------------------- what goes */

/* Break the connection, on which an unknown part of a frame was encrypted. */
static void break_off(TlsChannelObject *self, ah_link *link) {
    shutdown(link->out, SHUT_RDWR);
    if (PyErr_ExceptionMatches(self->error))
        PyErr_Clear(); /* the loop meets the same one */
    else
        PyErr_WriteUnraisable(self->connection);
}

/* Send bytes as far as they go, and have the connection keep the rest; false: it has failed. */
static bool send_bytes(TlsChannelObject *self, ah_link *link, PyObject *bytes) {
    Py_buffer view;
    if (PyObject_GetBuffer(bytes, &view, PyBUF_SIMPLE) < 0) {
        break_off(self, link);
        return false;
    }
    ssize_t sent = 0;
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    sent = send(link->out, view.buf, (size_t)view.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    error = errno;
    Py_END_ALLOW_THREADS
    bool is_up = sent >= 0 || error == EAGAIN || error == EINTR;
    size_t gone = sent > 0 ? (size_t)sent : 0;
    PyObject *rest = NULL;
    if (gone < (size_t)view.len || link->has_unsent) {
        rest = PyObject_CallMethod(self->connection, "keep_unsent", "On", bytes, (Py_ssize_t)gone);
        if (rest == NULL) {
            break_off(self, link);
            is_up = false;
        }
        Py_XDECREF(rest);
    }
    link->has_unsent = gone < (size_t)view.len;
    PyBuffer_Release(&view);
    return is_up;
}

/* Send what is kept; false: the link has failed. With the GIL. */
static bool flush_kept(TlsChannelObject *self, ah_link *link) {
    PyObject *unsent = PyObject_GetAttrString(self->connection, "unsent");
    Py_ssize_t nbytes = unsent == NULL ? -1 : PyObject_Size(unsent);
    bool is_up = nbytes == 0;
    if (nbytes < 0) {
        break_off(self, link);
    } else {
        link->has_unsent = nbytes > 0; /* the loop may have sent it, or have kept more */
        if (nbytes > 0) is_up = send_bytes(self, link, unsent);
    }
    Py_XDECREF(unsent);
    return is_up;
}

static bool flush_channel(ah_channel *channel, ah_link *link) {
    PyGILState_STATE state = PyGILState_Ensure();
    bool is_up = flush_kept(owner_of(channel), link);
    PyGILState_Release(state);
    return is_up;
}

/* Encrypt memory, at most `most` bytes: the count; -1 with an exception. */
static int64_t seal(TlsChannelObject *self, const uint8_t *memory, size_t nbytes, size_t most) {
    size_t at = 0;
    while (at < nbytes && at < most) {
        size_t length = nbytes - at < RECORD_BYTES ? nbytes - at : RECORD_BYTES;
        Py_ssize_t written = take_size(call_with(self->write, memory + at, length));
        if (written < 0) return -1;
        at += (size_t)written;
    }
    return (int64_t)at;
}

static int64_t seal_pieces(TlsChannelObject *self, const struct iovec *pieces, int count) {
    uint8_t *page = self->page.buf;
    size_t total = 0;
    int64_t accepted = 0;
    for (int i = 0; i < count; i++) total += pieces[i].iov_len;
    if (count > 1 && total <= RECORD_BYTES) { /* in one record */
        size_t at = 0;
        for (int i = 0; i < count; at += pieces[i++].iov_len)
            memcpy(page + at, pieces[i].iov_base, pieces[i].iov_len);
        return seal(self, page, total, total);
    }
    for (int i = 0; i < count && accepted < WRITE_BYTES; i++) {
        int64_t sealed =
            seal(self, pieces[i].iov_base, pieces[i].iov_len, WRITE_BYTES - (size_t)accepted);
        if (sealed < 0) return -1;
        accepted += sealed;
        if ((size_t)sealed < pieces[i].iov_len) break;
    }
    return accepted;
}

static int64_t write_pieces(TlsChannelObject *self, ah_link *link, const struct iovec *pieces,
                            int count) {
    if (!flush_kept(self, link)) return -1;
    if (link->has_unsent) return 0;
    int64_t accepted = seal_pieces(self, pieces, count);
    PyObject *bytes = accepted < 0 ? NULL : PyObject_CallNoArgs(self->take);
    if (bytes == NULL) {
        break_off(self, link);
        return -1;
    }
    bool is_up = send_bytes(self, link, bytes);
    Py_DECREF(bytes);
    return is_up ? accepted : -1;
}

static int64_t write_channel(ah_channel *channel, ah_link *link, const struct iovec *pieces,
                             int count) {
    PyGILState_STATE state = PyGILState_Ensure();
    int64_t accepted = write_pieces(owner_of(channel), link, pieces, count);
    PyGILState_Release(state);
    return accepted;
}

/* ---------------------------------------------------------------- the type */

static bool find_exceptions(TlsChannelObject *self) {
    PyObject *module = PyImport_ImportModule("ssl");
    if (module == NULL) return false;
    self->want_read = PyObject_GetAttrString(module, "SSLWantReadError");
    self->zero_return = PyObject_GetAttrString(module, "SSLZeroReturnError");
    self->error = PyObject_GetAttrString(module, "SSLError");
    Py_DECREF(module);
    return self->want_read != NULL && self->zero_return != NULL && self->error != NULL;
}

static bool find_methods(TlsChannelObject *self, PyObject *tls, PyObject *outgoing) {
    self->feed = PyObject_GetAttrString(self->incoming, "write");
    self->take = PyObject_GetAttrString(outgoing, "read");
    self->read = PyObject_GetAttrString(tls, "read");
    self->write = PyObject_GetAttrString(tls, "write");
    self->pending = PyObject_GetAttrString(tls, "pending");
    return self->feed != NULL && self->take != NULL && self->read != NULL && self->write != NULL &&
           self->pending != NULL;
}

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"connection", "tls", "incoming", "outgoing", "page", NULL};
    PyObject *connection, *tls, *incoming, *outgoing, *page;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO", names, &connection, &tls, &incoming,
                                     &outgoing, &page))
        return NULL;
    TlsChannelObject *self = (TlsChannelObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->channel =
        (ah_channel){.read = read_channel, .write = write_channel, .flush = flush_channel};
    self->connection = Py_NewRef(connection);
    self->incoming = Py_NewRef(incoming);
    bool is_whole = find_methods(self, tls, outgoing) && find_exceptions(self) &&
                    PyObject_GetBuffer(page, &self->page, PyBUF_WRITABLE) == 0;
    if (is_whole && self->page.len < RECORD_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the page is shorter than a record");
        is_whole = false;
    }
    if (is_whole) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void channel_dealloc(TlsChannelObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->connection);
    Py_XDECREF(self->incoming);
    Py_XDECREF(self->feed);
    Py_XDECREF(self->read);
    Py_XDECREF(self->pending);
    Py_XDECREF(self->write);
    Py_XDECREF(self->take);
    Py_XDECREF(self->want_read);
    Py_XDECREF(self->zero_return);
    Py_XDECREF(self->error);
    if (self->page.obj != NULL) PyBuffer_Release(&self->page);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyType_Slot channel_slots[] = {
    {Py_tp_new, channel_new},
    {Py_tp_dealloc, channel_dealloc},
    {0, NULL},
};

static PyType_Spec channel_spec = {
    .name = "allhands._native.TlsChannel",
    .basicsize = sizeof(TlsChannelObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = channel_slots,
};

int add_tls_channel_type(PyObject *module) {
    TlsChannel_Type = (PyTypeObject *)PyType_FromSpec(&channel_spec);
    if (TlsChannel_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "TlsChannel", (PyObject *)TlsChannel_Type);
}
