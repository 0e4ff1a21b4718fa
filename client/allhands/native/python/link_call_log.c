#include "python/link_call_log.h"

#include <stdlib.h>

#include "python/call_site.h"
#include "python/clock.h"
#include "python/record_ring.h"

bool link_log_new(LinkCallLog *self, size_t wanted) {
    start_times_init(&self->start_times);
    if (wanted == 0) return true;
    size_t count = ring_size(wanted);
    self->ring = calloc(count, sizeof(LinkCallEntry));
    self->mask = count - 1;
    return self->ring != NULL;
}

void link_log_free(LinkCallLog *self) {
    for (size_t at = 0; self->ring != NULL && at <= self->mask; at++) {
        Py_XDECREF(self->ring[at].signature);
        Py_XDECREF(self->ring[at].how);
        Py_XDECREF(self->ring[at].code);
    }
    free(self->ring);
    self->ring = NULL;
}

static LinkCallEntry *entry_of(const LinkCallLog *self, uint64_t sequence) {
    return &self->ring[sequence & self->mask];
}

static void set_reference(PyObject **place, PyObject *value) {
    if (*place != value) Py_XSETREF(*place, Py_NewRef(value));
}

void link_log_begin(LinkCallLog *self, uint64_t sequence, PyObject *signature, PyObject *how,
                    size_t nbytes) {
    if (self->ring == NULL) return;
    LinkCallEntry *entry = entry_of(self, sequence);
    entry->sequence = self->newest = sequence;
    entry->started = clock_now();
    entry->finished = 0;
    entry->nbytes = nbytes;
    set_reference(&entry->signature, signature);
    set_reference(&entry->how, how);
    PyObject *code = call_site_here(&entry->instruction);
    Py_XSETREF(entry->code, code);
    start_times_note(&self->start_times, sequence, entry->started);
}

void link_log_end(LinkCallLog *self, uint64_t sequence) {
    if (self->ring == NULL) return;
    LinkCallEntry *entry = entry_of(self, sequence);
    entry->finished = clock_now();
    call_totals_add(&self->totals, entry->nbytes, entry->finished - entry->started);
}

void link_log_drop(LinkCallLog *self, uint64_t sequence) {
    if (self->ring != NULL) entry_of(self, sequence)->sequence = 0;
}

static PyObject *site_of(const LinkCallEntry *entry) {
    if (entry->code == NULL) Py_RETURN_NONE;
    return call_site_tuple(entry->code, entry->instruction);
}

static PyObject *row(void *log, uint64_t sequence) {
    const LinkCallLog *self = log;
    const LinkCallEntry *one = entry_of(self, sequence);
    if (one->sequence != sequence) return NULL; /* of a call not made here, or overwritten */
    /* What follows may let another thread go on with the ring: with references of its own. */
    LinkCallEntry entry = *one;
    Py_INCREF(entry.signature);
    Py_INCREF(entry.how);
    Py_XINCREF(entry.code);
    PyObject *source = site_of(&entry), *made = NULL;
    if (source != NULL)
        made = Py_BuildValue("KOOnLLN", (unsigned long long)entry.sequence, entry.signature,
                             entry.how, (Py_ssize_t)entry.nbytes, (long long)entry.started,
                             (long long)entry.finished, source);
    Py_DECREF(entry.signature);
    Py_DECREF(entry.how);
    Py_XDECREF(entry.code);
    return made;
}

PyObject *link_log_rows(LinkCallLog *self, size_t last) {
    return ring_rows(self, self->ring == NULL ? 0 : self->mask + 1, self->newest, last, row);
}

PyObject *link_log_site(LinkCallLog *self, uint64_t sequence) {
    if (self->ring == NULL || sequence == 0) Py_RETURN_NONE;
    const LinkCallEntry *entry = entry_of(self, sequence);
    if (entry->sequence != sequence) Py_RETURN_NONE;
    return site_of(entry);
}
