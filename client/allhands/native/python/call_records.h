/* Records of the latest calls: for error messages, the flight recorder and heartbeats. */
#ifndef ALLHANDS_CALL_RECORDS_H
#define ALLHANDS_CALL_RECORDS_H

#include "python/comm_object_state.h"

/* Room for so many records, or for RECORDS_LEAST; false: there is no memory. */
bool records_new(CommObject *self, size_t wanted);
void records_free(CommObject *self);
/* Methods. */
PyObject *comm_describe(CommObject *self, PyObject *sequence);
PyObject *comm_records(CommObject *self, PyObject *last);
PyObject *comm_call_site(CommObject *self, PyObject *sequence);
PyObject *comm_set_outcome(CommObject *self, PyObject *args);
PyObject *comm_start_times(CommObject *self, PyObject *unused);
PyObject *comm_totals(CommObject *self, PyObject *unused);
/* The shape of what this rank brought, as a tuple; None: ranks may differ in it. */
PyObject *record_shape(const CommObject *self, const Record *record);
/* Bytes given to each rank, then those expected from each, where ranks may differ in them; else
 * None. Of the call that runs, or ran last. */
PyObject *call_splits(const CommObject *self, ah_kind kind);
/* The name of what it was, a new reference; NULL with an exception. */
PyObject *record_operation(const Record *record);
/* Bytes of what this rank brought. */
size_t record_bytes(const Record *record);
extern const char *const variant_names[];

/* What Python has as well: OUTCOMES, KINDS, STARTS_KEPT. */
int add_record_constants(PyObject *module);

#endif
