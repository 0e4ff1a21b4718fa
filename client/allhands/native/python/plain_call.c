#include "python/plain_call.h"

#include <stdbool.h>
#include <structmember.h>

#include "python/slot_read.h"

#define MOST_PARAMETERS 16
#define MOST_PASSED 8

/* Where an argument goes, if not to a place among those of the method. */
enum { TO_GROUP = -1, NOWHERE = -2, BEGINS = -3 };

/* What the method's result means, unless it declines. */
typedef enum {
    TRUE_IS_NONE, /* true: the call returns None; false: declined */
    RANK,         /* the call returns it; negative: declined */
    ANY_RESULT,   /* the call returns it; False: declined */
    RESULTS
} ResultKind;

typedef struct {
    PyObject *name; /* interned */
    PyObject *default_;
    int place;
} Parameter;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* takes what the core does not */
    PyObject *dict, *weak_references;
    PyObject *holder;   /* has the default group */
    PyObject *on_error; /* function of an error that the method has raised */
    SlotRead *way;
    MethodRead method;
    MethodRead start; /* only begins the call; without a name: the function does */
    int value;        /* the argument that is the result of a call that was begun; -1: None */
    ResultKind result;
    int count, positional; /* of parameters; of those, how many may be given by position */
    uint32_t required;     /* a bit for each */
    int root;              /* rank of the world, None: 0; -1: there is none */
    Py_ssize_t passed_count;
    PyObject *passed[MOST_PASSED]; /* where nothing is given; NULL: something has to be */
    Parameter parameters[MOST_PARAMETERS];
} PlainCallObject;

static PyTypeObject *PlainCall_Type;
static SlotRead group_of_holder, order_of_group;
static SlotRead ways[] = {{0}, {0}, {0}};
static const char *const way_names[] = {"direct_calls", "direct_p2p", "vector_calls"};
#define WAYS (int)(sizeof ways / sizeof *ways)

/* ---------------------------------------------------------------- calls */

/* Arguments of a call, as the method takes them. */
typedef struct {
    PyObject *passed[MOST_PASSED + 1]; /* of a call that is begun its value too */
    PyObject *group;                   /* None: the default group */
    uint32_t seen;                     /* a bit for each parameter */
    bool begins;                       /* the call is begun, and waited for later */
} Bound;

/* Take an argument; false: it is none for the core. */
static inline bool bind_one(const PlainCallObject *self, int at, PyObject *value, Bound *bound) {
    const Parameter *parameter = &self->parameters[at];
    if (bound->seen & UINT32_C(1) << at) return false;
    bound->seen |= UINT32_C(1) << at;
    if (parameter->place == NOWHERE) return value == parameter->default_;
    if (parameter->place == BEGINS) {
        bound->begins = value == Py_True;
        return value == Py_True || value == Py_False;
    }
    if (parameter->place == TO_GROUP)
        bound->group = value;
    else if (at != self->root || value != Py_None)
        bound->passed[parameter->place] = value;
    return true;
}

static inline int find_parameter(const PlainCallObject *self, PyObject *name) {
    for (int at = 0; at < self->count; at++)
        if (self->parameters[at].name == name) return at;
    return -1;
}

/* False: the function is for these arguments, or for the error that they are. */
static inline bool bind(const PlainCallObject *self, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *names, Bound *bound) {
    if (nargs > self->positional) return false;
    bound->group = Py_None;
    bound->seen = 0;
    bound->begins = false;
    for (Py_ssize_t at = 0; at < self->passed_count; at++) bound->passed[at] = self->passed[at];
    for (Py_ssize_t at = 0; at < nargs; at++)
        if (!bind_one(self, (int)at, args[at], bound)) return false;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t at = 0; at < named; at++) {
        int found = find_parameter(self, PyTuple_GET_ITEM(names, at));
        if (found < 0 || !bind_one(self, found, args[nargs + at], bound)) return false;
    }
    /* The root of a group is to be found first. */
    return (self->required & ~bound->seen) == 0 && (self->root < 0 || bound->group == Py_None);
}

/* Whether a profiler or debugger looks at this thread: it shows the calls of functions. */
static inline bool is_traced(void) {
    PyThreadState *state = PyThreadState_Get();
    return state->c_profilefunc != NULL || state->c_tracefunc != NULL;
}

