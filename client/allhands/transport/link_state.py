"""State of the links to and from a peer which a call on its caller's thread needs at hand.

With the native core it is an object of the core's, that such a call reads and writes without the
interpreter; else it is the numbers alone.
"""

from typing import TYPE_CHECKING, TypeAlias

from allhands.runtime import native_core

if TYPE_CHECKING:
    from allhands._native import LinkState as NativeLinkState


class PlainLinkState:
    """State without the native core."""

    __slots__ = ("credit", "signed_frames", "verified_frames")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        """Bytes of unasked messages that may be sent."""
        self.signed_frames = 0
        """Frames with a digest that have left."""
        self.verified_frames = 0
        """Frames with a digest that have come."""


LinkState: TypeAlias = "PlainLinkState | NativeLinkState"
"""Owned by the holder of the loop."""


def make_link_state(credit: int) -> LinkState:
    core, _ = native_core.find()
    if core is None:
        return PlainLinkState(credit)
    state: NativeLinkState = core.LinkState(credit)
    return state
