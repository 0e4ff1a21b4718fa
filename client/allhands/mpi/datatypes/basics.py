"""Basic datatypes: names in the standard, sizes, alignments, codes in NumPy and PEP 3118."""

import numpy as np

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Basic:
    """A datatype of which others are made."""

    name: str
    dtype: "np.dtype[np.generic] | None"
    """Elements in NumPy; None: it has none such."""
    char: str | None
    """One character, as of PEP 3118."""
    text: str | None
    """Kind and size, as of the array interface."""
    code: str | None
    size: int
    align: int


def _of(name: str, char: str, text: str, code: str | None = None, dtype: str = "") -> Basic:
    found = np.dtype(dtype or text)
    return Basic(name, found, char, text, code or char, found.itemsize, found.alignment)


BASICS = (
    _of("PACKED", "B", "u1"),
    _of("BYTE", "B", "u1"),
    _of("AINT", "p", "i8"),
    _of("OFFSET", "p", "i8"),
    _of("COUNT", "p", "i8"),
    _of("CHAR", "c", "S1", dtype="i1"),
    _of("WCHAR", "U", "U1", dtype="i4"),
    _of("SIGNED_CHAR", "b", "i1"),
    _of("SHORT", "h", "i2"),
    _of("INT", "i", "i4"),
    _of("LONG", "l", "i8", dtype="l"),
    _of("LONG_LONG", "q", "i8", dtype="q"),
    _of("UNSIGNED_CHAR", "B", "u1"),
    _of("UNSIGNED_SHORT", "H", "u2"),
    _of("UNSIGNED", "I", "u4"),
    _of("UNSIGNED_LONG", "L", "u8", dtype="L"),
    _of("UNSIGNED_LONG_LONG", "Q", "u8", dtype="Q"),
    _of("FLOAT", "f", "f4"),
    _of("DOUBLE", "d", "f8"),
    _of("LONG_DOUBLE", "g", "f16"),
    _of("C_BOOL", "?", "b1", "b1"),
    _of("INT8_T", "b", "i1", "i1"),
    _of("INT16_T", "h", "i2", "i2"),
    _of("INT32_T", "i", "i4", "i4"),
    _of("INT64_T", "l", "i8", "i8"),
    _of("UINT8_T", "B", "u1", "u1"),
    _of("UINT16_T", "H", "u2", "u2"),
    _of("UINT32_T", "I", "u4", "u4"),
    _of("UINT64_T", "L", "u8", "u8"),
    _of("FLOAT16_T", "e", "f2"),
    Basic("BFLOAT16_T", None, None, None, None, 2, 2),
    _of("C_COMPLEX", "F", "c8"),
    _of("C_DOUBLE_COMPLEX", "D", "c16"),
    _of("C_LONG_DOUBLE_COMPLEX", "G", "c32"),
    _of("CXX_BOOL", "?", "b1"),
    _of("CXX_FLOAT_COMPLEX", "F", "c8"),
    _of("CXX_DOUBLE_COMPLEX", "D", "c16"),
    _of("CXX_LONG_DOUBLE_COMPLEX", "G", "c32"),
    _of("CHARACTER", "c", "S1", dtype="i1"),
    _of("LOGICAL", "i", "i4"),
    _of("INTEGER", "i", "i4"),
    _of("REAL", "f", "f4"),
    _of("DOUBLE_PRECISION", "d", "f8"),
    _of("COMPLEX", "F", "c8"),
    _of("DOUBLE_COMPLEX", "D", "c16"),
    _of("LOGICAL1", "?", "b1", "b1", "i1"),
    _of("LOGICAL2", "h", "i2", "i2"),
    _of("LOGICAL4", "i", "i4", "i4"),
    _of("LOGICAL8", "l", "i8", "i8"),
    _of("INTEGER1", "b", "i1", "i1"),
    _of("INTEGER2", "h", "i2", "i2"),
    _of("INTEGER4", "i", "i4", "i4"),
    _of("INTEGER8", "l", "i8", "i8"),
    _of("REAL2", "e", "f2", "f2"),
    _of("REAL4", "f", "f4", "f4"),
    _of("REAL8", "d", "f8", "f8"),
    _of("REAL16", "g", "f16", "f16"),
    _of("COMPLEX8", "F", "c8", "c8"),
    _of("COMPLEX16", "D", "c16", "c16"),
    _of("COMPLEX32", "G", "c32", "c32"),
)
ABSENT = ("LOGICAL16", "INTEGER16", "COMPLEX4")
"""Datatypes of the standard that this implementation does not have: null."""
PAIRS = {
    "SHORT_INT": "SHORT",
    "INT_INT": "INT",
    "LONG_INT": "LONG",
    "FLOAT_INT": "FLOAT",
    "DOUBLE_INT": "DOUBLE",
    "LONG_DOUBLE_INT": "LONG_DOUBLE",
}
"""Values with an index of type INT, by what the value is."""
ALIASES = {
    "TWOINT": "INT_INT",
    "FLOAT32_T": "FLOAT",
    "FLOAT64_T": "DOUBLE",
    "C_FLOAT_COMPLEX": "C_COMPLEX",
    "UNSIGNED_INT": "UNSIGNED",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
    "BOOL": "C_BOOL",
    "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T",
    "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T",
    "F_BOOL": "LOGICAL",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}
