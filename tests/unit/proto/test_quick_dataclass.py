"""Dataclasses that are quick to define, beside those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from allhands_proto import quick_dataclass

Decorator = Callable[[type[Any]], type[Any]]
STANDARD: Callable[..., Decorator] = dataclasses.dataclass
QUICK: Callable[..., Decorator] = quick_dataclass.dataclass


@quick_dataclass.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    names: list[str] = dataclasses.field(default_factory=list)
    note: str = dataclasses.field(default="", repr=False, compare=False)


@quick_dataclass.dataclass(frozen=True, slots=True)
class Place(Point):
    height: float = 0.0


def _define(make: Callable[..., Decorator], **options: bool) -> Any:
    class Kind:
        first: int
        second: str = "b"
        third: tuple[int, ...] = dataclasses.field(default=(), compare=False)
        fourth: list[int] = dataclasses.field(default_factory=list, repr=False)

    return make(slots=True, **options)(Kind)


@pytest.fixture(params=[{}, {"frozen": True}, {"eq": False}, {"unsafe_hash": True}], ids=str)
def kinds(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """One class, defined by the standard library and here."""
    return _define(STANDARD, **request.param), _define(QUICK, **request.param)


def test_values_have_the_fields_and_the_text_of_the_standard_librarys(
    kinds: tuple[Any, Any],
) -> None:
    for arguments, options in (((1,), {}), ((1, "x"), {"fourth": [3]}), ((), {"first": 7})):
        standard, quick = (kind(*arguments, **options) for kind in kinds)
        assert repr(quick) == repr(standard)
        assert dataclasses.asdict(quick) == dataclasses.asdict(standard)


def test_values_compare_and_hash_as_the_standard_librarys_do(kinds: tuple[Any, Any]) -> None:
    found = []
    for kind in kinds:
        others = (kind(1, "a", (1,)), kind(1, "a", (2,)), kind(1, "b"), kind(1, "a", fourth=[1]))
        found.append([kind(1, "a") == other for other in others])
        found[-1].append(kind.__hash__ is None)
        found[-1].append(kind.__hash__ is object.__hash__)
        found[-1].append(kind(1).__eq__(1) is NotImplemented)
    assert found[0] == found[1]


def test_a_class_has_the_signature_of_the_standard_librarys(kinds: tuple[Any, Any]) -> None:
    standard, quick = kinds
    assert str(inspect.signature(quick)) == str(inspect.signature(standard))
    assert quick.__match_args__ == standard.__match_args__
    for arguments in ((), (1, 2, 3, 4, 5)):
        with pytest.raises(TypeError) as expected:
            standard(*arguments)
        with pytest.raises(TypeError) as met:
            quick(*arguments)
        assert str(met.value) == str(expected.value)


def test_equal_values_of_a_frozen_class_have_one_hash() -> None:
    kind = quick_dataclass.dataclass(frozen=True, slots=True)

    @kind
    class Key:
        name: str
        number: int
        note: str = dataclasses.field(default="", compare=False)

    assert {Key("a", 1, "x"): 1}[Key("a", 1, "y")] == 1
    assert Key("a", 1) != Key("a", 2)


def test_each_value_gets_a_default_of_its_own() -> None:
    first, second = Point(1), Point(1)
    first.names.append("a")
    assert second.names == []


@pytest.mark.parametrize("value", [Point(1), Place(1)])
def test_fields_of_a_frozen_value_can_be_neither_set_nor_deleted(value: Point) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        value.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del value.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.unknown = 1  # type: ignore[attr-defined]
    assert value.x == 1


def test_a_plain_subclass_of_a_frozen_class_has_attributes_of_its_own() -> None:
    class Counted(Point):
        uses = 0

    value = Counted(1)
    value.uses = 3
    assert value.uses == 3
    del value.uses
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.x = 2  # type: ignore[misc]


def test_a_subclass_has_the_fields_of_its_base_first() -> None:
    assert repr(Place(1, 2, ["a"], "n", 3.0)) == "Place(x=1, y=2, names=['a'], height=3.0)"
    assert Place(1) != Point(1)


@pytest.mark.parametrize("value", [Point(1, 3, ["a"], "note"), Place(1, height=4.0)])
def test_values_are_copied_replaced_and_pickled(value: Point) -> None:
    unpickled = pickle.loads(pickle.dumps(value))  # noqa: S301
    for copied in (copy.copy(value), copy.deepcopy(value), unpickled):
        assert copied == value
        assert copied.note == value.note
    assert dataclasses.replace(value, x=5).names is value.names


def test_methods_of_a_class_are_kept() -> None:
    @quick_dataclass.dataclass(frozen=True, slots=True)
    class Word:
        text: str

        def __post_init__(self) -> None:
            object.__setattr__(self, "text", self.text.strip())

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Word) and self.text.lower() == other.text.lower()

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return self.text

    assert Word(" A ") == Word("a")
    assert (hash(Word("a")), repr(Word(" A "))) == (7, "A")


def test_a_frozen_class_that_compares_in_its_own_way_hashes_its_fields() -> None:
    @quick_dataclass.dataclass(frozen=True, slots=True)
    class Always:
        text: str

        def __eq__(self, other: object) -> bool:
            return True

    assert hash(Always("a")) == hash(("a",))


def test_the_text_of_a_value_that_holds_itself_ends() -> None:
    @quick_dataclass.dataclass(slots=True)
    class Node:
        next: Any = None

    node = Node()
    node.next = node
    assert repr(node).endswith("Node(next=...)")


@pytest.mark.parametrize("frozen", [False, True])
def test_fields_that_are_no_parameters_are_filled_all_the_same(frozen: bool) -> None:
    kinds = []
    for make in (STANDARD, QUICK):

        @make(slots=True, frozen=frozen)
        class Count:
            first: int
            found: int = dataclasses.field(default=3, init=False)
            names: list[str] = dataclasses.field(default_factory=list, init=False)
            double: int = dataclasses.field(init=False)
            last: int = 5

            def __post_init__(self) -> None:
                object.__setattr__(self, "double", 2 * self.first)

        kinds.append(Count)
    standard, quick = kinds
    assert str(inspect.signature(quick)) == str(inspect.signature(standard))
    assert repr(quick(1, 2)) == repr(standard(1, 2))
    assert quick(1).names is not quick(1).names


def test_a_field_without_a_value_is_absent() -> None:
    @quick_dataclass.dataclass(slots=True)
    class Late:
        value: int = dataclasses.field(init=False)

    with pytest.raises(AttributeError):
        _ = Late().value


def test_what_only_the_standard_library_can_is_refused() -> None:
    class Odd:
        chosen: int = dataclasses.field(default=1, kw_only=True)

    with pytest.raises(TypeError, match="standard library"):
        QUICK(slots=True)(Odd)
    with pytest.raises(TypeError, match="standard library"):
        QUICK(slots=False)(Odd)


def test_an_initializer_is_made_for_the_class_that_has_the_fields() -> None:
    @quick_dataclass.dataclass(slots=True)
    class Base:
        first: int

    class Plain(Base):
        def __init__(self) -> None:
            super().__init__(1)

    assert "__init__" in vars(Plain)
    assert Plain().first == 1
    assert inspect.isfunction(vars(Base)["__init__"])
    assert Base.__init__ is vars(Base)["__init__"]


def test_a_variable_of_the_class_is_no_field() -> None:
    @quick_dataclass.dataclass(frozen=True, slots=True)
    class Kind:
        shared: ClassVar[int] = 4
        named: "ClassVar[str]" = "n"
        own: int = 1

    assert [one.name for one in dataclasses.fields(Kind)] == ["own"]
    assert (Kind.shared, Kind().shared, Kind.named) == (4, 4, "n")


def test_what_only_the_standard_library_knows_is_refused() -> None:
    def define(annotations: dict[str, object], **values: object) -> None:
        quick_dataclass.dataclass(slots=True)(
            type("Odd", (), {"__annotations__": annotations, **values})
        )

    for annotations, values in (
        ({"_": dataclasses.KW_ONLY, "x": int}, {}),
        ({"x": dataclasses.InitVar[int]}, {}),
        ({"x": int}, {"x": dataclasses.field(kw_only=True)}),
        ({"x": int}, {"__slots__": ()}),
    ):
        with pytest.raises(TypeError):
            define(annotations, **values)
    with pytest.raises(ValueError, match="mutable default"):
        define({"x": list}, x=[])


def test_a_class_of_a_generic_base_keeps_its_argument_and_its_slots() -> None:
    kind = typing.TypeVar("kind")

    class Base(typing.Generic[kind]):
        __slots__ = ("first",)

    @quick_dataclass.dataclass(slots=True)
    class Made(Base[int]):
        first: int
        second: int = 2

    made: Any = Made
    assert typing.get_args(made.__orig_bases__[0]) == (int,)
    assert made.__slots__ == ("second",)
    assert not hasattr(made(1), "__dict__")
    assert repr(made(1)).endswith("Made(first=1, second=2)")
