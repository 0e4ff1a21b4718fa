"""Dataclasses with slots that are quick to define.

`dataclass` of the standard library compiles the methods of each class from a text. For the 340
classes that the start of a job defines, that was a fifth of the CPU seconds of the job's start.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as define
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

T = TypeVar("T")
_Class = type[Any]
_Read = Callable[[object], tuple[object, ...]]


class _Factory:
    """Type of the default that stands for one which a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _dataclass(
    *, slots: bool, frozen: bool = False, eq: bool = True, unsafe_hash: bool = False
) -> Callable[[type[T]], type[T]]:
    """Make a dataclass as that of the standard library is, with `slots=True`.

    Of the options of fields it knows `default`, `default_factory`, `init`, `repr` and `compare`.

    `__init__` is made when it is first asked for, as few of the classes of a program are used in
    one run. Classes whose fields are alike share one that is compiled, in which only the names
    differ; all else are closures. A frozen class is filled through its slots, in less time than
    through `object.__setattr__`.

    Raises:
        TypeError: a class has no slots, or a field is given by keyword alone; the class is to use
            the standard library's.
    """
    if not slots:
        raise TypeError("a class without slots takes `dataclass` of the standard library")

    def decorate(cls: type[T]) -> type[T]:
        # Else `define` makes a text of the signature, which takes as long as all the rest.
        cls.__doc__ = cls.__doc__ or cls.__name__
        own = set(vars(cls))
        made: _Class = define(slots=True, init=False, repr=False, eq=False)(cls)
        all_fields = fields(made)
        if odd := [one.name for one in all_fields if one.kw_only]:
            raise TypeError(f"{odd} of {made.__name__} need `dataclass` of the standard library")
        methods: dict[str, object] = {"__init__": _UnmadeInit(made, frozen)}
        methods["__repr__"] = _make_repr(tuple(one.name for one in all_fields if one.repr))
        if eq:
            read = _make_reader(tuple(one.name for one in all_fields if one.compare))
            methods["__eq__"] = _make_eq(read)
            methods["__hash__"] = _make_hash(read) if frozen or unsafe_hash else None
            if "__eq__" in own and vars(cls)["__hash__"] is None:
                own.discard("__hash__")  # Python's, for a class that only compares
        if frozen:
            methods |= _FROZEN_METHODS
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made

    return decorate


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


class _UnmadeInit:
    """Descriptor in the place of the `__init__` of a class, which replaces it when it is read."""

    def __init__(self, made: _Class, frozen: bool) -> None:
        self._made = made
        self._frozen = frozen

    def __get__(self, value: object, owner: _Class) -> Callable[..., None]:
        init = _make_init(self._made, fields(self._made), self._frozen)
        setattr(self._made, "__init__", init)  # noqa: B010
        return init.__get__(value, owner)


def _make_init(made: _Class, all_fields: tuple[Field[Any], ...], frozen: bool) -> FunctionType:
    parameters = [one for one in all_fields if one.init]
    kinds = tuple(map(_get_kind, all_fields))
    template = _compile_init(kinds, frozen, hasattr(made, "__post_init__"))
    names = {f"p{number}": one.name for number, one in enumerate(all_fields)}
    outer: dict[str, object] = {"absent": _FACTORY}
    for number, one in enumerate(all_fields):
        outer[f"set{number}"] = getattr(made, one.name).__set__
        outer[f"make{number}"] = one.default_factory
        outer[f"default{number}"] = one.default
    code = template.replace(
        co_varnames=tuple(names.get(name, name) for name in template.co_varnames),
        co_names=tuple(names.get(name, name) for name in template.co_names),
    )
    init = FunctionType(
        code,
        globals(),
        "__init__",
        tuple(
            _FACTORY if one.default is MISSING else one.default
            for one in parameters
            if one.default is not MISSING or one.default_factory is not MISSING
        ),
        tuple(CellType(outer[name]) for name in template.co_freevars),
    )
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__module__ = made.__module__
    init.__annotations__ = {**{one.name: one.type for one in parameters}, "return": None}
    return init


_Kind = Literal["given", "given or made", "made", "default", "absent"]


def _get_kind(one: Field[Any]) -> _Kind:
    """Return where the value of a field comes from."""
    if one.default_factory is not MISSING:
        return "given or made" if one.init else "made"
    if one.init:
        return "given"
    return "absent" if one.default is MISSING else "default"


@cache
def _compile_init(kinds: tuple[_Kind, ...], frozen: bool, has_post_init: bool) -> CodeType:
    """Compile the `__init__` of all classes with fields like these, with p0, p1, ... as names."""
    outer = ["absent"]
    parameters = ["self"]
    body = []
    for n, kind in enumerate(kinds):
        outer += [f"set{n}", f"make{n}", f"default{n}"]
        if kind.startswith("given"):
            parameters.append(f"p{n}")
        value = {
            "given": f"p{n}",
            "given or made": f"make{n}() if p{n} is absent else p{n}",
            "made": f"make{n}()",
            "default": f"default{n}",
        }.get(kind)
        if value is not None:
            body.append(f"set{n}(self, {value})" if frozen else f"self.p{n} = {value}")
    if has_post_init:
        body.append("self.__post_init__()")
    text = f"""
def wrap({", ".join(outer)}):
    def __init__({", ".join(parameters)}):
        {"; ".join(body) or "pass"}
"""
    [wrap] = _find_code(compile(text, "<quick dataclass>", "exec"))
    [init] = _find_code(wrap)
    return init


def _find_code(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _make_reader(names: tuple[str, ...]) -> _Read:
    # A tuple always: one that is not a number equals itself in it, and only there.
    if len(names) > 1:
        return attrgetter(*names)

    def read(value: object) -> tuple[object, ...]:
        return tuple(getattr(value, name) for name in names)

    return read


def _make_eq(read: _Read) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:
        if other.__class__ is self.__class__:
            return read(self) == read(other)
        return NotImplemented

    return __eq__


def _make_hash(read: _Read) -> Callable[[object], int]:
    def __hash__(self: object) -> int:
        return hash(read(self))

    return __hash__


def _make_repr(names: tuple[str, ...]) -> Callable[[object], str]:
    @recursive_repr()
    def __repr__(self: object) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return __repr__


def _is_frozen(value: object, name: str) -> bool:
    """Return whether an attribute is frozen: all are, but those that a subclass has added."""
    return "__dataclass_fields__" in vars(type(value)) or any(
        one.name == name
        for one in fields(value)  # type: ignore[arg-type]
    )


def _refuse_setting(self: object, name: str, value: object) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deleting(self: object, name: str) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _get_state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_FROZEN_METHODS = {
    "__setattr__": _refuse_setting,
    "__delattr__": _refuse_deleting,
    # Copies and pickles would set each field with `__setattr__`.
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
