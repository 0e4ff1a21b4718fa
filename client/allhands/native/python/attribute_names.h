/* Names of attributes that each call over links asks for: a text would be looked up anew. */
#ifndef ALLHANDS_ATTRIBUTE_NAMES_H
#define ALLHANDS_ATTRIBUTE_NAMES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define FOR_ATTRIBUTE_NAMES(DO)                                                                    \
    DO(borrowed_at)                                                                                \
    DO(is_rung)                                                                                    \
    DO(is_stopping)                                                                                \
    DO(is_thread_due)                                                                              \
    DO(last_completed)                                                                             \
    DO(last_ended)                                                                                 \
    DO(last_number)                                                                                \
    DO(queued_messages)                                                                            \
    DO(sequence)                                                                                   \
    DO(since)                                                                                      \
    DO(timeout)                                                                                    \
    DO(turns)

#define DECLARE_NAME(name) PyObject *name;
typedef struct {
    FOR_ATTRIBUTE_NAMES(DECLARE_NAME)
} AttributeNames;
#undef DECLARE_NAME

extern AttributeNames attribute_names;

int find_attribute_names(void);

#endif
