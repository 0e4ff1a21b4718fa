#include "python/link_plan.h"

#include <string.h>

#include "kernels/copy.h"
#include "kernels/kernels.h"

/* ---------------------------------------------------------------- arguments */

/* The arrays by which a plan is found: the first and the last. */
static int shape_count(const LinkArguments *given) {
    return given->array_count < 2 ? given->array_count : 2;
}

static PyArrayObject *shaped(const LinkArguments *given, int at) {
    return given->arrays[at == 0 ? 0 : given->array_count - 1];
}

static bool is_of(const LinkPlan *plan, const LinkArguments *given) {
    if (plan->kind != given->kind || plan->op != given->op || plan->root != given->root ||
        plan->array_count != given->array_count)
        return false;
    for (int i = 0; i < shape_count(given); i++) {
        PyArrayObject *array = shaped(given, i);
        if ((PyObject *)PyArray_DESCR(array) != plan->descr || PyArray_NDIM(array) != plan->ndim[i])
            return false;
        for (int dim = 0; dim < plan->ndim[i]; dim++)
            if (PyArray_DIM(array, dim) != plan->dims[i][dim]) return false;
    }
    return true;
}

static size_t hash(const LinkArguments *given) {
    uint64_t mixed = (uint64_t)given->kind << 8 ^ (uint64_t)(given->root + 1);
    for (int i = 0; i < shape_count(given); i++) {
        PyArrayObject *array = shaped(given, i);
        for (int dim = 0; dim < PyArray_NDIM(array); dim++)
            mixed = (mixed ^ (uint64_t)PyArray_DIM(array, dim)) * UINT64_C(0x9E3779B97F4A7C15);
        mixed ^= (uint64_t)PyArray_TYPE(array) << 32 ^ mixed >> 29;
    }
    mixed ^= (uintptr_t)given->op >> 4;
    return (size_t)((mixed * UINT64_C(0x9E3779B97F4A7C15)) >> 58) % (LINK_PLANS / LINK_WAYS);
}

/* The places of a plan for these arguments, LINK_WAYS of them. */
static LinkPlan *find_places(LinkPlans *self, const LinkArguments *given) {
    return &self->plans[hash(given) * LINK_WAYS];
}

LinkPlan *plans_find(LinkPlans *self, const LinkArguments *given) {
    LinkPlan *places = find_places(self, given);
    for (LinkPlan *plan = places; plan < places + LINK_WAYS; plan++) {
        if (!is_of(plan, given)) continue;
        plan->used = ++self->uses;
        return plan;
    }
    return NULL;
}

/* The place that is free, or was not used for the longest time. */
static LinkPlan *find_room(LinkPlans *self, const LinkArguments *given) {
    LinkPlan *places = find_places(self, given), *oldest = places;
    for (LinkPlan *plan = places; plan < places + LINK_WAYS; plan++)
        if (plan->used < oldest->used) oldest = plan;
    return oldest;
}

/* ---------------------------------------------------------------- life */

static void set_none(LinkPlan *plan) { *plan = (LinkPlan){.kind = AH_KINDS}; }

void plans_init(LinkPlans *self) {
    for (int i = 0; i < LINK_PLANS; i++) set_none(&self->plans[i]);
}

static void plan_clear(LinkPlan *plan) {
    LinkPlan old = *plan; /* whose end may run other threads: not before it is gone */
    set_none(plan);
    link_schedule_clear(&old.own);
    link_comparison_clear(&old.comparison);
    PyMem_Free(old.pieces);
    PyMem_Free(old.memory);
    PyMem_Free(old.staged);
    PyMem_Free(old.loaded);
    PyMem_Free(old.heads);
    Py_XDECREF(old.head);
    Py_XDECREF(old.op);
    Py_XDECREF(old.descr);
    Py_XDECREF(old.signature);
    Py_XDECREF(old.number);
    Py_XDECREF(old.how);
    Py_XDECREF(old.label);
    Py_XDECREF(old.labelled);
    Py_XDECREF(old.labelled_number);
    Py_XDECREF(old.scratch);
}

