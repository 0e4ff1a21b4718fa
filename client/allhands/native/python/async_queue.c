#include "python/async_queue.h"

#include <string.h>

#include "python/due_timer.h"
#include "python/plan.h"

bool async_keep_plan(AsyncCall *call, const Plan *plan) {
    size_t size = (size_t)call->comm->size, width = sizeof(void *);
    memcpy(call->plan, plan, PLAN_HEAD);
    call->kind = plan->kind;
    call->dtype = Py_XNewRef(plan->dtype);
    call->shape = Py_XNewRef(plan->shape);
    call->composite = Py_XNewRef(plan->call);
    ((Plan *)call->plan)->call_name = PyUnicode_AsUTF8(call->name);
    if (plan->kind == AH_KIND_EXCHANGE) call->messages = plan->messages;
    call->in = plan->in[0];
    call->out = plan->out[0];
    if (!ah_kind_has_pieces(plan->kind)) return true;
    if ((call->places = PyMem_Malloc(4 * size * width)) == NULL) return false;
    memcpy(call->places, plan->in, size * width);
    memcpy(call->places + size, plan->out, size * width);
    memcpy(call->places + 2 * size, plan->send, size * width);
    memcpy(call->places + 3 * size, plan->recv, size * width);
    return true;
}
_Static_assert(sizeof(size_t) == sizeof(void *), "sizes lie beside places");

void async_load_plan(const AsyncCall *call) {
    size_t size = (size_t)call->comm->size, width = sizeof(void *);
    Plan *plan = &call->comm->plan;
    memcpy(plan, call->plan, PLAN_HEAD);
    plan->in[0] = call->in;
    plan->out[0] = call->out;
    if (call->kind == AH_KIND_EXCHANGE) plan->messages = call->messages;
    if (call->places == NULL) return;
    memcpy(plan->in, call->places, size * width);
    memcpy(plan->out, call->places + size, size * width);
    memcpy(plan->send, call->places + 2 * size, size * width);
    memcpy(plan->recv, call->places + 3 * size, size * width);
}

void async_append(CommObject *self, AsyncCall *call) {
    if (self->last_async == NULL)
        self->first_async = call;
    else
        self->last_async->next = call;
    self->last_async = call;
}

void async_remove_first(CommObject *self) {
    AsyncCall *call = self->first_async;
    self->first_async = call->next;
    if (self->first_async == NULL) self->last_async = NULL;
    call->next = NULL;
}

PyObject *async_call_site(const AsyncCall *call, int32_t *instruction) {
    *instruction = call->instruction;
    return call->code;
}

uint64_t async_last_number(const CommObject *self) {
    return self->last_async == NULL ? 0 : self->last_async->sequence;
}

unsigned long async_waiting_thread(const CommObject *self, PyObject *label, uint64_t *sequence,
                                   const char **operation) {
    const AsyncCall *call = self->last_async;
    if (call == NULL || call->waiting_thread == 0 ||
        call->waiting_thread == PyThread_get_thread_ident())
        return 0;
    Plan mine;
    if (!plan_label(&mine, label) || mine.labelsig != ((const Plan *)call->plan)->labelsig)
        return 0;
    *sequence = call->sequence;
    *operation = plan_name((const Plan *)call->plan);
    return call->waiting_thread;
}

PyObject *async_waited_call(const CommObject *self) {
    const AsyncCall *call = self->last_async;
    if (call == NULL || call->waiting_thread == 0 || call->sequence != self->last_number)
        Py_RETURN_NONE;
    return Py_BuildValue("kKOO", call->waiting_thread, call->sequence, call->name, call->label);
}

int async_traverse(CommObject *self, visitproc visit, void *arg) {
    Py_VISIT(self->first_async); /* which visits the next one */
    Py_VISIT(self->async_context);
    Py_VISIT(self->async_type);
    Py_VISIT(self->async_read_type);
    Py_VISIT(self->get_timer);
    Py_VISIT(self->timer);
    return 0;
}

void async_clear(CommObject *self) {
    if (self->timer != NULL && self->generation == comm_generation)
        timer_remove(self->timer, self); /* else its lock may be a thread's of the parent */
    while (self->first_async != NULL) {
        AsyncCall *call = self->first_async;
        async_remove_first(self);
        Py_DECREF(call);
    }
    Py_CLEAR(self->async_context);
    Py_CLEAR(self->async_type);
    Py_CLEAR(self->async_read_type);
    Py_CLEAR(self->get_timer);
    Py_CLEAR(self->timer);
}
