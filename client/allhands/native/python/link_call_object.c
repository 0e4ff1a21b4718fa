#include "python/link_call_object.h"

#include <structmember.h>

#include "python/arrays.h"
#include "python/board_object.h"
#include "python/link_call_object_state.h"
#include "python/link_object.h"

PyTypeObject *LinkCall_Type;

/* ---------------------------------------------------------------- compiling */

static bool read_span(LinkCallObject *self, int area, Py_ssize_t start, Py_ssize_t nbytes,
                      ah_span *span) {
    if (area < 0 || area >= AH_AREAS || start < 0 || nbytes < 0) {
        PyErr_SetString(PyExc_ValueError, "no such span");
        return false;
    }
    *span = (ah_span){(ah_area)area, (size_t)start, (size_t)nbytes};
    size_t end = (size_t)(start + nbytes);
    if (nbytes && end > self->needed[area]) self->needed[area] = end;
    return true;
}

static bool read_move(LinkCallObject *self, PyObject *row, ah_move *move) {
    int source, target;
    Py_ssize_t from, length, to, room;
    return PyArg_ParseTuple(row, "(inn)(inn)", &source, &from, &length, &target, &to, &room) &&
           read_span(self, source, from, length, &move->source) &&
           read_span(self, target, to, length, &move->target);
}

static bool read_combine(LinkCallObject *self, PyObject *row, ah_combine *combine) {
    PyObject *sources;
    int area;
    Py_ssize_t start, nbytes;
    if (!PyArg_ParseTuple(row, "O!(inn)", &PyTuple_Type, &sources, &area, &start, &nbytes) ||
        !read_span(self, area, start, nbytes, &combine->target))
        return false;
    combine->count = (int)PyTuple_GET_SIZE(sources);
    if (combine->count < 1 || combine->count > AH_CALL_OPERANDS) {
        PyErr_SetString(PyExc_ValueError, "too many operands");
        return false;
    }
    for (int i = 0; i < combine->count; i++) {
        Py_ssize_t length;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sources, i), "inn", &area, &start, &length) ||
            !read_span(self, area, start, nbytes, &combine->sources[i]))
            return false;
    }
    return true;
}

static bool check_link(LinkCallObject *self, int link) {
    if (link >= 0 && link < self->call.link_count) return true;
    PyErr_SetString(PyExc_ValueError, "no such link");
    return false;
}

static bool read_send(LinkCallObject *self, PyObject *row, ah_send *send) {
    int area;
    Py_ssize_t start, nbytes;
    return PyArg_ParseTuple(row, "iI(inn)", &send->link, &send->step, &area, &start, &nbytes) &&
           check_link(self, send->link) && read_span(self, area, start, nbytes, &send->span);
}

static bool read_recv(LinkCallObject *self, PyObject *row, ah_recv *recv, size_t *place) {
    int area, reduces, is_left, is_direct;
    Py_ssize_t start, nbytes;
    if (!PyArg_ParseTuple(row, "iI(inn)ppp", &recv->link, &recv->step, &area, &start, &nbytes,
                          &reduces, &is_left, &is_direct) ||
        !check_link(self, recv->link) || !read_span(self, area, start, nbytes, &recv->span))
        return false;
    recv->reduces = reduces;
    recv->is_left = is_left;
    recv->is_direct = is_direct;
    if (reduces && is_direct) {
        PyErr_SetString(PyExc_ValueError, "what is reduced cannot be written as it comes");
        return false;
    }
    recv->place = *place;
    if (!is_direct) *place += ((size_t)nbytes + 63) / 64 * 64;
    return true;
}

static void *make_rows(PyObject *rows, size_t nbytes, int *count) {
    *count = (int)PyTuple_GET_SIZE(rows);
    void *made = PyMem_Calloc((size_t)*count + 1, nbytes);
    if (made == NULL) PyErr_NoMemory();
    return made;
}

