"""The public surface as text: names, entry points, the shape of the wire.

    make surface    # write tests/surface/*.txt anew, for changes that are meant

Annotations are left out: they name classes by where these are defined, which is nobody's business.
So are the defaults of parameters that are objects of the package.
"""

import enum
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

from allhands.options import read_defaults
from surface import wire

MODULES = {
    "allhands": (
        "allhands",
        "allhands.aio",
        "allhands.c10d",
        "allhands.errors",
        "allhands.functional",
        "allhands.futures",
        "allhands.hooks",
        "allhands.kv",
        "allhands.stores",
        "allhands.testing",
        "allhands.testing.conformance",
        "allhands.testing.faults",
        "allhands.testing.proxy",
        "allhands.testing.simulate",
        "allhands.testing.virtual_time",
    ),
    "torch": ("allhands.torch",),
}
"""Modules that are documented, by the file that lists what they have."""

_PLAIN = (bool, int, float, str, bytes, type(None), tuple)


def lines(modules: tuple[str, ...]) -> Iterator[str]:
    """Describe each public name of some modules."""
    for name in modules:
        yield f"{name}:"
        module = importlib.import_module(name)
        for public in sorted(_public(module)):
            yield from _described(public, getattr(module, public), "    ")


def entry_points() -> Iterator[str]:
    """Describe the entry points of an installation."""
    for one in sorted(metadata.distribution("allhands").entry_points, key=str):
        yield f"{one.group}: {one.name} = {one.value}"


def _public(module: Any) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name in dir(module)
        if not name.startswith("_") and _is_from(getattr(module, name), module.__name__)
    ]


def _is_from(value: Any, module: str) -> bool:
    """Return whether a definition is within a module or a submodule; False for modules."""
    return f"{getattr(value, '__module__', '')}.".startswith(f"{module}.")


def _described(name: str, value: Any, indent: str) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [
            one.__name__
            for one in value.__mro__[1:]
            if one is not object and not one.__name__.startswith("_")
        ]
        yield f"{indent}class {name}({', '.join(bases)})"
        yield from _members(value, indent + "    ")
    elif callable(value):
        yield f"{indent}{name}{_parameters(value)}"
    elif isinstance(value, _PLAIN):
        yield f"{indent}{name} = {value!r}"
    else:
        yield f"{indent}{name}: {type(value).__name__}"


def _members(cls: Any, indent: str) -> Iterator[str]:
    """Describe the public members of a class, with inherited members from the package."""
    if issubclass(cls, enum.Enum):
        yield from (f"{indent}{one.name} = {_default(one.value)}" for one in cls)
        return
    if _is_ours(cls):
        yield f"{indent}__init__{_parameters(cls)}"
    for name in sorted(_names(cls)):
        value = inspect.getattr_static(cls, name, None)  # None: it is annotated alone
        found = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(found):
            kind = type(value).__name__ + " " if found is not value else ""
            kind += "async " if inspect.iscoroutinefunction(found) else ""
            yield f"{indent}{kind}{name}{_parameters(found)}"
        else:
            yield f"{indent}{name}"


def _names(cls: Any) -> set[str]:
    return {
        name
        for one in cls.__mro__
        if _is_ours(one)
        for name in ({*vars(one)} - _attributes(one) | {*inspect.get_annotations(one)})
        if not name.startswith("_")
    }


def _attributes(cls: Any) -> set[str]:
    """Return attributes in slots of objects whose others are in a dictionary, and not listed."""
    if cls.__dictoffset__ == 0:
        return set()
    return {name for name, value in vars(cls).items() if inspect.ismemberdescriptor(value)}


def _is_ours(cls: Any) -> bool:
    return cls.__module__.partition(".")[0] in ("allhands", "allhands_server", "allhands_proto")


def list_parameters(function: Any) -> Iterator[inspect.Parameter]:
    """List the parameters of a function; options declared in a `TypedDict` are keyword-only."""
    for one in inspect.signature(function).parameters.values():
        if get_origin(one.annotation) is Unpack:
            (declared,) = get_args(one.annotation)
            for name, default in read_defaults(declared).items():
                yield inspect.Parameter(name, one.KEYWORD_ONLY, default=default)
        else:
            yield one


def _parameters(function: Any) -> str:
    try:
        found = [*list_parameters(function)]
    except (TypeError, ValueError):
        return "(...)"
    parts, was_keyword = [], False
    for one in found:
        if one.kind is one.KEYWORD_ONLY and not was_keyword:
            parts.append("*")
        was_keyword |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        text = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "") + one.name
        if one.default is not one.empty:
            text += f"={_default(one.default)}"
        parts.append(text)
    return f"({', '.join(parts)})"


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    return repr(value) if isinstance(value, _PLAIN) else "..."


TEXTS: Mapping[str, Callable[[], Iterator[str]]] = {
    **{name: partial(lines, modules) for name, modules in MODULES.items()},
    "entry_points": entry_points,
    "wire": wire.lines,
}
"""What describes the package, by the name of the file that holds it."""


def path(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.txt")


def main() -> None:
    for name, describe in TEXTS.items():
        path(name).write_text("\n".join(describe()) + "\n")


if __name__ == "__main__":
    main()