/* What the call may go by, a new reference; None: nothing; NULL with an exception. */
static inline PyObject *find_way(const PlainCallObject *self, PyObject *given) {
    PyObject *group = given == Py_None ? slot_read(&group_of_holder, self->holder) : given;
    PyObject *order = group == NULL ? NULL : slot_read(&order_of_group, group);
    PyObject *way = order == NULL ? NULL : slot_read(self->way, order);
    if (given == Py_None) Py_XDECREF(group);
    Py_XDECREF(order);
    /* The function meets this error again. */
    if (way == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
    return way;
}

/* Raise an error as public calls do, without the engine's frames: NULL. */
static PyObject *raise_trimmed(const PlainCallObject *self) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    PyObject *done = PyObject_CallOneArg(self->on_error, error);
    Py_XDECREF(traceback);
    if (done == NULL) {
        Py_DECREF(type);
        Py_DECREF(error);
        return NULL;
    }
    Py_DECREF(done);
    PyErr_Restore(type, error, PyException_GetTraceback(error));
    return NULL;
}

/* Return what the call does; NULL without an exception: it has been declined. */
static inline PyObject *read_result(const PlainCallObject *self, PyObject *result) {
    if (self->result == TRUE_IS_NONE) {
        int is_true = PyObject_IsTrue(result);
        Py_DECREF(result);
        return is_true > 0 ? Py_NewRef(Py_None) : NULL;
    }
    bool declined = result == Py_False;
    if (self->result == RANK) declined = PyLong_AsLong(result) < 0;
    if (!declined) return result;
    Py_DECREF(result);
    return NULL;
}

/* Make the call, if the core does: what it returns, or NULL. Without an exception the function is
 * for it. */
static inline PyObject *call_method(PlainCallObject *self, Bound *bound) {
    PyObject *way = find_way(self, bound->group);
    if (way == NULL) return NULL;
    FastMethod *method = method_read(&self->method, Py_TYPE(way));
    PyObject *result = NULL;
    if (method != NULL) {
        result = method(way, bound->passed, self->passed_count);
        result = result == NULL ? raise_trimmed(self) : read_result(self, result);
    }
    Py_DECREF(way);
    return result;
}

/* The same of a call that is only begun. */
static PyObject *start_method(PlainCallObject *self, Bound *bound) {
    PyObject *way = self->start.name ? find_way(self, bound->group) : NULL;
    if (way == NULL) return NULL;
    FastMethod *method = method_read(&self->start, Py_TYPE(way));
    PyObject *result = NULL;
    if (method != NULL) {
        bound->passed[self->passed_count] = self->value < 0 ? Py_None : bound->passed[self->value];
        result = method(way, bound->passed, self->passed_count + 1);
        if (result == NULL)
            raise_trimmed(self);
        else if (result == Py_None)
            Py_CLEAR(result);
    }
    Py_DECREF(way);
    return result;
}

static PyObject *call(PyObject *self_, PyObject *const *args, size_t nargsf, PyObject *names) {
    PlainCallObject *self = (PlainCallObject *)self_;
    Bound bound;
    if (!is_traced() && bind(self, args, PyVectorcall_NARGS(nargsf), names, &bound)) {
        PyObject *result = bound.begins ? start_method(self, &bound) : call_method(self, &bound);
        if (result != NULL || PyErr_Occurred()) return result;
    }
    return PyObject_Vectorcall(self->function, args, nargsf, names);
}

/* ---------------------------------------------------------------- life */

static PyObject *interned(PyObject *name) {
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    return name;
}

static bool set_way(PlainCallObject *self, const char *name) {
    for (int at = 0; at < WAYS; at++)
        if (strcmp(name, way_names[at]) == 0) self->way = &ways[at];
    if (self->way == NULL) PyErr_Format(PyExc_ValueError, "no such way: %s", name);
    return self->way != NULL;
}

/* From tuples of name, place, whether it may be left out, and default. */
static bool set_parameters(PlainCallObject *self, PyObject *parameters) {
    if (PyTuple_GET_SIZE(parameters) > MOST_PARAMETERS) {
        PyErr_Format(PyExc_ValueError, "more than %d parameters", MOST_PARAMETERS);
        return false;
    }
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(parameters); at++) {
        PyObject *name, *default_;
        int place, required;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, at), "UipO", &name, &place, &required,
                              &default_))
            return false;
        if (place < BEGINS || place >= self->passed_count) {
            PyErr_Format(PyExc_ValueError, "no place %d for %U", place, name);
            return false;
        }
        self->parameters[at] = (Parameter){interned(name), Py_NewRef(default_), place};
        self->required |= (uint32_t)(required != 0) << at;
        self->count++;
    }
    return true;
}

static bool set_passed(PlainCallObject *self, PyObject *passed) {
    if (PyTuple_GET_SIZE(passed) > MOST_PASSED) {
        PyErr_Format(PyExc_ValueError, "more than %d arguments", MOST_PASSED);
        return false;
    }
    for (; self->passed_count < PyTuple_GET_SIZE(passed); self->passed_count++)
        self->passed[self->passed_count] = Py_NewRef(PyTuple_GET_ITEM(passed, self->passed_count));
    return true;
}