static bool read_round(LinkCallObject *self, PyObject *given, ah_round *round) {
    PyObject *moves, *combines, *sends, *recvs;
    size_t place = 0;
    if (!PyArg_ParseTuple(given, "O!O!O!O!", &PyTuple_Type, &moves, &PyTuple_Type, &combines,
                          &PyTuple_Type, &sends, &PyTuple_Type, &recvs))
        return false;
    round->moves = make_rows(moves, sizeof *round->moves, &round->move_count);
    round->combines = make_rows(combines, sizeof *round->combines, &round->combine_count);
    round->sends = make_rows(sends, sizeof *round->sends, &round->send_count);
    round->recvs = make_rows(recvs, sizeof *round->recvs, &round->recv_count);
    if (PyErr_Occurred()) return false;
    for (int i = 0; i < round->move_count; i++)
        if (!read_move(self, PyTuple_GET_ITEM(moves, i), &round->moves[i])) return false;
    for (int i = 0; i < round->combine_count; i++)
        if (!read_combine(self, PyTuple_GET_ITEM(combines, i), &round->combines[i])) return false;
    for (int i = 0; i < round->send_count; i++)
        if (!read_send(self, PyTuple_GET_ITEM(sends, i), &round->sends[i])) return false;
    for (int i = 0; i < round->recv_count; i++)
        if (!read_recv(self, PyTuple_GET_ITEM(recvs, i), &round->recvs[i], &place)) return false;
    if (place > self->call.staging_bytes) self->call.staging_bytes = place;
    return true;
}

static bool read_links(LinkCallObject *self) {
    Py_ssize_t count = PyTuple_GET_SIZE(self->links);
    self->call.links = PyMem_Calloc((size_t)count + 1, sizeof *self->call.links);
    if (self->call.links == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PyTuple_GET_ITEM(self->links, i);
        if (!Py_IS_TYPE(one, LinkState_Type)) {
            PyErr_SetString(PyExc_TypeError, "links are LinkStates");
            return false;
        }
        self->call.links[i] = &((LinkStateObject *)one)->link;
    }
    self->call.link_count = (int)count;
    return true;
}

static bool read_rounds(LinkCallObject *self, PyObject *rounds) {
    ah_call *call = &self->call;
    int count = (int)PyTuple_GET_SIZE(rounds);
    call->rounds = PyMem_Calloc((size_t)count + 1, sizeof *call->rounds);
    if (call->rounds == NULL) {
        PyErr_NoMemory();
        return false;
    }
    call->round_count = count; /* what was not read is empty, and freed as such */
    for (int i = 0; i < count; i++)
        if (!PyTuple_Check(PyTuple_GET_ITEM(rounds, i)) ||
            !read_round(self, PyTuple_GET_ITEM(rounds, i), &call->rounds[i])) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a round is a tuple");
            return false;
        }
    ah_call_plan_ahead(call);
    call->staging = PyMem_Malloc(call->staging_bytes + 1);
    if (call->staging == NULL) PyErr_NoMemory();
    return call->staging != NULL;
}

