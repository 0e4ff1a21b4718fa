"""Collectives as the source describes them: methods of groups, native fast paths, public names."""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent / "allhands"
SOURCES = {"Collectives": "collectives/primitive.py", "Composed": "collectives/composite.py"}
OVERRIDES = "group/group.py"
"""Has a method anew that takes more than arrays."""

FACE_RANK = {"src": "0", "dst": "0"}
"""Parameters that are roots, and their default in the plain and the awaited call."""

OUTPUTS = ("output", "outputs", "output_lists", "gather_list", "x", "arrays", "values")
"""What a call writes: the first of these that is among its parameters."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Positional parameter of a collective."""

    name: str
    annotation: str
    default: str | None

    def declare(self) -> str:
        text = f"{self.name}: {self.annotation}"
        return text if self.default is None else f"{text} = {self.default}"


@dataclass(frozen=True, slots=True)
class Collective:
    """Collective as its method in a group describes it."""

    name: str
    is_primitive: bool
    parameters: tuple[Parameter, ...]
    docstring: str
    plain: str
    """Module of `api` with its plain call; "": none that is generated."""
    has_functional: bool
    second_name: str = ""
    """Of the plain call to write, where it is not the method's."""

    @property
    def plain_name(self) -> str:
        return self.second_name or self.name

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.parameters]

    @property
    def root(self) -> str | None:
        return next((name for name in self.names if name in FACE_RANK), None)

    @property
    def summary(self) -> str:
        return self.docstring.partition("\n")[0]

    @property
    def output(self) -> Parameter | None:
        """The caller's argument that the call writes; None: it returns a result or nothing."""
        if re.search(r"^Return|; return", self.summary):
            return None
        by_name = {one.name: one for one in self.parameters}
        found = next((by_name[name] for name in OUTPUTS if name in by_name), None)
        if found is None:
            sys.exit(
                f"{self.name}: none of its parameters is one of {', '.join(OUTPUTS)}, which calls "
                "write; a call that gives back something new says so: 'Return ...'"
            )
        return found

    @property
    def returns_new(self) -> bool:
        return not self.is_primitive and self.output is None


# ---------------------------------------------------------------- reading


def read_collectives() -> list[Collective]:
    """Read the public methods that take `CallOptions`, in the order of the sources."""
    overrides = {one.name: one for one in _list_methods(OVERRIDES)}
    return [
        _read_method(method, overrides.get(method.name, method), cls == "Collectives")
        for cls, path in SOURCES.items()
        for method in _list_methods(path)
        if method.args.kwarg is not None and not method.name.startswith("_")
    ]


def _list_methods(path: str) -> Iterator[ast.FunctionDef]:
    for cls in _parse(path).body:
        if isinstance(cls, ast.ClassDef):
            yield from (one for one in cls.body if isinstance(one, ast.FunctionDef))


def _parse(path: str) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text())


def _read_method(
    method: ast.FunctionDef, override: ast.FunctionDef, is_primitive: bool
) -> Collective:
    arguments = override.args.args[1:]
    missing = len(arguments) - len(override.args.defaults)
    parameters = []
    for argument, default in zip(
        arguments, [*[None] * missing, *override.args.defaults], strict=True
    ):
        assert argument.annotation is not None
        annotation = ast.unparse(argument.annotation)
        text = ast.unparse(default) if default else FACE_RANK.get(argument.arg)
        if text is None and annotation.endswith("| None"):
            text = "None"
        parameters.append(Parameter(argument.arg, annotation, text))
    docstring = ast.get_docstring(method)
    assert docstring is not None, method.name
    faces = _read_faces(method)
    return Collective(
        method.name,
        is_primitive,
        tuple(parameters),
        docstring,
        faces.get("plain", ""),
        faces.get("functional", False),
    )


def _read_faces(method: ast.FunctionDef) -> dict[str, Any]:
    """Read the arguments of the decorator `faces`."""
    return {
        str(keyword.arg): ast.literal_eval(keyword.value)
        for decorator in method.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "faces"
        for keyword in decorator.keywords
    }


def read_fast_paths() -> dict[str, list[str]]:
    """Read the collectives of the native communicator, and their parameters.

    It has two methods for each: one makes the call, `start_...` begins it.
    """
    return {
        method.name: [one.arg for one in method.args.posonlyargs[1:-2]]
        for method in _list_methods("_native.pyi")
        if [one.arg for one in method.args.posonlyargs[-2:]] == ["timeout", "label"]
        and ast.unparse(method.returns or ast.Constant(None)) == "bool"
    }


def read_vector_paths() -> dict[str, list[str]]:
    """Read the collectives of the native communicator that return new arrays, or False."""
    return {
        method.name: [one.arg for one in method.args.posonlyargs[1:]]
        for method in _list_methods("_native.pyi")
        if "NDArray[Any]" in (found := ast.unparse(method.returns or ast.Constant(None)))
        and "Literal[False]" in found
    }


def read_public_calls() -> set[str]:
    """Read the names of the plain calls that are written by hand."""
    return {
        one.names[0].name
        for one in _parse("__init__.pyi").body
        if isinstance(one, ast.ImportFrom) and one.module and one.module.startswith("api.")
    }


def read_functions(path: str) -> list[str]:
    """Read the names of a module's public functions."""
    return [
        one.name
        for one in _parse(path).body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
    ]


def read_imports() -> list[str]:
    """Read the imports and own definitions of the sources, one name a line."""
    lines = []
    for path in [*SOURCES.values(), OVERRIDES]:
        module = "allhands." + path.removesuffix(".py").replace("/", ".")
        for one in _parse(path).body:
            if isinstance(one, ast.ImportFrom):
                lines += [f"from {one.module} import {alias.name}" for alias in one.names]
            elif isinstance(one, ast.Assign):
                lines += [f"from {module} import {ast.unparse(name)}" for name in one.targets]
    return sorted({*lines})
