"""Dataclasses that are quick to define are those of the standard library otherwise."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from allhands_server.machine.fast_dataclass import fast_dataclass


@fast_dataclass
class Nothing:
    pass


@fast_dataclass
class Single:
    value: object


@fast_dataclass
class Point:
    """A point."""

    x: float
    name: str = "origin"


@fast_dataclass
class Other:
    x: float
    name: str = "origin"


@fast_dataclass
class Named:
    x: float

    def __repr__(self) -> str:
        return "its own"


@pytest.mark.parametrize(
    ("made", "values"),
    [(Nothing, ()), (Single, (1,)), (Single, (None,)), (Point, (1.0,)), (Point, (1.0, "a'"))],
)
def test_it_is_as_the_standard_one(made: Any, values: tuple[object, ...]) -> None:
    names = {one.name: one.type for one in fields(made)}
    defaults = {"name": "origin"} if made is Point else {}
    body = {"__annotations__": names, "__qualname__": made.__qualname__, **defaults}
    standard = dataclass(slots=True, unsafe_hash=True)(type(made.__name__, (), body))
    one, same, theirs = made(*values), made(*values), standard(*values)
    assert one == same
    assert one != theirs
    assert hash(one) == hash(same) == hash(theirs)
    assert repr(one) == repr(theirs)
    assert made.__slots__ == standard.__slots__
    assert made.__match_args__ == standard.__match_args__
    assert [(one.name, one.default) for one in fields(made)] == [
        (one.name, one.default) for one in fields(standard)
    ]


def test_values_differ_in_any_field_and_in_class() -> None:
    assert Point(1.0) != Point(2.0)
    assert Point(1.0) != Point(1.0, "b")
    assert replace(Point(1.0), name="b") == Point(1.0, "b")
    assert Point(1.0) != Other(1.0)
    assert Point(1.0) != (1.0, "origin")


def test_a_field_that_is_no_number_equals_itself() -> None:
    assert Single(math.nan) == Single(math.nan)
    assert Point(math.nan) == Point(math.nan)


def test_a_method_of_the_class_stays() -> None:
    assert repr(Named(1.0)) == "its own"
    assert Named(1.0) == Named(1.0)
