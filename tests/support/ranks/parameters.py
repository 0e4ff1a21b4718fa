"""The parameters of a test by their places, which travel to other processes where values do not."""

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any


def places(module: ModuleType, test: Callable[..., Any], given: Mapping[str, Any]) -> list[int]:
    """Return the index of a test's arguments in each list of its parametrization."""
    return [
        next(
            at
            for at, row in enumerate(rows)
            if all(one is given[name] for name, one in zip(names, row, strict=True))
        )
        for names, rows in parametrized(module, test)
    ]


def parametrized(
    module: ModuleType, test: Callable[..., Any]
) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
    """Yield the parametrization of a test and its module: names, and rows of values."""
    of_module = getattr(module, "pytestmark", [])
    marks = [*(of_module if isinstance(of_module, list) else [of_module])]
    for mark in [*marks, *getattr(test, "pytestmark", [])]:
        mark = getattr(mark, "mark", mark)
        if mark.name == "parametrize":
            said, values = mark.args[:2]
            names = [one.strip() for one in said.split(",")] if isinstance(said, str) else [*said]
            yield names, [_row(one, len(names)) for one in values]


def _row(value: Any, count: int) -> tuple[Any, ...]:
    if hasattr(value, "values") and hasattr(value, "marks"):  # pytest.param
        return tuple(value.values)
    return tuple(value) if count > 1 else (value,)
