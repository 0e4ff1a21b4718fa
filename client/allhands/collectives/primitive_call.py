"""Checked call of a primitive collective, on its way to be carried out."""

from collections.abc import Callable
from typing import TypeAlias

from allhands.collectives.part import Part
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import Result
from allhands.collectives.staging import Staging
from allhands_proto.quick_dataclass import dataclass

BuildParts: TypeAlias = Callable[[int, int], list[Part]]
"""Makes the parts of a call over links, given rank and size."""


@dataclass(slots=True)
class PrimitiveCall:
    """One call of a primitive: what it asks for, how links do it, and what its work gives."""

    request: CollectiveRequest
    build: BuildParts
    result: Result
    """Value of the completed work."""
    staging: Staging | None = None
    """Copies in the place of outputs that are not written directly; None: all are."""
