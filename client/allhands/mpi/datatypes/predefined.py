"""Predefined datatypes, by their names in the standard and by codes."""

from typing import Any

import numpy as np

from allhands.mpi.datatypes.basics import (
    ABSENT,
    ALIASES,
    BASICS,
    BY_NAME,
    C_CODES,
    CODES,
    FORTRAN_CODES,
    PAIRS,
)
from allhands.mpi.datatypes.datatype import NAMED, Datatype, register
from allhands.mpi.datatypes.layouts import Layout, join, make_basic, pad, place

DATATYPE_NULL = Datatype()._name_constant("DATATYPE_NULL")
"""The null datatype."""


def _make_pair(name: str, value: str) -> Datatype:
    first, index = BY_NAME[value], BY_NAME["INT"]
    second = -(-first.size // index.align) * index.align
    layout: Layout = pad(
        join(
            [
                make_basic(value, first.size, first.align),
                place(make_basic("INT", index.size, index.align), 1, (second,)),
            ]
        )
    )
    return Datatype._make(layout, NAMED, None, f"MPI_{name}")._name_constant(name)


def _make_all() -> dict[str, Datatype]:
    made = {
        basic.name: Datatype._make(
            make_basic(basic.name, basic.size, basic.align), NAMED, basic, f"MPI_{basic.name}"
        )._name_constant(basic.name)
        for basic in BASICS
    }
    made |= {name: Datatype()._name_constant(name) for name in ABSENT}
    made |= {name: _make_pair(name, value) for name, value in PAIRS.items()}
    made["INT_INT"]._name = "MPI_2INT"
    made |= {alias: made[name] for alias, name in ALIASES.items()}
    return made


CONSTANTS = _make_all()
"""All but the null datatype, by name."""
BYTE = CONSTANTS["BYTE"]
typedict = {code: CONSTANTS[name] for code, name in CODES.items()}
"""Datatypes by code."""
typedict_c = {code: CONSTANTS[name] for code, name in C_CODES.items()}
typedict_f = {code: CONSTANTS[name] for code, name in FORTRAN_CODES.items()}

register(CONSTANTS | {"DATATYPE_NULL": DATATYPE_NULL}, typedict)

by_dtype: "dict[Any, Datatype]" = {
    # Of equal ones the last is taken: LONG, not LONG_LONG.
    np.dtype(code): CONSTANTS[CODES[code]]
    for code in "?bhqilBHQILefdgFDG"
}
by_dtype[np.dtype("B")] = BYTE  # as mpi4py has it


def find_datatype(dtype: "np.dtype[Any]") -> Datatype:
    """Return the datatype of elements of NumPy.

    Raises:
        KeyError: there is none.
    """
    return by_dtype[dtype]