void plans_clear(LinkPlans *self) {
    for (int i = 0; i < LINK_PLANS; i++) plan_clear(&self->plans[i]);
}

/* ---------------------------------------------------------------- adding */

static void keep_arguments(LinkPlan *plan, const LinkArguments *given) {
    plan->kind = given->kind;
    plan->op = Py_XNewRef(given->op);
    plan->root = given->root;
    plan->array_count = given->array_count;
    for (int i = 0; i < shape_count(given); i++) {
        PyArrayObject *array = shaped(given, i);
        plan->ndim[i] = PyArray_NDIM(array);
        for (int dim = 0; dim < plan->ndim[i]; dim++) plan->dims[i][dim] = PyArray_DIM(array, dim);
    }
    if (given->array_count > 0) {
        plan->descr = Py_NewRef((PyObject *)PyArray_DESCR(given->arrays[0]));
        plan->type = type_of_number(PyArray_TYPE(given->arrays[0]));
    }
}

static bool read_piece(const LinkPlan *plan, const LinkArguments *given, PyObject *row,
                       PlanPiece *piece) {
    int place;
    Py_ssize_t offset, nbytes;
    if (!PyArg_ParseTuple(row, "inn", &place, &offset, &nbytes)) return false;
    size_t room = 0;
    if (place == PLACE_STAGING)
        room = plan->staging_bytes;
    else if (place == PLACE_SCRATCH)
        room = (size_t)PyArray_NBYTES((PyArrayObject *)plan->scratch);
    else if (place >= 0 && place < given->array_count)
        room = (size_t)PyArray_NBYTES(given->arrays[place]);
    if (offset < 0 || nbytes < 0 || (size_t)offset > room ||
        (size_t)nbytes > room - (size_t)offset) {
        PyErr_SetString(PyExc_ValueError, "a piece lies outside of its memory");
        return false;
    }
    *piece = (PlanPiece){place, (size_t)offset, (size_t)nbytes};
    return true;
}

static bool read_areas(LinkPlan *plan, const LinkArguments *given, PyObject *areas[AH_AREAS]) {
    Py_ssize_t total = 0, at = 0;
    for (int area = 0; area < AH_AREAS; area++) total += PyTuple_GET_SIZE(areas[area]);
    plan->pieces = PyMem_Calloc((size_t)total + 1, sizeof *plan->pieces);
    plan->memory = PyMem_Calloc((size_t)total + 1, sizeof *plan->memory);
    if (plan->pieces == NULL || plan->memory == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (int area = 0; area < AH_AREAS; area++) {
        plan->counts[area] = (int)PyTuple_GET_SIZE(areas[area]);
        for (int i = 0; i < plan->counts[area]; i++)
            if (!read_piece(plan, given, PyTuple_GET_ITEM(areas[area], i), &plan->pieces[at++]))
                return false;
    }
    return true;
}

/* Read pairs of pieces, of staging memory and of an array. */
static bool read_pairs(const LinkPlan *plan, const LinkArguments *given, PyObject *rows,
                       StagedOutput **pairs, int *count) {
    *count = (int)PyTuple_GET_SIZE(rows);
    *pairs = PyMem_Calloc((size_t)*count + 1, sizeof **pairs);
    if (*pairs == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (int i = 0; i < *count; i++) {
        PyObject *staged, *output;
        StagedOutput *one = &(*pairs)[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "O!O!", &PyTuple_Type, &staged,
                              &PyTuple_Type, &output) ||
            !read_piece(plan, given, staged, &one->staged) ||
            !read_piece(plan, given, output, &one->output))
            return false;
        if (one->staged.place != PLACE_STAGING || one->output.place < 0 ||
            one->staged.nbytes != one->output.nbytes) {
            PyErr_SetString(PyExc_ValueError, "what is staged is of no array");
            return false;
        }
    }
    return true;
}

/* Read what stands before the blocks of an exchange, and where: a row of `HeadsRow`, or None. */
static bool read_heads(LinkPlan *plan, const LinkArguments *given, PyObject *row) {
    PyObject *head, *heads;
    if (row == Py_None) return true;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "O!O!", &PyBytes_Type, &head, &PyTuple_Type, &heads)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "heads are a tuple");
        return false;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(heads);
    plan->heads = PyMem_Calloc((size_t)count + 1, sizeof *plan->heads);
    if (plan->heads == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_piece(plan, given, PyTuple_GET_ITEM(heads, i), &plan->heads[i])) return false;
        if (plan->heads[i].place != PLACE_STAGING ||
            plan->heads[i].nbytes != (size_t)PyBytes_GET_SIZE(head)) {
            PyErr_SetString(PyExc_ValueError, "a head is not staged");
            return false;
        }
    }
    plan->head = Py_NewRef(head);
    plan->head_count = (int)count / 2;
    return true;
}

