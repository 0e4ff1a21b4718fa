/* allhands._native: what Python is too slow for, or cannot order. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL allhands_array_api
#include <numpy/arrayobject.h>

#include "kernels/kernels.h"
#include "python/arrays.h"
#include "python/atomic_calls.h"
#include "python/attribute_names.h"
#include "python/block_pool.h"
#include "python/board_object.h"
#include "python/buffer_spec.h"
#include "python/call_collector.h"
#include "python/call_site.h"
#include "python/comm_object.h"
#include "python/deadline.h"
#include "python/dlpack.h"
#include "python/link_call_object.h"
#include "python/link_collectives.h"
#include "python/link_gate.h"
#include "python/link_messages.h"
#include "python/link_object.h"
#include "python/memory_owner.h"
#include "python/p2p_object.h"
#include "python/plain_call.h"
#include "python/segment_object.h"
#include "python/tls_channel.h"

#define MOST_OPERANDS 64

static PyObject *supports(PyObject *unused, PyObject *args) {
    int op, type;
    (void)unused;
    if (!PyArg_ParseTuple(args, "ii", &op, &type)) return NULL;
    return PyBool_FromLong(op >= 0 && op < AH_OPS && type >= 0 && type < AH_TYPES &&
                           ah_supports(op, type));
}

static PyObject *fold(PyObject *unused, PyObject *args) {
    int op, type;
    PyArrayObject *out;
    PyObject *ins;
    Py_ssize_t divisor;
    (void)unused;
    if (!PyArg_ParseTuple(args, "iiO!O!n", &op, &type, &PyArray_Type, &out, &PyTuple_Type, &ins,
                          &divisor))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(ins);
    if (op < 0 || op >= AH_OPS || type < 0 || type >= AH_TYPES || !ah_supports(op, type))
        return PyErr_Format(PyExc_TypeError, "operation %d is not defined for type %d", op, type);
    if (n < 1 || n > MOST_OPERANDS || divisor < 1)
        return PyErr_Format(PyExc_ValueError, "from 1 to %d operands", MOST_OPERANDS);
    const void *operands[MOST_OPERANDS];
    for (Py_ssize_t at = 0; at <= n; at++) {
        PyObject *item = at < n ? PyTuple_GET_ITEM(ins, at) : (PyObject *)out;
        int wanted = NPY_ARRAY_C_CONTIGUOUS | (at < n ? 0 : NPY_ARRAY_WRITEABLE);
        if (!PyArray_Check(item) || !PyArray_CHKFLAGS((PyArrayObject *)item, wanted) ||
            PyArray_SIZE((PyArrayObject *)item) != PyArray_SIZE(out) ||
            (size_t)PyArray_ITEMSIZE((PyArrayObject *)item) != ah_type_size(type))
            return PyErr_Format(PyExc_TypeError, "operand %zd is not like the others", at);
        if (at < n) operands[at] = PyArray_DATA((PyArrayObject *)item);
    }
    Py_BEGIN_ALLOW_THREADS
    ah_fold(op, type, PyArray_DATA(out), operands, (int)n, (size_t)PyArray_SIZE(out),
            (size_t)divisor);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *copy(PyObject *unused, PyObject *args) {
    PyArrayObject *to, *from;
    int once;
    (void)unused;
    if (!PyArg_ParseTuple(args, "O!O!p", &PyArray_Type, &to, &PyArray_Type, &from, &once))
        return NULL;
    if (!PyArray_CHKFLAGS(to, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE) ||
        !PyArray_CHKFLAGS(from, NPY_ARRAY_C_CONTIGUOUS) ||
        PyArray_NBYTES(to) != PyArray_NBYTES(from))
        return PyErr_Format(PyExc_ValueError, "arrays must be contiguous, and of one size");
    Py_BEGIN_ALLOW_THREADS
    ah_copy(PyArray_DATA(to), PyArray_DATA(from), (size_t)PyArray_NBYTES(to), once);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"supports", supports, METH_VARARGS, NULL},
    {"fold", fold, METH_VARARGS, NULL},
    {"copy", copy, METH_VARARGS, NULL},
    {"allocate_bytes", allocate_bytes, METH_O, NULL},
    {"is_in_gate", is_in_gate, METH_NOARGS, NULL},
    {"view_dlpack", (PyCFunction)(void (*)(void))view_dlpack, METH_FASTCALL, NULL},
    {"view_memory", (PyCFunction)(void (*)(void))view_memory, METH_FASTCALL, NULL},
    {"view_spec", (PyCFunction)(void (*)(void))view_spec, METH_FASTCALL, NULL},
    {"copy_spec", (PyCFunction)(void (*)(void))copy_spec, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "allhands._native",
    .m_doc = "Shared memory, waits and reductions; described in _native.pyi.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void); /* the one name that is exported */

PyMODINIT_FUNC PyInit__native(void) {
    import_array();
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || find_deadlines() < 0 || find_attribute_names() < 0 ||
        find_spec_names() < 0 || add_segment_types(module) < 0 || add_comm_type(module) < 0 ||
        add_collector_type(module) < 0 || add_atomic_type(module) < 0 ||
        add_p2p_types(module) < 0 || add_board_type(module) < 0 ||
        add_tls_channel_type(module) < 0 || add_link_state_type(module) < 0 ||
        add_link_call_type(module) < 0 || add_link_messages_type(module) < 0 ||
        add_link_collectives_type(module) < 0 || add_call_site_functions(module) < 0 ||
        add_memory_owner_type(module) < 0 || add_plain_call_type(module) < 0 ||
        PyModule_AddStringConstant(module, "INSTRUCTIONS", ah_instructions()) < 0)
        return NULL;
    return module;
}