BY_NAME = {basic.name: basic for basic in BASICS}

C_CODES = {
    "?": "C_BOOL",
    "b": "SIGNED_CHAR",
    "h": "SHORT",
    "i": "INT",
    "l": "LONG",
    "q": "LONG_LONG",
    "B": "UNSIGNED_CHAR",
    "H": "UNSIGNED_SHORT",
    "I": "UNSIGNED",
    "L": "UNSIGNED_LONG",
    "Q": "UNSIGNED_LONG_LONG",
    "f": "FLOAT",
    "d": "DOUBLE",
    "g": "LONG_DOUBLE",
    "F": "C_COMPLEX",
    "D": "C_DOUBLE_COMPLEX",
    "G": "C_LONG_DOUBLE_COMPLEX",
    "b1": "C_BOOL",
    "i1": "INT8_T",
    "i2": "INT16_T",
    "i4": "INT32_T",
    "i8": "INT64_T",
    "u1": "UINT8_T",
    "u2": "UINT16_T",
    "u4": "UINT32_T",
    "u8": "UINT64_T",
    "f2": "FLOAT16_T",
    "f4": "FLOAT",
    "c8": "C_COMPLEX",
    "f8": "DOUBLE",
    "c16": "C_DOUBLE_COMPLEX",
    "f16": "LONG_DOUBLE",
    "c32": "C_LONG_DOUBLE_COMPLEX",
}
"""Codes of C and their datatypes."""
CODES = C_CODES | {
    "e": "FLOAT16_T",
    "Zf": "C_COMPLEX",
    "Zd": "C_DOUBLE_COMPLEX",
    "Zg": "C_LONG_DOUBLE_COMPLEX",
    "n": "COUNT",
    "N": "UNSIGNED_LONG",
    "p": "AINT",
    "P": "UNSIGNED_LONG",
    "c": "CHAR",
    "a": "CHAR",
    "S": "CHAR",
    "S1": "CHAR",
    "s": "CHAR",
    "1s": "CHAR",
    "U": "WCHAR",
    "U1": "WCHAR",
    "u": "UINT16_T",
    "1u": "UINT16_T",
    "w": "WCHAR",
    "1w": "WCHAR",
    "M": "INT64_T",
    "M8": "INT64_T",
    "m": "INT64_T",
    "m8": "INT64_T",
}
"""All codes that name a datatype."""
FORTRAN_CODES = {
    "l": "LOGICAL",
    "i": "INTEGER",
    "r": "REAL",
    "s": "REAL",
    "d": "DOUBLE_PRECISION",
    "c": "COMPLEX",
    "z": "DOUBLE_COMPLEX",
    "l1": "LOGICAL1",
    "l2": "LOGICAL2",
    "l4": "LOGICAL4",
    "l8": "LOGICAL8",
    "i1": "INTEGER1",
    "i2": "INTEGER2",
    "i4": "INTEGER4",
    "i8": "INTEGER8",
    "r2": "REAL2",
    "r4": "REAL4",
    "r8": "REAL8",
    "r16": "REAL16",
    "c8": "COMPLEX8",
    "c16": "COMPLEX16",
    "c32": "COMPLEX32",
}
"""Codes of Fortran and their datatypes."""