/* Whether the call finds all that it names; false with an exception. */
static bool check_memory(LinkPlan *plan, const LinkArguments *given) {
    ah_memory memory[AH_AREAS];
    uint8_t *staging = PyMem_Malloc(plan->staging_bytes + 1);
    if (staging == NULL) {
        PyErr_NoMemory();
        return false;
    }
    plan_locate(plan, given, staging, memory);
    bool fits = link_call_fits(plan->own.call, memory);
    PyMem_Free(staging);
    if (!fits) PyErr_SetString(PyExc_ValueError, "a span of the schedule lies in several pieces");
    return fits;
}

static bool read_row(LinkPlan *plan, const LinkArguments *given, PyObject *row) {
    PyObject *call, *compiled, *signature, *number, *how, *scratch, *ranks, *staged, *loaded;
    PyObject *heads, *comparison;
    PyObject *areas[AH_AREAS];
    int loads, divides, is_agreed;
    Py_ssize_t staging_bytes;
    if (!PyArg_ParseTuple(
            row, "O!OOO!UO!O!O!O!O!nO!O!pppOO", LinkCall_Type, &call, &compiled, &signature,
            &PyLong_Type, &number, &how, &PyArray_Type, &scratch, &PyTuple_Type, &ranks,
            &PyTuple_Type, &areas[AH_AREA_INPUT], &PyTuple_Type, &areas[AH_AREA_OUTPUT],
            &PyTuple_Type, &areas[AH_AREA_SCRATCH], &staging_bytes, &PyTuple_Type, &staged,
            &PyTuple_Type, &loaded, &loads, &divides, &is_agreed, &heads, &comparison))
        return false;
    if (staging_bytes < 0 || (divides && (given->array_count == 0 || plan->type == AH_TYPES ||
                                          !ah_supports(AH_AVG, plan->type)))) {
        PyErr_SetString(PyExc_ValueError, "no such plan");
        return false;
    }
    plan->signature = Py_NewRef(signature);
    plan->number = Py_NewRef(number);
    plan->how = Py_NewRef(how);
    plan->scratch = Py_NewRef(scratch);
    plan->staging_bytes = (size_t)staging_bytes;
    plan->loads = loads;
    plan->divides = divides;
    plan->is_agreed = is_agreed;
    return link_schedule_read(&plan->own, call, compiled, ranks) &&
           read_areas(plan, given, areas) &&
           read_pairs(plan, given, staged, &plan->staged, &plan->staged_count) &&
           read_pairs(plan, given, loaded, &plan->loaded, &plan->loaded_count) &&
           read_heads(plan, given, heads) && check_memory(plan, given) &&
           link_comparison_read(&plan->comparison, given->array_count > 0, comparison);
}

LinkPlan *plans_add(LinkPlans *self, const LinkArguments *given, PyObject *row) {
    LinkPlan made = {.kind = AH_KINDS};
    keep_arguments(&made, given);
    if (row != Py_None &&
        (!PyTuple_Check(row) ? (PyErr_SetString(PyExc_TypeError, "a plan is a tuple"), true)
                             : !read_row(&made, given, row))) {
        plan_clear(&made);
        return NULL;
    }
    LinkPlan *plan = find_room(self, given);
    plan_clear(plan);
    *plan = made;
    plan->used = ++self->uses;
    return plan;
}

