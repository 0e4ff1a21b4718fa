"""Dataclasses with slots that are quick to define.

`dataclass` of the standard library compiles the methods of each class from a text, and makes two
classes of it. For the 340 classes that the start of a job defines, that was a fifth of the CPU
seconds of the job's start.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, MISSING, Field, FrozenInstanceError, InitVar, field, fields
from dataclasses import dataclass as define
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

T = TypeVar("T")
_Class = type[Any]
_Fields = dict[str, Field[Any]]
_Read = Callable[[object], tuple[object, ...]]


class _Factory:
    """Type of the default that stands for one which a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


@define(init=False, repr=False, eq=False)
class _Example:
    """A class of the standard library's, from which others get what marks a dataclass and fields.

    The functions of its module, such as `fields` and `replace`, look at both.
    """

    value: object


_FIELD_MARK: object = getattr(fields(_Example)[0], "_field_type")  # noqa: B009
_PARAMETERS: object = getattr(_Example, "__dataclass_params__")  # noqa: B009


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
        TypeError: a class has no slots, or slots already, or a field is given by keyword alone or
            is none of a value; the class is to use the standard library's.
    """
    if not slots:
        raise TypeError("a class without slots takes `dataclass` of the standard library")

    def decorate(cls: type[T]) -> type[T]:
        own = dict(vars(cls))
        if "__slots__" in own:
            raise TypeError(f"{cls.__name__} already specifies __slots__")
        all_fields = _find_fields(cls)
        methods: dict[str, object] = {"__init__": _UnmadeInit(frozen)}
        methods["__repr__"] = _make_repr(
            tuple([name for name, one in all_fields.items() if one.repr])
        )
        if eq:
            read = _make_reader(tuple([name for name, one in all_fields.items() if one.compare]))
            methods["__eq__"] = _make_eq(read)
            methods["__hash__"] = _make_hash(read) if frozen or unsafe_hash else None
            if "__eq__" in own and own["__hash__"] is None:
                del own["__hash__"]  # Python's, for a class that only compares
        if frozen:
            methods |= _FROZEN_METHODS
        methods["__match_args__"] = tuple([name for name, one in all_fields.items() if one.init])
        # Those of the class as it was, and values that the slots take the place of.
        for name in ("__dict__", "__weakref__", *all_fields):
            own.pop(name, None)
        taken = set(_list_inherited_slots(cls))
        namespace = {
            **methods,
            **own,
            "__doc__": cls.__doc__ or cls.__name__,
            "__qualname__": cls.__qualname__,
            "__slots__": tuple([name for name in all_fields if name not in taken]),
            "__dataclass_fields__": all_fields,
            "__dataclass_params__": _PARAMETERS,
        }
        # With all that it has: each method that a class gets later has its slots looked up anew.
        make: Callable[..., type[T]] = type(cls)
        return make(cls.__name__, cls.__bases__, namespace)

    return decorate


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _find_fields(cls: _Class) -> _Fields:
    """Return the fields of a class by their names, those of its bases first.

    Raises:
        TypeError: a field is of a kind that only the standard library knows.
        ValueError: values would share a default that can be changed.
    """
    found: _Fields = {}
    for base in cls.__mro__[-1:0:-1]:
        found |= getattr(base, "__dataclass_fields__", {})
    for name, kind in cls.__annotations__.items():
        if _is_class_variable(kind):
            continue
        if kind is KW_ONLY or kind is InitVar or isinstance(kind, InitVar):
            raise TypeError(f"{name} of {cls.__name__} needs `dataclass` of the standard library")
        default: Any = getattr(cls, name, MISSING)
        if isinstance(default, Field):
            one: Field[Any] = default
        elif isinstance(default, MemberDescriptorType):  # the slot of a base
            one = field()
        else:
            one = field(default=default)
        if one.default.__class__.__hash__ is None:
            raise ValueError(
                f"mutable default {one.default.__class__} for field {name} is not allowed: "
                "use default_factory"
            )
        one.name, one.type = name, kind
        if one.kw_only is MISSING:
            one.kw_only = False
        setattr(one, "_field_type", _FIELD_MARK)  # noqa: B010
        found[name] = one
    if odd := [name for name, one in found.items() if one.kw_only]:
        raise TypeError(f"{odd} of {cls.__name__} need `dataclass` of the standard library")
    return found


def _is_class_variable(kind: object) -> bool:
    if isinstance(kind, str):
        return "ClassVar" in kind
    return kind is ClassVar or getattr(kind, "__origin__", None) is ClassVar


def _list_inherited_slots(cls: _Class) -> Iterator[str]:
    for base in cls.__mro__[1:-1]:
        slots = vars(base).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


class _UnmadeInit:
    """Descriptor in the place of the `__init__` of a class, which replaces it when it is read."""

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen

    def __set_name__(self, owner: _Class, name: str) -> None:
        self._made = owner

    def __get__(self, value: object, owner: _Class) -> Callable[..., None]:
        init = _make_init(self._made, fields(self._made), self._frozen)
        setattr(self._made, "__init__", init)  # noqa: B010
        return init.__get__(value, owner)


def _make_init(made: _Class, all_fields: tuple[Field[Any], ...], frozen: bool) -> FunctionType:
    kinds = tuple([_get_kind(one) for one in all_fields])
    template = _compile_init(kinds, frozen, hasattr(made, "__post_init__"))
    names: dict[str, str] = {}
    read: dict[str, object] = {"absent": _FACTORY}
    defaults: list[object] = []
    annotations: dict[str, object] = {}
    for number, (one, kind) in enumerate(zip(all_fields, kinds, strict=True)):
        names[f"p{number}"] = one.name
        if frozen:
            read[f"set{number}"] = getattr(made, one.name).__set__
        if kind == "default":
            read[f"default{number}"] = one.default
        elif "made" in kind:
            read[f"make{number}"] = one.default_factory
        if one.init:
            annotations[one.name] = one.type
            if kind == "given or made":
                defaults.append(_FACTORY)
            elif one.default is not MISSING:
                defaults.append(one.default)
    code = template.replace(
        co_varnames=tuple([names.get(name, name) for name in template.co_varnames]),
        co_names=tuple([names.get(name, name) for name in template.co_names]),
    )
    init = FunctionType(code, read, "__init__", tuple(defaults))
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__module__ = made.__module__
    init.__annotations__ = {**annotations, "return": None}
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
    """Compile the `__init__` of all classes with fields like these, with p0, p1, ... as names.

    What it reads beside its parameters are globals of its own: a function around it, with all of
    that as variables, takes as long to compile as the rest.
    """
    parameters = ["self"]
    body = []
    for n, kind in enumerate(kinds):
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
    text = f"def __init__({', '.join(parameters)}): {'; '.join(body) or 'pass'}"
    consts = compile(text, "<quick dataclass>", "exec").co_consts
    [init] = [one for one in consts if isinstance(one, CodeType)]
    return init


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
