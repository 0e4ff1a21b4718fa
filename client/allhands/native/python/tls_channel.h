/* TlsChannel: the encryption of one direction of a link, by Python's own `ssl`. */
#ifndef ALLHANDS_TLS_CHANNEL_H
#define ALLHANDS_TLS_CHANNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "links/link.h"

extern PyTypeObject *TlsChannel_Type;

/* The channel of a TlsChannel, which must stay. */
ah_channel *tls_channel_of(PyObject *self);

int add_tls_channel_type(PyObject *module);

#endif