/* What the ranks of a host do before and after the rounds: a row of `HostSteps`. */
static bool read_steps(LinkCallObject *self, PyObject *row) {
    if (row == Py_None) return true;
    PyObject *board;
    int brings, folds, gives, area[4];
    Py_ssize_t start[4], length[4], from, nbytes;
    ah_host_steps *steps = self->steps = PyMem_Calloc(1, sizeof *self->steps);
    if (steps == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (!PyArg_ParseTuple(row, "Oippp(inn)(inn)(inn)(inn)nn", &board, &steps->head, &brings, &folds,
                          &gives, &area[0], &start[0], &length[0], &area[1], &start[1], &length[1],
                          &area[2], &start[2], &length[2], &area[3], &start[3], &length[3], &from,
                          &nbytes))
        return false;
    ah_span *spans[] = {&steps->own, &steps->into, &steps->given, &steps->taken};
    for (int i = 0; i < 4; i++)
        if (!read_span(self, area[i], start[i], length[i], spans[i])) return false;
    steps->brings = brings;
    steps->folds = folds;
    steps->gives = gives;
    steps->from = (size_t)from;
    steps->nbytes = (size_t)nbytes;
    size_t capacity = SIZE_MAX;
    int size = 1;
    if (board != Py_None) {
        if ((steps->board = board_of(board)) == NULL) return false;
        self->board = Py_NewRef(board);
        capacity = steps->board->capacity;
        size = steps->board->size;
    }
    size_t blocks = steps->brings && !steps->folds ? (size_t)size : 1;
    bool is_head = steps->board == NULL || steps->head == steps->board->rank;
    if (from < 0 || nbytes < 0 || steps->head < 0 || steps->head >= size ||
        steps->own.nbytes > capacity || steps->given.nbytes > capacity ||
        steps->taken.nbytes > steps->nbytes || steps->from > steps->nbytes - steps->taken.nbytes ||
        (is_head && steps->into.nbytes != blocks * steps->own.nbytes)) {
        PyErr_SetString(PyExc_ValueError, "no such steps of a host's ranks");
        return false;
    }
    return true;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"links",   "group",  "signature", "part",    "op", "dtype",
                            "divisor", "rounds", "steps",     "digests", NULL};
    PyObject *links, *rounds, *steps = Py_None;
    unsigned long long group, signature;
    unsigned int part;
    int op, dtype;
    Py_ssize_t divisor;
    int digests = false;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!KKIiinO!|Op", names, &PyTuple_Type, &links,
                                     &group, &signature, &part, &op, &dtype, &divisor,
                                     &PyTuple_Type, &rounds, &steps, &digests))
        return NULL;
    if (op >= 0 &&
        (op >= AH_OPS || dtype < 0 || dtype >= AH_TYPES || divisor < 1 || !ah_supports(op, dtype)))
        return PyErr_Format(PyExc_TypeError, "operation %d is not defined for type %d", op, dtype);
    LinkCallObject *self = (LinkCallObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->links = Py_NewRef(links);
    self->call.group = group;
    self->call.signature = self->signature = signature;
    self->call.part = part;
    self->call.has_digests = digests;
    self->call.op = op < 0 ? AH_SUM : (ah_op)op;
    self->call.type = op < 0 ? AH_UINT8 : (ah_type)dtype;
    self->call.divisor = (size_t)divisor;
    self->call.foreign = -1;
    if (!read_links(self) || !read_rounds(self, rounds) || !read_steps(self, steps)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

void link_call_end(LinkCallObject *self) {
    self->is_under_way = false;
    for (int area = 0; area < AH_AREAS; area++) Py_CLEAR(self->held[area]);
}

static void call_dealloc(LinkCallObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    link_call_end(self);
    for (int i = 0; i < self->call.round_count; i++) {
        PyMem_Free(self->call.rounds[i].moves);
        PyMem_Free(self->call.rounds[i].combines);
        PyMem_Free(self->call.rounds[i].sends);
        PyMem_Free(self->call.rounds[i].recvs);
    }
    PyMem_Free(self->call.rounds);
    PyMem_Free(self->call.links);
    PyMem_Free(self->call.staging);
    PyMem_Free(self->pieces);
    PyMem_Free(self->steps);
    Py_XDECREF(self->links);
    Py_XDECREF(self->board);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------- memory of a call */

bool link_call_fits(const LinkCallObject *self, const ah_memory memory[AH_AREAS]) {
    const ah_call *call = &self->call;
    for (int at = 0; at < call->round_count; at++) {
        const ah_round *round = &call->rounds[at];
        for (int i = 0; i < round->move_count; i++)
            if (!ah_call_fits(memory, &round->moves[i].source) ||
                !ah_call_fits(memory, &round->moves[i].target))
                return false;
        for (int i = 0; i < round->combine_count; i++) {
            if (!ah_call_fits(memory, &round->combines[i].target)) return false;
            for (int k = 0; k < round->combines[i].count; k++)
                if (!ah_call_fits(memory, &round->combines[i].sources[k])) return false;
        }
        for (int i = 0; i < round->send_count; i++)
            if (!ah_call_fits(memory, &round->sends[i].span)) return false;
        for (int i = 0; i < round->recv_count; i++)
            if (!ah_call_fits(memory, &round->recvs[i].span)) return false;
    }
    return self->steps == NULL || ah_host_call_fits(self->steps, memory);
}

/* The pieces of an area; false: an error is set. */
static bool read_memory(LinkCallObject *self, int area, PyObject *arrays, Py_ssize_t first,
                        ah_memory *memory) {
    Py_ssize_t count = PyTuple_GET_SIZE(arrays);
    size_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PyTuple_GET_ITEM(arrays, i);
        if (!PyArray_Check(one) ||
            !PyArray_CHKFLAGS((PyArrayObject *)one, NPY_ARRAY_C_CONTIGUOUS) ||
            (area != AH_AREA_INPUT && !PyArray_ISWRITEABLE((PyArrayObject *)one))) {
            PyErr_SetString(PyExc_TypeError, "arrays must be contiguous, and writeable if written");
            return false;
        }
        size_t nbytes = (size_t)PyArray_NBYTES((PyArrayObject *)one);
        self->pieces[first + i] = (ah_piece){PyArray_DATA((PyArrayObject *)one), nbytes};
        total += nbytes;
    }
    if (total < self->needed[area]) {
        PyErr_SetString(PyExc_ValueError, "an area is shorter than the schedule says");
        return false;
    }
    *memory = (ah_memory){self->pieces + first, (int)count};
    return true;
}

void link_call_begin(LinkCallObject *self, uint64_t sequence, uint64_t signature,
                     const ah_memory memory[AH_AREAS]) {
    self->is_under_way = true;
    self->call.signature = signature;
    ah_call_begin(&self->call, sequence, memory);
    if (self->steps != NULL) ah_host_call_begin(self->steps, &self->call);
}

static PyObject *call_begin(LinkCallObject *self, PyObject *args) {
    unsigned long long sequence;
    PyObject *arrays[AH_AREAS];
    if (!PyArg_ParseTuple(args, "KO!O!O!", &sequence, &PyTuple_Type, &arrays[0], &PyTuple_Type,
                          &arrays[1], &PyTuple_Type, &arrays[2]))
        return NULL;
    if (self->is_running) return PyErr_Format(PyExc_RuntimeError, "the call is under way");
    Py_ssize_t count = 0;
    for (int area = 0; area < AH_AREAS; area++) count += PyTuple_GET_SIZE(arrays[area]);
    if (count > self->piece_room) {
        ah_piece *pieces = PyMem_Realloc(self->pieces, (size_t)count * sizeof *pieces);
        if (pieces == NULL) return PyErr_NoMemory();
        self->pieces = pieces;
        self->piece_room = count;
    }
    ah_memory memory[AH_AREAS];
    Py_ssize_t first = 0;
    bool is_split = false;
    for (int area = 0; area < AH_AREAS; area++) {
        if (!read_memory(self, area, arrays[area], first, &memory[area])) return NULL;
        first += PyTuple_GET_SIZE(arrays[area]);
        is_split |= memory[area].count > 1;
    }
    if (is_split && !link_call_fits(self, memory))
        return PyErr_Format(PyExc_ValueError, "a span of the schedule lies in several arrays");
    for (int area = 0; area < AH_AREAS; area++)
        Py_XSETREF(self->held[area], Py_NewRef(arrays[area]));
    link_call_begin(self, sequence, self->signature, memory);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- running */

ah_call_status link_call_run(LinkCallObject *self, int64_t until, int64_t spin) {
    if (self->steps != NULL) return ah_host_call_run(self->steps, &self->call, until, spin);
    return ah_call_run(&self->call, until, spin);
}

static PyObject *call_run(LinkCallObject *self, PyObject *args) {
    long long until, spin;
    if (!PyArg_ParseTuple(args, "LL", &until, &spin)) return NULL;
    if (self->is_running || !self->is_under_way)
        return PyErr_Format(PyExc_RuntimeError, "the call is not to be run now");
    ah_call_status status;
    self->is_running = true;
    Py_BEGIN_ALLOW_THREADS
    status = link_call_run(self, until, spin);
    Py_END_ALLOW_THREADS
    self->is_running = false;
    if (status == AH_CALL_DONE) link_call_end(self);
    return PyLong_FromLong(status);
}

static PyObject *call_take_foreign(LinkCallObject *self, PyObject *unused) {
    (void)unused;
    if (self->is_running || self->call.foreign < 0)
        return PyErr_Format(PyExc_RuntimeError, "there is no such frame");
    int link;
    size_t nbytes;
    const uint8_t *frame = ah_call_take_foreign(&self->call, &link, &nbytes);
    return Py_BuildValue("iy#", link, (const char *)frame, (Py_ssize_t)nbytes);
}

/* What a send has not sent, as bytes. */
static PyObject *make_rest(const ah_send *send) {
    size_t total = AH_FRAME_HEADER + send->span.nbytes;
    PyObject *rest = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(total - send->sent));
    if (rest == NULL) return NULL;
    char *to = PyBytes_AS_STRING(rest);
    size_t past = send->sent;
    if (past < AH_FRAME_HEADER) {
        memcpy(to, send->header + past, AH_FRAME_HEADER - past);
        to += AH_FRAME_HEADER - past;
        past = AH_FRAME_HEADER;
    }
    if (total > past) memcpy(to, send->payload + (past - AH_FRAME_HEADER), total - past);
    return rest;
}

static bool add_rest(PyObject *rests, int link, PyObject *rest) {
    PyObject *row = rest == NULL ? NULL : Py_BuildValue("iN", link, rest);
    bool done = row != NULL && PyList_Append(rests, row) == 0;
    Py_XDECREF(row);
    return done;
}

/* What is left to send of messages that have left in part, by link; none of it, where encrypted
 * bytes wait. */
static PyObject *list_rests(const ah_call *call) {
    PyObject *rests = PyList_New(0);
    bool done = rests != NULL;
    const ah_round *round = ah_call_sending(call);
    for (int i = 0; done && round != NULL && i < round->send_count; i++) {
        const ah_send *send = &round->sends[i];
        if (send->sent > 0 && !ah_send_is_whole(send))
            done = add_rest(rests, send->link, make_rest(send));
    }
    for (int i = 0; done && i < call->link_count; i++)
        if (call->links[i]->credit_left > 0)
            done = add_rest(rests, i, link_take_credit_rest(call->links[i]));
        else if (call->links[i]->has_unsent)
            done = add_rest(rests, i, PyBytes_FromStringAndSize(NULL, 0));
    if (done) return rests;
    Py_XDECREF(rests);
    return NULL;
}

/* The messages that have left, at least in part, of the rounds that have not ended: the index of
 * the round, and their place among what it sends. */
static PyObject *list_sent(const ah_call *call) {
    PyObject *sent = PyList_New(0);
    bool done = sent != NULL;
    for (int at = call->at; done && at < call->prepared; at++)
        for (int i = 0; done && i < call->rounds[at].send_count; i++) {
            if (call->rounds[at].sends[i].sent == 0) continue;
            PyObject *row = Py_BuildValue("ii", at, i);
            done = row != NULL && PyList_Append(sent, row) == 0;
            Py_XDECREF(row);
        }
    if (done) return sent;
    Py_XDECREF(sent);
    return NULL;
}

static PyObject *call_withdraw(LinkCallObject *self, PyObject *unused) {
    (void)unused;
    ah_call *call = &self->call;
    if (self->is_running || !self->is_under_way)
        return PyErr_Format(PyExc_RuntimeError, "no call is under way");
    PyObject *sent = list_sent(call), *rests = sent == NULL ? NULL : list_rests(call);
    if (rests == NULL || !ah_call_withdraw(call)) {
        if (rests != NULL) PyErr_SetString(PyExc_RuntimeError, "a frame cannot be put back");
        Py_XDECREF(sent);
        Py_XDECREF(rests);
        return NULL;
    }
    for (int i = 0; i < call->link_count; i++)
        call->links[i]->has_rest = call->links[i]->has_unsent = false;
    PyObject *found =
        Py_BuildValue("iONN", call->at, call->is_begun ? Py_True : Py_False, sent, rests);
    link_call_end(self);
    return found;
}

static PyMethodDef call_methods[] = {
    {"begin", (PyCFunction)call_begin, METH_VARARGS, NULL},
    {"run", (PyCFunction)call_run, METH_VARARGS, NULL},
    {"take_foreign", (PyCFunction)call_take_foreign, METH_NOARGS, NULL},
    {"withdraw", (PyCFunction)call_withdraw, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *call_is_across(LinkCallObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->steps == NULL || self->steps->step == AH_STEP_ACROSS);
}

static PyGetSetDef call_getset[] = {
    {"is_across", (getter)call_is_across, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef call_members[] = {
    {"at", T_INT, offsetof(LinkCallObject, call.at), READONLY, NULL},
    {"has_landed", T_BOOL, offsetof(LinkCallObject, call.has_landed), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_new, call_new},         {Py_tp_dealloc, call_dealloc}, {Py_tp_methods, call_methods},
    {Py_tp_members, call_members}, {Py_tp_getset, call_getset},   {0, NULL},
};

static PyType_Spec call_spec = {
    .name = "allhands._native.LinkCall",
    .basicsize = sizeof(LinkCallObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = call_slots,
};

int add_link_call_type(PyObject *module) {
    LinkCall_Type = (PyTypeObject *)PyType_FromSpec(&call_spec);
    if (LinkCall_Type == NULL) return -1;
    return PyModule_AddObjectRef(module, "LinkCall", (PyObject *)LinkCall_Type);
}
