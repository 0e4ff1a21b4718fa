#include "python/p2p_log.h"

#include <stdlib.h>

#include "python/call_site.h"
#include "python/clock.h"
#include "python/record_ring.h"

const char *const outcome_names[] = {
    [AH_RUNNING] = "running",     [AH_DELIVERED] = "ok",        [AH_TIMED_OUT] = "timeout",
    [AH_MISMATCHED] = "mismatch", [AH_CANCELLED] = "cancelled", [AH_PEER_LEFT] = "gone",
    [AH_FAILED] = "failed",
};

const char *const way_names[] = {
    [AH_WAY_NONE] = "nothing",  [AH_WAY_EAGER] = "eager",   [AH_WAY_PIECES] = "pieces",
    [AH_WAY_DIRECT] = "direct", [AH_WAY_ATTACH] = "attach",
};

bool log_new(P2PLog *self, size_t wanted) {
    if (wanted == 0) return true;
    size_t count = ring_size(wanted);
    self->ring = calloc(count, sizeof(LogEntry));
    self->mask = count - 1;
    return self->ring != NULL;
}

void log_free(P2PLog *self) {
    for (size_t at = 0; self->ring != NULL && at <= self->mask; at++) {
        Py_XDECREF(self->ring[at].dtype);
        Py_XDECREF(self->ring[at].code);
        Py_XDECREF(self->ring[at].label);
    }
    free(self->ring);
    self->ring = NULL;
}

static LogEntry *entry_of(const P2PLog *self, uint64_t number) {
    return &self->ring[number & self->mask];
}

uint64_t log_begin(P2PLog *self, const ah_message *message, PyObject *dtype, int64_t now,
                   PyObject *label) {
    if (self->ring == NULL) return 0;
    uint64_t number = ++self->last_number;
    LogEntry *entry = entry_of(self, number);
    entry->number = number;
    entry->started = now;
    entry->finished = 0;
    entry->count = message->count;
    entry->nbytes = message->nbytes;
    entry->tag = message->tag;
    entry->peer = (int16_t)message->peer;
    entry->receives = message->receives;
    entry->outcome = AH_RUNNING;
    entry->way = 0;
    if (entry->dtype != dtype) Py_XSETREF(entry->dtype, Py_NewRef(dtype));
    Py_XSETREF(entry->label, label == Py_None ? NULL : Py_NewRef(label));
    PyObject *code = call_site_here(&entry->instruction);
    Py_XSETREF(entry->code, code);
    return number;
}

void log_end(P2PLog *self, uint64_t number, const ah_message *message, int outcome) {
    if (number == 0) return;
    LogEntry *entry = entry_of(self, number);
    if (entry->number != number) return; /* very many others began meanwhile */
    entry->finished = clock_now();
    entry->outcome = (uint8_t)outcome;
    entry->way = (uint8_t)message->way;
    if (entry->outcome != AH_DELIVERED) return;
    if (entry->receives) entry->peer = (int16_t)message->source;
    call_totals_add(&self->totals, entry->nbytes, entry->finished - entry->started);
}

static PyObject *row(void *log, uint64_t number) {
    const P2PLog *self = log;
    const LogEntry *one = entry_of(self, number);
    if (one->number != number) return NULL; /* overwritten meanwhile */
    /* What follows may let another thread go on with the ring: with references of its own. */
    LogEntry entry = *one;
    Py_XINCREF(entry.dtype);
    Py_XINCREF(entry.code);
    Py_XINCREF(entry.label);
    PyObject *source =
        entry.code == NULL ? Py_NewRef(Py_None) : call_site_tuple(entry.code, entry.instruction);
    PyObject *made = NULL;
    if (source != NULL)
        made = Py_BuildValue("OOnniILLssNO", entry.receives ? Py_True : Py_False, entry.dtype,
                             (Py_ssize_t)entry.count, (Py_ssize_t)entry.nbytes, entry.peer,
                             (unsigned)entry.tag, (long long)entry.started,
                             (long long)entry.finished, outcome_names[entry.outcome],
                             way_names[entry.way], source, entry.label ? entry.label : Py_None);
    Py_XDECREF(entry.dtype);
    Py_XDECREF(entry.code);
    Py_XDECREF(entry.label);
    return made;
}

PyObject *log_rows(P2PLog *self, size_t last) {
    size_t size = self->ring == NULL ? 0 : self->mask + 1;
    return ring_rows(self, size, self->last_number, last, row);
}