static PyObject *plain_call_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"function", "holder",     "on_error",   "way",  "method",
                            "passed",   "parameters", "positional", "root", "result",
                            "start",    "value",      NULL};
    PyObject *function, *holder, *on_error, *method, *passed, *parameters, *start = Py_None;
    const char *way;
    int positional, root, result, value = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOsUO!O!iii|Oi", names, &function, &holder,
                                     &on_error, &way, &method, &PyTuple_Type, &passed,
                                     &PyTuple_Type, &parameters, &positional, &root, &result,
                                     &start, &value))
        return NULL;
    if (start != Py_None && !PyUnicode_Check(start))
        return PyErr_Format(PyExc_TypeError, "the name of a method, not %R", start);
    if (result < 0 || result >= RESULTS)
        return PyErr_Format(PyExc_ValueError, "no such kind of result: %d", result);
    PlainCallObject *self = (PlainCallObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = call;
    self->function = Py_NewRef(function);
    self->holder = Py_NewRef(holder);
    self->on_error = Py_NewRef(on_error);
    self->method.name = interned(method);
    if (start != Py_None) self->start.name = interned(start);
    self->value = value;
    self->positional = positional;
    self->root = root;
    self->result = (ResultKind)result;
    if (!set_way(self, way) || !set_passed(self, passed) || !set_parameters(self, parameters))
        Py_CLEAR(self);
    else if (value < -1 || value >= self->passed_count) {
        PyErr_Format(PyExc_ValueError, "no argument %d", value);
        Py_CLEAR(self);
    } else if (positional > self->count || root >= self->count) {
        PyErr_Format(PyExc_ValueError, "no more than %d parameters are named", self->count);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int plain_call_traverse(PlainCallObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->dict);
    Py_VISIT(self->holder);
    Py_VISIT(self->on_error);
    for (Py_ssize_t at = 0; at < self->passed_count; at++) Py_VISIT(self->passed[at]);
    for (int at = 0; at < self->count; at++) Py_VISIT(self->parameters[at].default_);
    return 0;
}

/* A cycle goes through its dictionary; what calls need stays as long as it does. */
static int plain_call_clear(PlainCallObject *self) {
    Py_CLEAR(self->dict);
    return 0;
}

static void plain_call_dealloc(PlainCallObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    plain_call_clear(self);
    Py_XDECREF(self->function);
    Py_XDECREF(self->holder);
    Py_XDECREF(self->on_error);
    Py_XDECREF(self->method.name);
    Py_XDECREF(self->start.name);
    for (Py_ssize_t at = 0; at < self->passed_count; at++) Py_DECREF(self->passed[at]);
    for (int at = 0; at < self->count; at++) {
        Py_DECREF(self->parameters[at].name);
        Py_DECREF(self->parameters[at].default_);
    }
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------- as functions are */

static PyObject *plain_call_get(PyObject *self, PyObject *object, PyObject *type) {
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *plain_call_repr(PlainCallObject *self) { return PyObject_Repr(self->function); }

/* By its name, in which the pickle looks for it. */
static PyObject *plain_call_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyObject_GetAttrString(self, "__qualname__");
}

static PyMethodDef plain_call_methods[] = {
    {"__reduce__", plain_call_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef plain_call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlainCallObject, vectorcall), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(PlainCallObject, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PlainCallObject, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef plain_call_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot plain_call_slots[] = {
    {Py_tp_new, plain_call_new},
    {Py_tp_dealloc, plain_call_dealloc},
    {Py_tp_traverse, plain_call_traverse},
    {Py_tp_clear, plain_call_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, plain_call_get},
    {Py_tp_repr, plain_call_repr},
    {Py_tp_methods, plain_call_methods},
    {Py_tp_members, plain_call_members},
    {Py_tp_getset, plain_call_attributes},
    {0, NULL},
};

static PyType_Spec plain_call_spec = {
    .name = "allhands._native.PlainCall",
    .basicsize = sizeof(PlainCallObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = plain_call_slots,
};

int add_plain_call_type(PyObject *module) {
    group_of_holder.name = PyUnicode_InternFromString("group");
    order_of_group.name = PyUnicode_InternFromString("order");
    bool named = group_of_holder.name != NULL && order_of_group.name != NULL;
    for (int at = 0; at < WAYS && named; at++)
        named = (ways[at].name = PyUnicode_InternFromString(way_names[at])) != NULL;
    if (!named || (PlainCall_Type = (PyTypeObject *)PyType_FromSpec(&plain_call_spec)) == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "PlainCall", (PyObject *)PlainCall_Type);
}
