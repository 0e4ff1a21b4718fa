/* HostBoard: the board of one host's ranks of a group, as Python holds it. */
#ifndef ALLHANDS_BOARD_OBJECT_H
#define ALLHANDS_BOARD_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hosts/board.h"

/* NULL with an exception: it is no HostBoard. */
ah_board *board_of(PyObject *object);

int add_board_type(PyObject *module);

#endif
