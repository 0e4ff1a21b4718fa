#define _GNU_SOURCE
#include "python/p2p_object_state.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#include "comm/host.h"

#define TICK_NS (50 * 1000000LL) /* how late Ctrl-C may be seen by a call that is blocked */

PyTypeObject *Message_Type;

static void pause_python(void *owner) { ((Waiting *)owner)->saved = PyEval_SaveThread(); }

static void resume_python(void *owner) { PyEval_RestoreThread(((Waiting *)owner)->saved); }

static bool tick_python(void *owner) {
    Waiting *waiting = owner;
    PyEval_RestoreThread(waiting->saved);
    bool interrupted = PyErr_CheckSignals() < 0;
    waiting->saved = PyEval_SaveThread();
    return interrupted;
}

ah_wait_hooks message_hooks(Waiting *waiting, int64_t timeout) {
    return (ah_wait_hooks){pause_python, resume_python, tick_python,
                           timeout / 4 < TICK_NS ? timeout / 4 + 1 : TICK_NS, waiting};
}

PyObject *message_start(P2PObject *self, ah_message *message, PyArrayObject *array,
                        PyObject *context) {
    MessageObject *one = (MessageObject *)Message_Type->tp_alloc(Message_Type, 0);
    if (one == NULL) return NULL;
    one->owner = (P2PObject *)Py_NewRef(self);
    one->array = Py_NewRef(array);
    one->context = Py_NewRef(context);
    one->message = *message;
    one->message.owner = one;
    if (!message_describe(self, &one->message, array, &one->text)) {
        Py_DECREF(one);
        return NULL;
    }
    one->held = true;
    Py_INCREF(one);
    int started = ah_p2p_start(self->p2p, &one->message);
    if (started) {
        one->held = false;
        Py_DECREF(one);
    }
    if (started < 0) {
        Py_DECREF(one);
        return PyErr_NoMemory();
    }
    return (PyObject *)one;
}

void message_release(MessageObject *self) {
    if (!self->held) return;
    self->held = false;
    Py_DECREF(self);
}

static PyObject *message_wait(MessageObject *self, PyObject *given) {
    double seconds = PyFloat_AsDouble(given);
    if (PyErr_Occurred()) return NULL;
    int outcome = ah_message_outcome(&self->message);
    if (outcome == AH_RUNNING && self->owner->generation == p2p_generation) {
        Waiting waiting;
        ah_wait_hooks hooks = message_hooks(&waiting, INT64_MAX);
        int64_t until = seconds < 1e9 ? ah_now() + (int64_t)(seconds * NANOSECONDS) : INT64_MAX;
        Py_INCREF(self);
        ah_status status = ah_p2p_wait(self->owner->p2p, &self->message, until, &hooks);
        if (status == AH_OK && !self->message.is_queued) message_release(self);
        Py_DECREF(self);
        if (status == AH_INTERRUPTED) return NULL;
        outcome = status == AH_OK;
    }
    return PyBool_FromLong(outcome != AH_RUNNING);
}

static PyObject *message_cancel(MessageObject *self, PyObject *unused) {
    (void)unused;
    if (self->owner->generation == p2p_generation &&
        ah_message_outcome(&self->message) == AH_RUNNING) {
        Py_INCREF(self);
        Py_BEGIN_ALLOW_THREADS
        ah_p2p_end(self->owner->p2p, &self->message, AH_CANCELLED);
        Py_END_ALLOW_THREADS
        Py_DECREF(self);
    }
    Py_RETURN_NONE;
}

static PyObject *message_claim(MessageObject *self, PyObject *unused) {
    (void)unused;
    bool first = !self->claimed;
    self->claimed = true;
    return PyBool_FromLong(first);
}

static PyObject *message_outcome(MessageObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(outcome_names[ah_message_outcome(&self->message)]);
}

static PyObject *message_way(MessageObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(way_names[self->message.way]);
}

static PyObject *message_told(MessageObject *self, void *unused) {
    (void)unused;
    const char *expected = self->message.expected_text;
    return expected == NULL
               ? Py_NewRef(Py_None)
               : PyUnicode_DecodeUTF8(expected, (Py_ssize_t)strlen(expected), "replace");
}

static int message_traverse(MessageObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->context);
    Py_VISIT((PyObject *)self->owner);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int message_clear(MessageObject *self) {
    Py_CLEAR(self->context);
    return 0;
}

static void message_dealloc(MessageObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    message_clear(self);
    free(self->message.expected_text);
    Py_XDECREF(self->array);
    Py_XDECREF(self->text);
    Py_XDECREF((PyObject *)self->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef message_methods[] = {
    {"wait", (PyCFunction)message_wait, METH_O, NULL},
    {"cancel", (PyCFunction)message_cancel, METH_NOARGS, NULL},
    {"claim", (PyCFunction)message_claim, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef message_members[] = {
    {"context", T_OBJECT, offsetof(MessageObject, context), READONLY, NULL},
    {"source", T_INT, offsetof(MessageObject, message.source), READONLY, NULL},
    {"touched", T_BOOL, offsetof(MessageObject, message.touched), READONLY, NULL},
    {"sent_nbytes", T_ULONGLONG, offsetof(MessageObject, message.sent_nbytes), READONLY, NULL},
    {"sent_signature", T_ULONGLONG, offsetof(MessageObject, message.sent_signature), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef message_getset[] = {
    {"outcome", (getter)message_outcome, NULL, NULL, NULL},
    {"way", (getter)message_way, NULL, NULL, NULL},
    {"expected", (getter)message_told, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot message_slots[] = {
    {Py_tp_doc, "A message under way; described in _native.pyi."},
    {Py_tp_dealloc, message_dealloc},
    {Py_tp_traverse, message_traverse},
    {Py_tp_clear, message_clear},
    {Py_tp_methods, message_methods},
    {Py_tp_members, message_members},
    {Py_tp_getset, message_getset},
    {0, NULL},
};

static PyType_Spec message_spec = {
    .name = "allhands._native.Message",
    .basicsize = sizeof(MessageObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = message_slots,
};

int add_message_type(PyObject *module) {
    Message_Type = (PyTypeObject *)PyType_FromSpec(&message_spec);
    if (Message_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "Message", (PyObject *)Message_Type);
}
