#include "python/p2p_log.h"

#include <stdlib.h>

#include "python/clock.h"
#include "python/call_site.h"

bool letters_make(Letters *self, size_t wanted)
{
    if (wanted == 0)
        return true;
    size_t count = 64;
    while (count < wanted)
        count *= 2;
    self->ring = calloc(count, sizeof(Letter));
    self->mask = count - 1;
    return self->ring != NULL;
}

void letters_free(Letters *self)
{
    for (size_t at = 0; self->ring != NULL && at <= self->mask; at++) {
        Py_XDECREF(self->ring[at].dtype);
        Py_XDECREF(self->ring[at].code);
        Py_XDECREF(self->ring[at].label);
    }
    free(self->ring);
    self->ring = NULL;
}

static Letter *letter_of(const Letters *self, uint64_t number)
{
    return &self->ring[number & self->mask];
}

uint64_t letters_begin(Letters *self, const ah_message *message, PyObject *dtype, int64_t now,
                       PyObject *label)
{
    if (self->ring == NULL)
        return 0;
    uint64_t number = ++self->taken;
    Letter *letter = letter_of(self, number);
    letter->number = number;
    letter->started = now;
    letter->finished = 0;
    letter->count = message->count;
    letter->nbytes = message->nbytes;
    letter->tag = message->tag;
    letter->peer = (int16_t)message->peer;
    letter->receives = message->receives;
    letter->outcome = AH_RUNNING;
    letter->way = 0;
    if (letter->dtype != dtype)
        Py_XSETREF(letter->dtype, Py_NewRef(dtype));
    Py_XSETREF(letter->label, label == Py_None ? NULL : Py_NewRef(label));
    PyObject *code = source_here(&letter->instruction);
    Py_XSETREF(letter->code, code);
    return number;
}

void letters_end(Letters *self, uint64_t number, const ah_message *message, int outcome)
{
    if (number == 0)
        return;
    Letter *letter = letter_of(self, number);
    if (letter->number != number)
        return; /* very many others began meanwhile */
    letter->finished = clock_now();
    letter->outcome = (uint8_t)outcome;
    letter->way = (uint8_t)message->way;
    if (letter->outcome == AH_DELIVERED && letter->receives)
        letter->peer = (int16_t)message->source;
}

static PyObject *row(const Letter *one, const char *const outcomes[], const char *const ways[])
{
    /* What follows may let another thread go on with the ring: with references of its own. */
    Letter letter = *one;
    Py_XINCREF(letter.dtype);
    Py_XINCREF(letter.code);
    Py_XINCREF(letter.label);
    PyObject *source = letter.code == NULL ? Py_NewRef(Py_None)
                                           : source_told(letter.code, letter.instruction);
    PyObject *made = NULL;
    if (source != NULL)
        made = Py_BuildValue("OOnniILLssNO", letter.receives ? Py_True : Py_False, letter.dtype,
                             (Py_ssize_t)letter.count, (Py_ssize_t)letter.nbytes, letter.peer,
                             (unsigned)letter.tag, (long long)letter.started,
                             (long long)letter.finished, outcomes[letter.outcome],
                             ways[letter.way], source, letter.label ? letter.label : Py_None);
    Py_XDECREF(letter.dtype);
    Py_XDECREF(letter.code);
    Py_XDECREF(letter.label);
    return made;
}

PyObject *letters_rows(const Letters *self, size_t last, const char *const outcomes[],
                       const char *const ways[])
{
    PyObject *list = PyList_New(0);
    if (self->ring == NULL || list == NULL)
        return list;
    uint64_t taken = self->taken, count = last <= self->mask ? last : self->mask + 1;
    for (uint64_t number = taken > count ? taken - count + 1 : 1; number <= taken; number++) {
        const Letter *letter = letter_of(self, number);
        if (letter->number != number)
            continue; /* overwritten meanwhile */
        PyObject *one = row(letter, outcomes, ways);
        if (one == NULL || PyList_Append(list, one) < 0) {
            Py_XDECREF(one);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(one);
    }
    return list;
}
