"""Failures of calls and messages over shared memory, as the native core reports them.

The core makes these values by their fields' names and passes them to `on_failure`, which raises the
error that they mean. It imports this module when the first call fails.
"""

from typing import Literal

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A collective that has failed; sets of ranks are bits, by ranks of the group."""

    status: Literal["timeout", "interrupted", "mismatch", "abandoned", "different"]
    sequence: int
    operation: str
    dtype: object
    """NumPy's; or the composite call that this was; None: no data moves."""
    count: int
    """Elements of the array, or of each rank's block."""
    op: int
    """Place of the reduce operation in `ops` of the communicator; -1: none."""
    root: int
    """-1: none."""
    splits: list[int] | None
    """Bytes given to each rank, then those expected from each, where ranks may differ in them."""
    shape: tuple[int, ...] | None
    """Of the array, None: ranks may differ in it."""
    waiting: int
    """Ranks that had not come to the call."""
    offenders: int
    """Ranks that made another call, abandoned this one, or have another result than most."""
    timeout: float
    """Seconds that the call could take."""
    label: str | None
    touches_output: bool
    """Whether data was there for outputs, so that they may have been touched."""


@dataclass(frozen=True, slots=True)
class MessageFailure:
    """A failed point-to-point message."""

    outcome: str
    """As of `Message`."""
    operation: str
    peer: int
    """Rank of the group at the other end; -1: any."""
    source: int
    """Rank of the group whose message a receive was matched with; -1: none."""
    tag: int
    described: str
    """The message as this rank meant it."""
    sent_nbytes: int
    """Bytes of the message that a mismatched receive got."""
    sent_signature: int
    """Signature of the same message: hash of its dtype's name and its count."""
    expected: str | None
    """The message that the receiver of a mismatched send meant."""
    timeout: float
    """Seconds that the message could take."""
    label: str | None
    touched: bool
    """Of a receive: whether some of a message lies in its array."""
