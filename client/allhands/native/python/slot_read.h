/* Attributes and methods that are found again where they were last found in objects of the same
 * class, as the interpreter's own instructions do: a class gets another version when it changes. */
#ifndef ALLHANDS_SLOT_READ_H
#define ALLHANDS_SLOT_READ_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* An attribute, and where the latest class has it. */
typedef struct {
    PyObject *name;    /* interned */
    unsigned version;  /* of that class; 0: of none */
    Py_ssize_t offset; /* in its objects; 0: it is not in a slot */
} SlotRead;

typedef PyObject *FastMethod(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* A method of types of the core that takes arguments by position. */
typedef struct {
    PyObject *name;       /* interned */
    unsigned version;     /* of the latest class; 0: of none */
    FastMethod *function; /* of that; NULL: it has no such method */
} MethodRead;

void slot_read_miss(SlotRead *self, PyTypeObject *type);
void method_read_miss(MethodRead *self, PyTypeObject *type);

/* The attribute, a new reference; NULL with an exception. */
static inline PyObject *slot_read(SlotRead *self, PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (self->version != type->tp_version_tag || self->version == 0) slot_read_miss(self, type);
    PyObject *found = self->offset == 0 ? NULL : *(PyObject **)((char *)object + self->offset);
    return found != NULL ? Py_NewRef(found) : PyObject_GetAttr(object, self->name);
}

/* The method of objects of a class; NULL: it has none, or one in Python. */
static inline FastMethod *method_read(MethodRead *self, PyTypeObject *type) {
    if (self->version != type->tp_version_tag || self->version == 0) method_read_miss(self, type);
    return self->function;
}

#endif
