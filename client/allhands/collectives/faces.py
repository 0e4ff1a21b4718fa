"""Faces of a collective: the modules whose call of its name is generated from its method."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def faces(*, plain: str, functional: bool = False) -> Callable[[F], F]:
    """Declare the faces of a method besides the awaited one; read by `client/generate_faces.py`.

    Args:
        plain: module of `api` with the plain call, which is public by that.
        functional: whether `functional` has a call that leaves its argument alone.
    """

    def declare(method: F) -> F:
        return method

    return declare
