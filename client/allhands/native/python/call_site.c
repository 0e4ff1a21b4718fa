/* The interpreter's own frames are walked where that is known to work: making frame objects of them
 * would cost more than a small call. */
#include <patchlevel.h>

#if PY_VERSION_HEX < 0x030E0000 && !defined(PYPY_VERSION) && !defined(Py_LIMITED_API)
#define WALKS_FRAMES
#define Py_BUILD_CORE 1
#endif

#include "python/call_site.h"

#ifdef WALKS_FRAMES
#include <internal/pycore_frame.h>
#endif

#include <stdbool.h>

#define MOST_FRAMES 64
#define FILES 16
#define OTHERS 4

/* Code objects of one file share its name, so that a look at the pointer mostly says it all. */
static struct {
    PyObject *name;
    bool skipped;
} files[FILES];
static int next_file;
static PyObject *package, *exempt, *others[OTHERS]; /* what names of files begin with */

static bool has_prefix(PyObject *name, PyObject *with) {
    return with != NULL && PyUnicode_Tailmatch(name, with, 0, PY_SSIZE_T_MAX, -1) == 1;
}

static bool is_skipped(PyObject *name) {
    for (int at = 0; at < FILES; at++)
        if (files[at].name == name) return files[at].skipped;
    bool skipped = has_prefix(name, package) && !has_prefix(name, exempt);
    for (int at = 0; at < OTHERS && !skipped; at++) skipped = has_prefix(name, others[at]);
    PyErr_Clear();
    int at = next_file++ % FILES;
    Py_XSETREF(files[at].name, Py_NewRef(name));
    files[at].skipped = skipped;
    return skipped;
}

#ifdef WALKS_FRAMES

static inline _PyInterpreterFrame *current(void) {
#if PY_VERSION_HEX < 0x030D0000
    return PyThreadState_Get()->cframe->current_frame;
#else
    return PyThreadState_Get()->current_frame;
#endif
}

static inline bool is_of_code(_PyInterpreterFrame *frame) {
#if PY_VERSION_HEX >= 0x030C0000
    if (frame->owner == FRAME_OWNED_BY_CSTACK) return false;
#endif
    return !_PyFrame_IsIncomplete(frame);
}

static inline PyCodeObject *code_of(_PyInterpreterFrame *frame) {
#if PY_VERSION_HEX < 0x030D0000
    return frame->f_code;
#else
    return _PyFrame_GetCode(frame);
#endif
}

PyObject *call_site_here(int32_t *instruction) {
    _PyInterpreterFrame *frame = current();
    for (int seen = 0; frame != NULL && seen < MOST_FRAMES; frame = frame->previous, seen++) {
        if (!is_of_code(frame) || is_skipped(code_of(frame)->co_filename)) continue;
        *instruction = _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
        return Py_NewRef(code_of(frame));
    }
    return NULL;
}

#else

PyObject *call_site_here(int32_t *instruction) {
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyObject *found = NULL;
    for (int seen = 0; frame != NULL && found == NULL && seen < MOST_FRAMES; seen++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        if (is_skipped(code->co_filename))
            Py_DECREF(code);
        else {
            found = (PyObject *)code;
            *instruction = PyFrame_GetLasti(frame);
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return found;
}

#endif

PyObject *call_site_tuple(PyObject *given, int32_t instruction) {
    PyCodeObject *code = (PyCodeObject *)given;
    int line = PyCode_Addr2Line(code, instruction);
    return Py_BuildValue("OiO", code->co_filename, line < 0 ? 0 : line, code->co_name);
}

static void forget_files(void) {
    for (int at = 0; at < FILES; at++) Py_CLEAR(files[at].name);
}

static PyObject *skip_frames_of(PyObject *unused, PyObject *args) {
    PyObject *skipped, *but;
    (void)unused;
    if (!PyArg_ParseTuple(args, "UU", &skipped, &but)) return NULL;
    Py_XSETREF(package, Py_NewRef(skipped));
    Py_XSETREF(exempt, Py_NewRef(but));
    forget_files();
    Py_RETURN_NONE;
}

static PyObject *also_skip_frames_of(PyObject *unused, PyObject *prefix) {
    (void)unused;
    if (!PyUnicode_Check(prefix)) return PyErr_Format(PyExc_TypeError, "a str, not %R", prefix);
    for (int at = 0; at < OTHERS; at++) {
        if (others[at] == NULL) {
            others[at] = Py_NewRef(prefix);
            forget_files();
            Py_RETURN_NONE;
        }
        if (PyUnicode_Compare(others[at], prefix) == 0) Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "no more than %d others", OTHERS);
}

/* What call_site_here gives; None for the code: nothing. */
static PyObject *find_caller(PyObject *unused, PyObject *none) {
    (void)unused;
    (void)none;
    int32_t instruction = 0;
    PyObject *code = call_site_here(&instruction);
    return Py_BuildValue("Ni", code == NULL ? Py_NewRef(Py_None) : code, (int)instruction);
}

static PyMethodDef functions[] = {
    {"skip_frames_of", skip_frames_of, METH_VARARGS, NULL},
    {"also_skip_frames_of", also_skip_frames_of, METH_O, NULL},
    {"find_caller", find_caller, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_call_site_functions(PyObject *module) { return PyModule_AddFunctions(module, functions); }
