"""Module-level calls on objects, blocking, as in torch.distributed.

Objects are None, bool, int, float, complex, str, bytes, lists, tuples, dicts, sets, dates and
times, NumPy arrays and scalars, and instances of dataclasses that `register_dataclass` was told of
on every rank. They travel as data: nothing that a peer sends is run here. Groups made with
`allow_pickle=True` send what else there is as pickles, which may run anything.

Raises, besides what all calls do:
    TypeError: an object of a type that does not travel; no byte has moved.
    ValueError: what a peer sent is of a dataclass that is not known here, or is a pickle.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from allhands.api.calls import (
    resolve_dst,
    resolve_group,
    resolve_root,
    resolve_src,
    start_and_wait,
    wait_or_return,
    wait_result,
)
from allhands.api.default_world import AnyGroup, default, require_world
from allhands.collectives import object_calls
from allhands.collectives.buffer import Array
from allhands.data.serializer import check_size
from allhands.group.group import Group
from allhands.options import CallOptions
from allhands.tracebacks import trim_traceback

if TYPE_CHECKING:
    from allhands._native import ShmComm


def register_dataclass(kind: type, name: str | None = None) -> None:
    """Allow instances of a dataclass in object collectives; call on every rank.

    Instances are sent as `name` (default: the class's) and their fields, and made anew by calling
    the class with the fields.

    Raises:
        TypeError: not a dataclass, or a field that the constructor does not take.
        ValueError: another class is registered under that name.
    """
    require_world().types.add(kind, name)


def all_gather_object(
    object_list: list[Any], obj: object, group: AnyGroup = None, **options: Unpack[CallOptions]
) -> None:
    """Overwrite `object_list`, one item a rank, with every rank's `obj`."""
    try:
        if (direct := _find_comm(group, options)) is not None:
            now, comm = direct
            _check_length(object_list, "object_list", now.size)
            if (objects := object_calls.all_gather_now(comm, obj, now.objects)) is not None:
                object_list[:] = objects
                return
        if (found := resolve_group(group, False, "all_gather_object", options)) is None:
            return
        _check_length(object_list, "object_list", found.size)
        object_list[:] = wait_result(found.all_gather_object(obj, **options), False)
    except Exception as error:
        trim_traceback(error)
        raise


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: AnyGroup = None,
    *,
    group_dst: int | None = None,
    **options: Unpack[CallOptions],
) -> None:
    """Overwrite `object_gather_list` on rank `dst` with every rank's `obj`.

    There it has an item for each rank; elsewhere it is None. `dst` is a rank of the world, by
    default 0; or give `group_dst`, the rank in the group.
    """
    try:
        if (found := resolve_group(group, False, "gather_object", options)) is None:
            return
        root = resolve_root(found, dst, group_dst, "dst")
        if root == found.rank:
            _check_length(object_gather_list, "object_gather_list", found.size)
        elif object_gather_list is not None:
            raise ValueError(
                f"object_gather_list is for rank {found.ranks[root]} alone: pass None on the others"
            )
        comm = None if options else found.order.vector_calls
        ended = None if comm is None else object_calls.gather_now(comm, obj, root, found.objects)
        if ended is None:
            ended = (wait_result(found.gather_object(obj, root, **options), False),)
        if object_gather_list is not None and ended[0] is not None:
            object_gather_list[:] = ended[0]
    except Exception as error:
        trim_traceback(error)
        raise


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: AnyGroup = None,
    *,
    group_src: int | None = None,
    **options: Unpack[CallOptions],
) -> None:
    """Overwrite the output list's first item with this rank's object from `src`.

    `scatter_object_input_list` has an item for each rank on `src`, and is ignored elsewhere. `src`
    is a rank of the world, by default 0; or give `group_src`, the rank in the group.
    """
    try:
        if (found := resolve_group(group, False, "scatter_object_list", options)) is None:
            return
        if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
            raise ValueError("scatter_object_output_list must be a list of at least one item")
        root = resolve_root(found, src, group_src, "src")
        values = scatter_object_input_list if root == found.rank else None
        comm, ended = None if options else found.order.vector_calls, None
        fits = root != found.rank or (isinstance(values, list) and len(values) == found.size)
        if comm is not None and fits:
            ended = object_calls.scatter_now(comm, values, root, found.objects)
        if ended is None:
            ended = (wait_result(found.scatter_object(values, root, **options), False),)
        scatter_object_output_list[0] = ended[0]
    except Exception as error:
        trim_traceback(error)
        raise


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: AnyGroup = None,
    *,
    group_src: int | None = None,
    **options: Unpack[CallOptions],
) -> None:
    """Overwrite `object_list` with the items of rank `src`; equal lengths.

    `src` is a rank of the world, by default 0; or give `group_src`, the rank in the group.
    """
    try:
        if (
            object_list
            and isinstance(object_list, list)
            and (direct := _find_comm(group, options)) is not None
        ):
            now, comm = direct
            root = resolve_root(now, src, group_src, "src")
            is_root = root == now.rank
            if object_calls.broadcast_now(comm, object_list, root, now.objects, is_root=is_root):
                return
        if (found := resolve_group(group, False, "broadcast_object_list", options)) is None:
            return
        root = resolve_root(found, src, group_src, "src")
        wait_or_return(found.broadcast_object_list(object_list, root, **options), False)
    except Exception as error:
        trim_traceback(error)
        raise


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    *,
    group_dst: int | None = None,
    timeout: float | None = None,
) -> None:
    """Send the items of `object_list` to a rank: first sizes, then data.

    That is `dst`, a rank of the world, or `group_dst`, one of the group.
    """
    try:
        if (found := resolve_group(group, True, "send_object_list")) is None:
            return
        if not isinstance(object_list, list):
            raise TypeError(f"object_list must be a list, not {type(object_list).__name__}")
        peer = resolve_dst(found, dst, group_dst)
        data = found.objects.encode(object_list)
        size = np.array([len(data)], np.int64)
        for part in (size, data):
            _send(found, part, peer, tag, timeout)
    except Exception as error:
        trim_traceback(error)
        raise


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: AnyGroup = None,
    tag: int = 0,
    *,
    group_src: int | None = None,
    timeout: float | None = None,
) -> int:
    """Overwrite `object_list` with the items sent by rank `src`, None: any.

    `src` is a rank of the world; or give `group_src`, the rank in the group.

    Returns the sender's rank in the world, -1 on a rank outside the group.

    Raises:
        ValueError: the sender's list has another length; `object_list` is unchanged.
    """
    try:
        if (found := resolve_group(group, True, "recv_object_list")) is None:
            return -1
        if not isinstance(object_list, list):
            raise TypeError(f"object_list must be a list, not {type(object_list).__name__}")
        source = resolve_src(found, src, group_src)
        size = np.zeros(1, np.int64)
        sender = _receive(found, size, source, tag, timeout)
        data = np.empty(check_size(int(size[0])), np.uint8)
        _receive(found, data, sender, tag, timeout)
        received = found.objects.decode(data)
        if not isinstance(received, list) or len(received) != len(object_list):
            raise ValueError(
                f"rank {found.ranks[sender]} sent {len(received)} objects, and object_list has "
                f"{len(object_list)}"
            )
        object_list[:] = received
        return found.ranks[sender]
    except Exception as error:
        trim_traceback(error)
        raise