/* ---------------------------------------------------------------- labels */

int plan_set_label(LinkPlan *plan, PyObject *label, PyObject *signed_call) {
    PyObject *signature, *number;
    if (!PyTuple_Check(signed_call) ||
        !PyArg_ParseTuple(signed_call, "OO!", &signature, &PyLong_Type, &number)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "no signature and its number");
        return -1;
    }
    Py_XSETREF(plan->label, Py_NewRef(label));
    Py_XSETREF(plan->labelled, Py_NewRef(signature));
    Py_XSETREF(plan->labelled_number, Py_NewRef(number));
    return 0;
}

bool plan_has_label(const LinkPlan *plan, PyObject *label) {
    if (plan->label == NULL) return false;
    return plan->label == label || PyUnicode_Compare(plan->label, label) == 0;
}

/* ---------------------------------------------------------------- memory of a call */

static uint8_t *locate(const LinkPlan *plan, const LinkArguments *given, uint8_t *staging,
                       const PlanPiece *piece) {
    switch (piece->place) {
    case PLACE_STAGING: return staging + piece->offset;
    case PLACE_SCRATCH:
        return (uint8_t *)PyArray_DATA((PyArrayObject *)plan->scratch) + piece->offset;
    default: return (uint8_t *)PyArray_DATA(given->arrays[piece->place]) + piece->offset;
    }
}

void plan_locate(LinkPlan *plan, const LinkArguments *given, uint8_t *staging,
                 ah_memory memory[AH_AREAS]) {
    int at = 0;
    for (int area = 0; area < AH_AREAS; area++) {
        memory[area] = (ah_memory){plan->memory + at, plan->counts[area]};
        for (int i = 0; i < plan->counts[area]; i++, at++)
            plan->memory[at] = (ah_piece){locate(plan, given, staging, &plan->pieces[at]),
                                          plan->pieces[at].nbytes};
    }
}

static void load(const LinkPlan *plan, const LinkArguments *given, uint8_t *staging,
                 const StagedOutput *pairs, int count) {
    for (int i = 0; i < count; i++)
        ah_copy_bytes(staging + pairs[i].staged.offset,
                      locate(plan, given, staging, &pairs[i].output), pairs[i].output.nbytes);
}

void plan_load(const LinkPlan *plan, const LinkArguments *given, uint8_t *staging) {
    if (plan->loads) load(plan, given, staging, plan->staged, plan->staged_count);
    load(plan, given, staging, plan->loaded, plan->loaded_count);
    for (int i = 0; i < plan->head_count; i++)
        memcpy(staging + plan->heads[i].offset, PyBytes_AS_STRING(plan->head),
               plan->heads[i].nbytes);
}

bool plan_agrees(const LinkPlan *plan, const uint8_t *staging) {
    for (int i = plan->head_count; i < 2 * plan->head_count; i++)
        if (memcmp(staging + plan->heads[i].offset, PyBytes_AS_STRING(plan->head),
                   plan->heads[i].nbytes) != 0)
            return false;
    return true;
}

void plan_commit(const LinkPlan *plan, const LinkArguments *given, const uint8_t *staging) {
    for (int i = 0; i < plan->staged_count; i++) {
        const StagedOutput *one = &plan->staged[i];
        ah_copy_bytes(locate(plan, given, NULL, &one->output), staging + one->staged.offset,
                      one->output.nbytes);
    }
    if (plan->divides) {
        void *sum = PyArray_DATA(given->arrays[0]);
        const void *operands[] = {sum};
        ah_fold(AH_AVG, plan->type, sum, operands, 1, (size_t)PyArray_SIZE(given->arrays[0]),
                plan->own.call->call.divisor);
    }
}
