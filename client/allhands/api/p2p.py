"""Module-level point-to-point calls: send, receive, and batches of both.

Arguments are as for the collectives; messages between two ranks pair by their order under one tag.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from allhands.api.calls import resolve_dst, resolve_group, resolve_src, start_and_wait
from allhands.api.core_first import tries_core
from allhands.api.default_world import AnyGroup, default, default_group
from allhands.collectives.arguments import AnyArray
from allhands.engine.work.work import Work
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.options import CallOptions, check_options
from allhands.tracebacks import trim_traceback

if TYPE_CHECKING:

    @overload
    def isend(
        x: AnyArray,
        dst: int | None = None,
        group: Group | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Work: ...
    @overload
    def isend(
        x: AnyArray,
        dst: int | None = None,
        group: AnyGroup = None,
        tag: int = 0,
        group_dst: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Work | None: ...


def isend(
    x: AnyArray,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
    **options: Unpack[CallOptions],
) -> Work | None:
    """Start to send `x` to a rank; `x` belongs to the call until the work ends.

    Arguments are as for `send`. The work raises its errors in `wait`; None outside the group.
    """
    try:
        if (found := resolve_group(group, True, "isend", options)) is None:
            return None
        peer = resolve_dst(found, dst, group_dst)
        return found.send(x, peer, tag, **options)
    except Exception as error:
        trim_traceback(error)
        raise


if TYPE_CHECKING:

    @overload
    def irecv(
        x: AnyArray,
        src: int | None = None,
        group: Group | None = None,
        tag: int = 0,
        group_src: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Work: ...
    @overload
    def irecv(
        x: AnyArray,
        src: int | None = None,
        group: AnyGroup = None,
        tag: int = 0,
        group_src: int | None = None,
        **options: Unpack[CallOptions],
    ) -> Work | None: ...


def irecv(
    x: AnyArray,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
    **options: Unpack[CallOptions],
) -> Work | None:
    """Start to receive into `x` from a rank; None: any sender under this tag.

    Arguments are as for `recv`. `x` belongs to the call until the work has ended, which raises the
    errors in `wait` and has the sender's group rank as `source_rank()`. None outside the group.
    """
    try:
        if (found := resolve_group(group, True, "irecv", options)) is None:
            return None
        return found.recv(x, resolve_src(found, src, group_src), tag, **options)
    except Exception as error:
        trim_traceback(error)
        raise


@tries_core("send", "x", "dst", "tag", way="direct_p2p")
def send(
    x: AnyArray,
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> None:
    """Send `x` to rank `dst` of the world, or `group_dst` of the group.

    Return when the memory of `x` may be used again, received or not.

    Args:
        x: array of any shape and plain dtype; only read, copied first if not contiguous.
        tag: messages between two ranks pair by their order under one tag.

    Raises:
        TypeError, ValueError: the array, the rank or the tag does not fit; nothing was sent.
        CollectiveMismatch: both ends differ in size or dtype.
        CollectiveTimeout, PeerFailed, GroupAborted: the message failed.
    """
    try:
        p2p = (group or default.group).order.direct_p2p
        if p2p is not None and group_dst is None and p2p.send(x, dst, tag, timeout, label):
            return
        if (found := resolve_group(group, True, "send")) is not None:
            peer = resolve_dst(found, dst, group_dst)
            start_and_wait(lambda: found.send(x, peer, tag, timeout=timeout, label=label))
    except Exception as error:
        trim_traceback(error)
        raise


@tries_core("recv", "x", "src", "tag", way="direct_p2p", returns="rank")
def recv(
    x: AnyArray,
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    timeout: float | None = None,
    label: str | None = None,
) -> int:
    """Receive into `x` from world rank `src` or `group_src`; None: any sender.

    Return the sender's rank in the world, -1 outside the group.

    Args:
        x: writeable array of the message's size and dtype.
        tag: messages between two ranks pair by their order under one tag.

    Raises:
        TypeError, ValueError: the array, the rank or the tag does not fit; nothing was sent.
        CollectiveMismatch: both ends differ in size or dtype.
        CollectiveTimeout, PeerFailed, GroupAborted: the message failed.
    """
    try:
        p2p = (group or default.group).order.direct_p2p
        if (
            p2p is not None
            and group_src is None
            and (came_from := p2p.recv(x, src, tag, timeout, label)) >= 0
        ):
            return came_from
        found = resolve_group(group, True, "recv")
        if found is None:
            return -1
        peer = resolve_src(found, src, group_src)
        work = start_and_wait(lambda: found.recv(x, peer, tag, timeout=timeout, label=label))
        return found.ranks[work.source_rank()]
    except Exception as error:
        trim_traceback(error)
        raise


class P2POp:
    """A message to send or receive: `isend` or `irecv` with arguments.

    `peer` is a rank of the world, `group_peer` one of the group; a receive may name neither.

    Raises:
        ValueError, TypeError: as `isend` and `irecv` do, at once.
    """

    def __init__(
        self,
        op: Callable[..., Any],
        x: AnyArray,
        peer: int | None = None,
        group: AnyGroup = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(f"op must be isend or irecv, not {op!r}")
        self.op = op
        self.x = x
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer
        self.check()

    def check(self) -> None:
        """Raise the errors of `isend` and `irecv` without starting a message."""
        found = self.group or default_group()
        if isinstance(found, NonMember):
            return
        if self.op is isend:
            found.check_send(self.x, resolve_dst(found, self.peer, self.group_peer), self.tag)
        else:
            peer = resolve_src(found, self.peer, self.group_peer)
            found.check_recv(self.x, peer, self.tag)

    def __repr__(self) -> str:
        other = f"group_peer={self.group_peer}" if self.peer is None else f"peer={self.peer}"
        return f"P2POp({self.op.__name__}, {other}, tag={self.tag})"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp], **options: Unpack[CallOptions]) -> list[Work]:
    """Start all messages in order; return a work for each of this rank's.

    Messages between two ranks pair by their order under one tag; all are on their way at once, so
    that no order of sends and receives can get stuck. The options are for each.

    Raises:
        ValueError: there is none.
        ValueError, TypeError: one of them makes no sense; none has been begun.
    """
    try:
        check_options("batch_isend_irecv", options)
        if not p2p_op_list:
            raise ValueError("p2p_op_list is empty: give it one P2POp at least")
        for op in p2p_op_list:
            if not isinstance(op, P2POp):
                raise TypeError(f"p2p_op_list takes P2POps, not {op!r}")
            op.check()
        begun = [
            op.op(op.x, op.peer, op.group, op.tag, op.group_peer, **options) for op in p2p_op_list
        ]
        return [work for work in begun if work is not None]
    except Exception as error:
        trim_traceback(error)
        raise