def _send(group: Group, part: Array, dst: int, tag: int, timeout: float | None) -> None:
    """Send a part of an object to a rank of the group, on this thread where that is possible."""
    p2p, label = group.order.direct_p2p, "object"
    if p2p is None or not p2p.send(part, group.ranks[dst], tag, timeout, label):
        start_and_wait(lambda: group.send(part, dst, tag, timeout=timeout, label=label))


def _receive(group: Group, part: Array, src: int | None, tag: int, timeout: float | None) -> int:
    """Receive a part of an object likewise, None: from any rank; return the sender's."""
    p2p, label = group.order.direct_p2p, "object"
    if p2p is not None:
        wanted = None if src is None else group.ranks[src]
        if (sender := p2p.recv(part, wanted, tag, timeout, label)) >= 0:
            return group.ranks.index(sender)
    work = start_and_wait(lambda: group.recv(part, src, tag, timeout=timeout, label=label))
    return work.source_rank()


def _find_comm(group: AnyGroup, options: CallOptions) -> "tuple[Group, ShmComm] | None":
    """Return a group and the communicator that takes its calls at once; None: there is none."""
    now = group or default.group
    if options or not isinstance(now, Group) or (comm := now.order.vector_calls) is None:
        return None
    return now, comm


def _check_length(items: object, name: str, size: int) -> None:
    if not isinstance(items, list):
        raise TypeError(f"{name} must be a list of {size} items, not {type(items).__name__}")
    if len(items) != size:
        raise ValueError(f"{name} has {len(items)} items, the group has {size} ranks")
