#include "python/link_object.h"

#include <structmember.h>

#include "python/tls_channel.h"

PyTypeObject *LinkState_Type;

static PyObject *link_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    long long credit;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "L", &credit)) return NULL;
    LinkStateObject *self = (LinkStateObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->link = (ah_link){.in = -1, .out = -1, .credit = credit};
    return (PyObject *)self;
}

static void link_dealloc(LinkStateObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ah_link_free(&self->link);
    Py_XDECREF(self->rest);
    Py_XDECREF(self->opener);
    Py_XDECREF(self->sealer);
    frame_digester_clear(&self->signer);
    frame_digester_clear(&self->verifier);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Read a descriptor and a TlsChannel or None, of which `*kept` has a reference afterwards; false
 * with an exception. */
static bool read_connection(PyObject *args, int *descriptor, PyObject **kept,
                            ah_channel **channel) {
    PyObject *given;
    if (!PyArg_ParseTuple(args, "iO", descriptor, &given)) return false;
    if (given != Py_None && !Py_IS_TYPE(given, TlsChannel_Type)) {
        PyErr_SetString(PyExc_TypeError, "wants a TlsChannel or None");
        return false;
    }
    bool is_plain = given == Py_None;
    *channel = is_plain ? NULL : tls_channel_of(given);
    Py_XSETREF(*kept, is_plain ? NULL : Py_NewRef(given));
    return true;
}

static PyObject *link_connect_inbound(LinkStateObject *self, PyObject *args) {
    if (!read_connection(args, &self->link.in, &self->opener, &self->link.opener)) return NULL;
    self->link.has_stopped = false;
    Py_RETURN_NONE;
}

static PyObject *link_connect_outbound(LinkStateObject *self, PyObject *args) {
    if (!read_connection(args, &self->link.out, &self->sealer, &self->link.sealer)) return NULL;
    self->link.has_unsent = false;
    Py_RETURN_NONE;
}

static PyObject *link_set_digesters(LinkStateObject *self, PyObject *args) {
    PyObject *sign, *verify, *signing_keys, *verifying_keys;
    if (!PyArg_ParseTuple(args, "OOOO", &sign, &verify, &signing_keys, &verifying_keys))
        return NULL;
    self->link.signer = frame_digester_set(&self->signer, sign, signing_keys);
    if (self->link.signer == NULL) return NULL;
    self->link.verifier = frame_digester_set(&self->verifier, verify, verifying_keys);
    if (self->link.verifier == NULL) return NULL;
    Py_RETURN_NONE;
}

static PyObject *link_compute_digest(LinkStateObject *self, PyObject *args) {
    unsigned long long number;
    Py_buffer header, payload;
    if (!PyArg_ParseTuple(args, "Ky*y*", &number, &header, &payload)) return NULL;
    uint32_t digest;
    PyObject *made = NULL;
    ah_digester *signer = self->link.signer;
    if (signer == NULL || header.len != AH_FRAME_HEADER || link_needs_python(self))
        PyErr_SetString(PyExc_ValueError, "the core makes no digest of that");
    else if (signer->compute(signer, number, header.buf, payload.buf, (size_t)payload.len, &digest))
        made = PyLong_FromUnsignedLong(digest);
    else
        PyErr_SetString(PyExc_ValueError, "there is no digest of that");
    PyBuffer_Release(&header);
    PyBuffer_Release(&payload);
    return made;
}

bool link_needs_python(LinkStateObject *self) {
    /* Both are prepared. */
    bool signs = frame_digester_needs_python(&self->signer);
    return frame_digester_needs_python(&self->verifier) || signs;
}

static PyObject *link_feed(LinkStateObject *self, PyObject *given) {
    Py_buffer bytes;
    if (PyObject_GetBuffer(given, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    bool done = ah_link_feed(&self->link, bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *link_unread(LinkStateObject *self, PyObject *given) {
    Py_buffer bytes;
    if (PyObject_GetBuffer(given, &bytes, PyBUF_SIMPLE) < 0) return NULL;
    bool done = ah_link_unread(&self->link, bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *link_take(LinkStateObject *self, PyObject *args) {
    ah_link *link = &self->link;
    Py_ssize_t pending = (Py_ssize_t)ah_link_pending(link), wanted = pending;
    if (!PyArg_ParseTuple(args, "|n", &wanted)) return NULL;
    if (wanted < 0 || wanted > pending)
        return PyErr_Format(PyExc_ValueError, "%zd bytes of %zd", wanted, pending);
    PyObject *bytes =
        PyBytes_FromStringAndSize(wanted ? (const char *)link->data + link->start : NULL, wanted);
    if (bytes == NULL) return NULL;
    link->start += (size_t)wanted;
    if (wanted == pending) link->start = link->end = 0;
    return bytes;
}

static PyObject *link_take_rest(LinkStateObject *self, PyObject *unused) {
    (void)unused;
    if (self->rest == NULL) return PyErr_Format(PyExc_ValueError, "nothing is left to send");
    PyObject *rest = self->rest;
    self->rest = NULL;
    self->link.has_rest = self->link.has_unsent = false;
    return rest;
}

PyObject *link_take_credit_rest(ah_link *link) {
    size_t left = link->credit_left;
    const uint8_t *rest = link->credit_frame + (AH_FRAME_HEADER - left);
    link->credit_left = 0;
    return PyBytes_FromStringAndSize((const char *)rest, (Py_ssize_t)left);
}

static PyObject *link_pending(LinkStateObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(ah_link_pending(&self->link));
}

static PyMethodDef link_methods[] = {
    {"connect_inbound", (PyCFunction)link_connect_inbound, METH_VARARGS, NULL},
    {"connect_outbound", (PyCFunction)link_connect_outbound, METH_VARARGS, NULL},
    {"set_digesters", (PyCFunction)link_set_digesters, METH_VARARGS, NULL},
    {"compute_digest", (PyCFunction)link_compute_digest, METH_VARARGS, NULL},
    {"feed", (PyCFunction)link_feed, METH_O, NULL},
    {"unread", (PyCFunction)link_unread, METH_O, NULL},
    {"take", (PyCFunction)link_take, METH_VARARGS, NULL},
    {"take_rest", (PyCFunction)link_take_rest, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define AT(field) offsetof(LinkStateObject, link.field)
static PyMemberDef link_members[] = {
    {"credit", T_LONGLONG, AT(credit), 0, NULL},
    {"consumed", T_LONGLONG, AT(consumed), 0, NULL},
    {"signed_frames", T_ULONGLONG, AT(signed_frames), 0, NULL},
    {"verified_frames", T_ULONGLONG, AT(verified_frames), 0, NULL},
    {"has_rest", T_BOOL, AT(has_rest), 0, NULL},
    {"has_stopped", T_BOOL, AT(has_stopped), READONLY, NULL},
    {"is_lent", T_BOOL, AT(is_lent), 0, NULL},
    {"is_noted", T_BOOL, AT(is_noted), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef link_properties[] = {
    {"pending", (getter)link_pending, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot link_slots[] = {
    {Py_tp_new, link_new},         {Py_tp_dealloc, link_dealloc},   {Py_tp_methods, link_methods},
    {Py_tp_members, link_members}, {Py_tp_getset, link_properties}, {0, NULL},
};

static PyType_Spec link_spec = {
    .name = "allhands._native.LinkState",
    .basicsize = sizeof(LinkStateObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = link_slots,
};

int add_link_state_type(PyObject *module) {
    LinkState_Type = (PyTypeObject *)PyType_FromSpec(&link_spec);
    if (LinkState_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "LinkState", (PyObject *)LinkState_Type);
}
