#include "python/buffer_spec.h"

#include <string.h>

#include "kernels/copy.h"

#define LONG_COPY (1 << 16) /* bytes, for which other threads may run */

static PyObject *numbers_name;

int find_spec_names(void) {
    numbers_name = PyUnicode_InternFromString("numbers");
    return numbers_name == NULL ? -1 : 0;
}

typedef struct {
    PyObject *buffer, *count, *datatype; /* borrowed; NULL: not given */
} Parts;

/* False: the list has another form. */
static bool split_spec(PyObject *spec, Parts *parts) {
    *parts = (Parts){.buffer = spec};
    if (!PyList_CheckExact(spec) && !PyTuple_CheckExact(spec)) return true;
    Py_ssize_t items = PySequence_Fast_GET_SIZE(spec);
    PyObject **item = PySequence_Fast_ITEMS(spec);
    if (items != 2 && items != 3) return false;
    parts->buffer = item[0];
    if (items == 3 || PyLong_CheckExact(item[1])) parts->count = item[1];
    if (items == 3 || parts->count == NULL) parts->datatype = item[items - 1];
    if (parts->count == Py_None) parts->count = NULL;
    return parts->count == NULL || PyLong_CheckExact(parts->count);
}

static bool is_of_numbers(PyArrayObject *array) {
    return PyArray_TYPE(array) <= NPY_CLONGDOUBLE && PyArray_ISNOTSWAPPED(array);
}

/* The dtype of a datatype whose elements lie in memory as an array of it has them; a new reference,
 * NULL without an exception: there is none. */
static PyArray_Descr *dtype_of(PyObject *datatype) {
    PyObject *found = PyObject_GetAttr(datatype, numbers_name);
    if (found == NULL) {
        PyErr_Clear();
        return NULL;
    }
    if (!PyArray_DescrCheck(found) || PyDataType_ELSIZE((PyArray_Descr *)found) == 0) {
        Py_DECREF(found);
        return NULL;
    }
    return (PyArray_Descr *)found;
}

typedef struct {
    PyObject *owner; /* a new reference */
    void *address;
    npy_intp nbytes;
    bool is_writable;
} Memory;

/* The memory of an object that is no array. False without an exception. */
static bool export_memory(PyObject *buffer, Memory *memory) {
    /* Constants that stand for buffers are of subclasses. */
    if (!PyObject_CheckBuffer(buffer) || (PyBytes_Check(buffer) && !PyBytes_CheckExact(buffer)))
        return false;
    PyObject *view = PyMemoryView_FromObject(buffer);
    if (view == NULL) {
        PyErr_Clear();
        return false;
    }
    const Py_buffer *exported = PyMemoryView_GET_BUFFER(view);
    if (!PyBuffer_IsContiguous(exported, 'C')) {
        Py_DECREF(view);
        return false;
    }
    *memory = (Memory){view, exported->buf, exported->len, !exported->readonly};
    return true;
}

static bool find_memory(PyObject *buffer, Memory *memory) {
    if (!PyArray_CheckExact(buffer)) return export_memory(buffer, memory);
    PyArrayObject *array = (PyArrayObject *)buffer;
    if (!PyArray_IS_C_CONTIGUOUS(array) || !is_of_numbers(array)) return false;
    *memory = (Memory){Py_NewRef(buffer), PyArray_DATA(array), PyArray_NBYTES(array),
                       PyArray_ISWRITEABLE(array)};
    return true;
}

/* Elements that a specification names; -1 without an exception: the careful way looks. */
static npy_intp count_elements(const Parts *parts, npy_intp room, npy_intp size, npy_intp blocks) {
    if (parts->count == NULL) {
        npy_intp whole = room / size;
        return room % size || whole % blocks ? -1 : whole;
    }
    npy_intp count = PyLong_AsSsize_t(parts->count);
    if (count == -1 && PyErr_Occurred()) PyErr_Clear();
    return count < 0 || count > room / size / blocks ? -1 : count * blocks;
}

PyArrayObject *spec_array(PyObject *spec, bool written, bool as_bytes, npy_intp blocks) {
    Parts parts;
    Memory memory;
    PyArrayObject *array = NULL;
    if (blocks < 1 || !split_spec(spec, &parts) || !find_memory(parts.buffer, &memory)) return NULL;
    PyArray_Descr *dtype = NULL;
    bool is_array = PyArray_CheckExact(memory.owner);
    if (parts.datatype != NULL)
        dtype = dtype_of(parts.datatype);
    else if (is_array)
        dtype = (PyArray_Descr *)Py_NewRef(PyArray_DESCR((PyArrayObject *)memory.owner));
    if (dtype == NULL || (written && !memory.is_writable)) goto done;
    npy_intp size = PyDataType_ELSIZE(dtype);
    npy_intp count = count_elements(&parts, memory.nbytes, size, blocks);
    if (count < 0) goto done;
    if (as_bytes) {
        count *= size;
        Py_SETREF(dtype, PyArray_DescrFromType(NPY_UINT8));
    }
    if (is_array) {
        PyArrayObject *given = (PyArrayObject *)memory.owner;
        if (PyArray_NDIM(given) == 1 && PyArray_TYPE(given) == dtype->type_num &&
            PyArray_SIZE(given) == count) {
            array = (PyArrayObject *)Py_NewRef(given);
            goto done;
        }
    }
    /* Takes the dtype over. */
    array =
        (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, dtype, 1, &count, NULL, memory.address,
                                              memory.is_writable ? NPY_ARRAY_WRITEABLE : 0, NULL);
    dtype = NULL;
    if (array != NULL && PyArray_SetBaseObject(array, Py_NewRef(memory.owner)) < 0) Py_CLEAR(array);
    if (array == NULL) PyErr_Clear();
done:
    Py_XDECREF(dtype);
    Py_DECREF(memory.owner);
    return array;
}

PyObject *view_spec(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    Py_ssize_t blocks = nargs == 4 ? PyLong_AsSsize_t(args[3]) : -1;
    if (blocks == -1 && PyErr_Occurred()) return NULL;
    if (blocks < 1)
        return PyErr_Format(PyExc_TypeError, "view_spec(spec, written, as_bytes, blocks)");
    PyArrayObject *array =
        spec_array(args[0], args[1] == Py_True, args[2] == Py_True, (npy_intp)blocks);
    if (array == NULL) Py_RETURN_NONE;
    return (PyObject *)array;
}

PyObject *copy_spec(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 2 || !PyArray_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "copy_spec(spec, array)");
    PyArrayObject *to = (PyArrayObject *)args[1], *from = spec_array(args[0], false, false, 1);
    if (from == NULL) Py_RETURN_FALSE;
    size_t nbytes = (size_t)PyArray_NBYTES(from);
    char *target = PyArray_BYTES(to);
    const char *source = PyArray_BYTES(from);
    bool fits = PyArray_TYPE(from) == PyArray_TYPE(to) && PyArray_NBYTES(to) == (npy_intp)nbytes &&
                PyArray_CHKFLAGS(to, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE) &&
                (source + nbytes <= target || target + nbytes <= source);
    if (fits && nbytes < LONG_COPY) {
        ah_copy_bytes(target, source, nbytes);
    } else if (fits) {
        Py_BEGIN_ALLOW_THREADS
        ah_copy(target, source, nbytes, false);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(from);
    return PyBool_FromLong(fits);
}
