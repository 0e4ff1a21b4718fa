#include "python/link_hold.h"

#include "python/attribute_names.h"

#define NANOSECONDS 1e9
#define MOST_BYTES (256 << 20)  /* of an array; LONG_PACED_BYTES in engine/links/output_guard.py */
#define BEGUN_BYTES (8 << 20)   /* of an array of a call that is begun, and soon waited for */
#define HELD_BYTES (8 << 20)    /* of an array: so many are waited for in any case */
#define START_BYTES (128 << 10) /* of an array of a call that is only begun */
#define AWAITED_BYTES (1 << 20) /* likewise, by an event loop that goes on meanwhile */
#define IDLE_SECONDS 0.0003     /* between calls of a thread that does nothing else meanwhile */

bool link_collectives_goes_on(const LinkCollectivesObject *self) {
    if (self->soon_waiting != PyThread_get_thread_ident()) return true;
    PyObject *value = PyObject_GetAttr(self->progress, attribute_names.since);
    double since = value == NULL ? -1 : PyFloat_AsDouble(value);
    Py_XDECREF(value);
    if (PyErr_Occurred()) PyErr_Clear();
    double latest = since > self->begun_at ? since : self->begun_at;
    return (double)ah_link_now() / NANOSECONDS - latest > IDLE_SECONDS;
}

static bool is_small(const LinkArguments *given, npy_intp most) {
    for (int i = 0; i < given->array_count; i++)
        if (PyArray_SIZE(given->arrays[i]) == 0 || PyArray_NBYTES(given->arrays[i]) > most)
            return false;
    return true;
}

LinkCaller link_find_caller(LinkCollectivesObject *self, const LinkCallRequest *request) {
    if (!link_collectives_goes_on(self)) return LINK_BLOCKS;
    if (is_small(&request->arguments, START_BYTES) || !is_small(&request->arguments, AWAITED_BYTES))
        return LINK_GOES_ON;
    PyObject *running = PyObject_CallMethod(self->gate.owner, "is_on_event_loop", NULL);
    LinkCaller caller = running == Py_True ? LINK_AWAITS : LINK_GOES_ON;
    Py_XDECREF(running);
    return caller;
}

bool link_collectives_takes(const LinkCallRequest *request) {
    npy_intp most = request->mode == LINK_BEGIN ? BEGUN_BYTES : MOST_BYTES;
    if (request->caller == LINK_GOES_ON) most = START_BYTES;
    if (request->caller == LINK_AWAITS) most = AWAITED_BYTES;
    return (request->label == Py_None || PyUnicode_CheckExact(request->label)) &&
           is_small(&request->arguments, most);
}

LinkHold link_find_hold(const LinkCollectivesObject *self, const LinkCallRequest *request,
                        int64_t limit) {
    const LinkArguments *given = &request->arguments;
    npy_intp longest = 0;
    for (int i = 0; i < given->array_count; i++)
        if (PyArray_NBYTES(given->arrays[i]) > longest) longest = PyArray_NBYTES(given->arrays[i]);
    if (longest > HELD_BYTES) longest = HELD_BYTES;
    int64_t least = 0, most = 0;
    switch (request->caller) {
    case LINK_BLOCKS:
        least = gate_hold((size_t)longest);
        most = GATE_LONGEST_NS;
        break;
    case LINK_AWAITS: /* longer only where the call is about to end */
        least = gate_brief_hold((size_t)longest / 2, self->sequence);
        most = gate_brief_hold((size_t)longest, self->sequence);
        break;
    case LINK_GOES_ON: least = most = gate_brief_hold((size_t)longest, self->sequence); break;
    }
    bool is_long = request->caller == LINK_BLOCKS;
    return (LinkHold){link_at_most(least, limit / 2), link_at_most(most, limit / 2), is_long};
}
