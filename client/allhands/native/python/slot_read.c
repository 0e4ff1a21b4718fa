#include "python/slot_read.h"

#include <structmember.h>

/* What a class has under a name, and its version afterwards; NULL: it does not say by itself where
 * its objects have it. */
static PyObject *find(PyTypeObject *type, PyObject *name, unsigned *version) {
    *version = 0;
    if (type->tp_getattro != PyObject_GenericGetAttr) return NULL;
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);
    if (found == NULL) PyErr_Clear();
    *version = type->tp_version_tag; /* the look at it gave it one, if any are left */
    return found;
}

void slot_read_miss(SlotRead *self, PyTypeObject *type) {
    PyObject *found = find(type, self->name, &self->version);
    self->offset = 0;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyMemberDescrObject *member = (PyMemberDescrObject *)found;
        if (member->d_member->type == T_OBJECT_EX && PyType_IsSubtype(type, PyDescr_TYPE(member)))
            self->offset = member->d_member->offset;
    }
    Py_XDECREF(found);
}

static bool have_dict(PyTypeObject *type) {
#ifdef Py_TPFLAGS_MANAGED_DICT
    if (PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT)) return true;
#endif
    return type->tp_dictoffset != 0;
}

void method_read_miss(MethodRead *self, PyTypeObject *type) {
    PyObject *found = find(type, self->name, &self->version);
    self->function = NULL;
    if (found != NULL && Py_IS_TYPE(found, &PyMethodDescr_Type) && !have_dict(type)) {
        PyMethodDescrObject *method = (PyMethodDescrObject *)found;
        if (method->d_method->ml_flags == METH_FASTCALL &&
            PyType_IsSubtype(type, PyDescr_TYPE(method)))
            self->function = (FastMethod *)(void (*)(void))method->d_method->ml_meth;
    }
    Py_XDECREF(found);
}
