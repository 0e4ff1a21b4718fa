"""Collective calls as plans: arguments looked at once, and a function that begins the call.

Blocking, non-blocking and persistent forms all begin a plan. On ranks of one group the plan is a
call of allhands on packed bytes or, for reductions that it has kernels for, on numbers; all ranks
choose alike, by what MPI requires to be equal on them: the operation, the elements' kind and the
bytes. Reductions that it has no kernels for are gathered and folded in the order of ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from allhands.api import collectives as ah
from allhands.api import ragged, scans
from allhands.group.group import Group
from allhands.mpi import errors
from allhands.mpi.buffers.messages import (
    BlocksMessage,
    SimpleMessage,
    check_alike,
    is_alike,
    parse_blocks,
    parse_counts,
    parse_receive,
    parse_send,
    parse_vector,
    parse_vector_w,
)
from allhands.mpi.collectives.direct import check_room, cut
from allhands.mpi.constants import ERR_ROOT
from allhands.mpi.memory.special import is_in_place
from allhands.mpi.operations.op import Op
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Completed, Transfer, WorkTransfer

Plan = Callable[[bool], Transfer]
"""Begins the call; True: its caller waits for it at once and for nothing else."""
Call = Callable[[bool], Any]
"""A call of allhands; the argument is `async_op`."""


def run(name: str, call: Call, blocking: bool, finish: Callable[[Any], Any] | None) -> Transfer:
    """Make a call of allhands, and give its result to `finish` at its end."""
    if blocking:
        result = call(False)
        return Completed(result=None if finish is None else finish(result))
    return WorkTransfer(name, call(True), finish)


class IntraPlans:
    """Plans of the collectives among the ranks of one group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rank, self.size = group.rank, group.size

    def check_root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise errors.make_error(
                ERR_ROOT, f"root={root} is no rank: they go from 0 to {self.size - 1}"
            )
        return root

    def barrier(self) -> Plan:
        return lambda blocking: run(
            "Barrier", lambda is_async: ah.barrier(self.group, is_async), blocking, None
        )

    # ------------------------------------------------------------ data

    def bcast(self, buf: Any, root: int) -> Plan:
        self.check_root(root)
        is_root = root == self.rank
        message = parse_send(buf) if is_root else parse_receive(buf)

        def begin(blocking: bool) -> Transfer:
            target = None if is_root else message.target()
            if is_root:
                data = _writable(message.pack())
            else:
                data = np.empty(message.nbytes, np.uint8) if target is None else target

            def finish(_: Any) -> None:
                if not is_root and target is None:
                    message.unpack(data)

            return run(
                "Bcast",
                lambda is_async: ah.broadcast(data, None, self.group, is_async, group_src=root),
                blocking,
                finish,
            )

        return begin

    def gather(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        self.check_root(root)
        is_root = root == self.rank
        blocks = parse_blocks(recvbuf, self.size, True) if is_root else None
        in_place = blocks is not None and is_in_place(sendbuf)
        message = blocks.block(root) if blocks and in_place else parse_send(sendbuf)

        def begin(blocking: bool) -> Transfer:
            own = message.pack()
            if blocks is None:
                return run(
                    "Gather",
                    lambda is_async: ah.gather(
                        own, None, None, self.group, is_async, group_dst=root
                    ),
                    blocking,
                    None,
                )
            data, finish = _prepare_output(blocks)
            if in_place:
                own = own.copy()
            parts = cut(data, self.size)
            return run(
                "Gather",
                lambda is_async: ah.gather(own, parts, None, self.group, is_async, group_dst=root),
                blocking,
                finish,
            )

        return begin

    def gatherv(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        self.check_root(root)
        blocks = parse_vector(recvbuf, self.size, True) if root == self.rank else None
        in_place = blocks is not None and is_in_place(sendbuf)
        message = blocks.block(root) if blocks and in_place else parse_send(sendbuf)

        def begin(blocking: bool) -> Transfer:
            own = message.pack()
            return run(
                "Gatherv",
                lambda is_async: ragged.gather_v(own, None, self.group, is_async, group_dst=root),
                blocking,
                None if blocks is None else lambda result: _store_blocks(blocks, result),
            )

        return begin

    def scatter(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        self.check_root(root)
        is_root = root == self.rank
        blocks = parse_blocks(sendbuf, self.size, False) if is_root else None
        in_place = is_root and is_in_place(recvbuf)
        message = None if in_place else parse_receive(recvbuf)

        def begin(blocking: bool) -> Transfer:
            parts = None if blocks is None else cut(_pack_blocks(blocks), self.size)
            if message is None:
                assert parts is not None
                target: Bytes | None = np.empty_like(parts[root])
            else:
                target = message.target()
            data = target
            if data is None:
                assert message is not None
                data = np.empty(message.nbytes, np.uint8)

            def finish(_: Any) -> None:
                if target is None and message is not None:
                    message.unpack(data)

            return run(
                "Scatter",
                lambda is_async: ah.scatter(
                    data, parts, None, self.group, is_async, group_src=root
                ),
                blocking,
                finish,
            )

        return begin

    def scatterv(self, sendbuf: Any, recvbuf: Any, root: int) -> Plan:
        self.check_root(root)
        blocks = parse_vector(sendbuf, self.size, False) if root == self.rank else None
        in_place = root == self.rank and is_in_place(recvbuf)
        message = None if in_place else parse_receive(recvbuf)

        def begin(blocking: bool) -> Transfer:
            parts = None if blocks is None else _pack_each(blocks)
            return run(
                "Scatterv",
                lambda is_async: ragged.scatter_v(
                    parts, None, self.group, is_async, group_src=root
                ),
                blocking,
                None if message is None else lambda result: store(message, result, root),
            )

        return begin

    def allgather(self, sendbuf: Any, recvbuf: Any) -> Plan:
        blocks = parse_blocks(recvbuf, self.size, True)
        in_place = is_in_place(sendbuf)
        message = blocks.block(self.rank) if in_place else parse_send(sendbuf)

        def begin(blocking: bool) -> Transfer:
            data, finish = _prepare_output(blocks)
            own = message.pack().copy() if in_place else message.pack()
            return run(
                "Allgather",
                lambda is_async: ah.all_gather_into_tensor(data, own, self.group, is_async),
                blocking,
                finish,
            )

        return begin

    def allgatherv(self, sendbuf: Any, recvbuf: Any) -> Plan:
        blocks = parse_vector(recvbuf, self.size, True)
        message = blocks.block(self.rank) if is_in_place(sendbuf) else parse_send(sendbuf)
        return lambda blocking: self._begin_allgatherv(message.pack(), blocks, blocking)

    def _begin_allgatherv(self, own: Bytes, blocks: BlocksMessage, blocking: bool) -> Transfer:
        return run(
            "Allgatherv",
            lambda is_async: ragged.all_gather_v(own, self.group, is_async),
            blocking,
            lambda result: _store_blocks(blocks, result),
        )

    def alltoall(self, sendbuf: Any, recvbuf: Any) -> Plan:
        blocks = parse_blocks(recvbuf, self.size, True)
        in_place = is_in_place(sendbuf)
        brought = blocks if in_place else parse_blocks(sendbuf, self.size, False)

        def begin(blocking: bool) -> Transfer:
            own = _pack_blocks(brought)
            if in_place:
                own = own.copy()
            data, finish = _prepare_output(blocks)
            return run(
                "Alltoall",
                lambda is_async: ah.all_to_all_single(
                    data, own, group=self.group, async_op=is_async
                ),
                blocking,
                finish,
            )

        return begin

    def alltoallv(self, sendbuf: Any, recvbuf: Any) -> Plan:
        blocks = parse_vector(recvbuf, self.size, True)
        in_place = is_in_place(sendbuf)
        brought = blocks if in_place else parse_vector(sendbuf, self.size, False)
        return self._alltoallv("Alltoallv", brought, blocks)

    def alltoallw(self, sendbuf: Any, recvbuf: Any) -> Plan:
        blocks = parse_vector_w(recvbuf, self.size, True)
        in_place = is_in_place(sendbuf)
        brought = blocks if in_place else parse_vector_w(sendbuf, self.size, False)
        return self._alltoallv("Alltoallw", brought, blocks)

    def _alltoallv(self, name: str, brought: BlocksMessage, blocks: BlocksMessage) -> Plan:
        def begin(blocking: bool) -> Transfer:
            parts = [part.copy() for part in _pack_each(brought)]
            return run(
                name,
                lambda is_async: ragged.all_to_all_v(parts, self.group, is_async),
                blocking,
                lambda result: _store_blocks(blocks, result),
            )

        return begin

    # ------------------------------------------------------------ reductions

    def reduce(self, sendbuf: Any, recvbuf: Any, op: Op, root: int) -> Plan:
        self.check_root(root)
        is_root = root == self.rank
        output = parse_receive(recvbuf) if is_root else None
        message = _parse_input(sendbuf, output)
        native = _native(op, message)

        def begin(blocking: bool) -> Transfer:
            if native is None:
                own = message.pack()
                return run(
                    "Reduce",
                    lambda is_async: ragged.gather_v(
                        own, None, self.group, is_async, group_dst=root
                    ),
                    blocking,
                    None
                    if output is None
                    else lambda items: output.unpack(fold(op, output, items)),
                )
            data, finish = _prepare_numbers(message, output)
            return run(
                "Reduce",
                lambda is_async: ah.reduce(
                    data, None, native, self.group, is_async, group_dst=root
                ),
                blocking,
                finish,
            )

        return begin

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Op) -> Plan:
        output = parse_receive(recvbuf)
        message = _parse_input(sendbuf, output)
        native = _native(op, message)

        def begin(blocking: bool) -> Transfer:
            if native is None:
                own = message.pack()
                return run(
                    "Allreduce",
                    lambda is_async: ragged.all_gather_v(own, self.group, is_async),
                    blocking,
                    lambda items: output.unpack(fold(op, output, items)),
                )
            data, finish = _prepare_numbers(message, output)
            return run(
                "Allreduce",
                lambda is_async: ah.all_reduce(data, native, self.group, is_async),
                blocking,
                finish,
            )

        return begin

    def reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op) -> Plan:
        in_place = is_in_place(sendbuf)
        if in_place:
            blocks = parse_blocks(recvbuf, self.size, True)
            output = blocks.block(0)
        else:
            output = parse_receive(recvbuf)
            blocks = parse_blocks(sendbuf, self.size, False)
            check_alike(blocks.block(0), output)
        native = _native(op, output)
        if native is None:
            return self._reduce_scatter("Reduce_scatter_block", blocks, output, op)
        base: Any = output.datatype.base

        def begin(blocking: bool) -> Transfer:
            brought = _pack_blocks(blocks)
            if in_place:
                brought = brought.copy()
            target = output.target()
            data: Bytes = np.empty(output.nbytes, np.uint8) if target is None else target
            return run(
                "Reduce_scatter_block",
                lambda is_async: ah.reduce_scatter_tensor(
                    data.view(base), brought.view(base), native, self.group, is_async
                ),
                blocking,
                (lambda _: output.unpack(data)) if target is None else None,
            )

        return begin

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, counts: Any, op: Op) -> Plan:
        received = parse_receive(recvbuf)
        in_place = is_in_place(sendbuf)
        message = received if in_place else parse_send(sendbuf)
        if counts is None and not in_place:
            told: Bytes = np.empty((self.size, 1), np.int64)
            ah.all_gather_into_tensor(told, np.array([received.count], np.int64), self.group)
            shares = [int(one) for one in told[:, 0]]
        else:
            shares = parse_counts(counts, self.size)
        if not in_place:
            if not is_alike(message.datatype, received.datatype):
                raise ValueError("sendbuf and recvbuf have different datatypes")
            if received.count != shares[self.rank]:
                raise ValueError(
                    f"recvbuf has {received.count} elements, and recvcounts[{self.rank}] is "
                    f"{shares[self.rank]}"
                )
        if message.count != sum(shares):
            which = "recvbuf" if in_place else "sendbuf"
            raise ValueError(
                f"{which} has {message.count} elements, and recvcounts have {sum(shares)} in all"
            )
        output = received.resize(shares[self.rank])
        blocks = _Cuts(message, shares)
        return self._reduce_scatter("Reduce_scatter", blocks, output, op)

    def _reduce_scatter(
        self, name: str, blocks: "BlocksMessage | _Cuts", output: SimpleMessage, op: Op
    ) -> Plan:
        native = _native(op, blocks.block(0))

        def begin(blocking: bool) -> Transfer:
            parts = _pack_each(blocks)
            if native is None:
                return run(
                    name,
                    lambda is_async: ragged.all_to_all_v(parts, self.group, is_async),
                    blocking,
                    lambda items: output.unpack(fold(op, output, items)),
                )
            base: Any = output.datatype.base
            numbers = [part.view(base) for part in parts]
            return run(
                name,
                lambda is_async: ragged.reduce_scatter_v(numbers, native, self.group, is_async),
                blocking,
                lambda result: output.unpack(result.reshape(-1).view(np.uint8)),
            )

        return begin

    def prefix(self, name: str, sendbuf: Any, recvbuf: Any, op: Op) -> Plan:
        """Return the plan of a Scan or Exscan."""
        output = parse_receive(recvbuf)
        message = _parse_input(sendbuf, output)
        native = _native(op, message)
        is_exclusive = name == "Exscan"
        call = scans.exscan if is_exclusive else scans.scan
        before = self.rank + (not is_exclusive)

        def begin(blocking: bool) -> Transfer:
            if native is None:
                own = message.pack()

                def finish(items: Sequence[Bytes]) -> None:
                    if before:
                        output.unpack(fold(op, output, items[:before]))

                return run(
                    name,
                    lambda is_async: ragged.all_gather_v(own, self.group, is_async),
                    blocking,
                    finish,
                )
            if not before:  # its result stays as it is, as MPI has it
                base: Any = message.datatype.base
                data = message.pack().copy().view(base)
                store = None
            else:
                data, store = _prepare_numbers(message, output)
            return run(
                name, lambda is_async: call(data, native, self.group, is_async), blocking, store
            )

        return begin


def fold(op: Op, message: SimpleMessage, items: Sequence[Bytes]) -> Bytes:
    """Return the packed reduction of packed arrays, first to last."""
    result = items[0]
    for item in items[1:]:
        following = item.copy()
        op.reduce_into(result, following, message.datatype, message.count)
        result = following
    return result


class _Cuts:
    """Parts of one message, of so many elements each."""

    def __init__(self, message: SimpleMessage, counts: Sequence[int]) -> None:
        self._message = message
        self._counts = counts

    def __len__(self) -> int:
        return len(self._counts)

    def block(self, place: int) -> SimpleMessage:
        return self._message.part(sum(self._counts[:place]), self._counts[place])


def _native(op: Op, message: SimpleMessage) -> Any:
    """Return the operation of allhands; None: it has no kernels for it."""
    base = message.datatype.base
    return None if base is None else op.native(base)


def _parse_input(sendbuf: Any, output: SimpleMessage | None) -> SimpleMessage:
    """Return what this rank brings to a reduction: the output, where that is in its place."""
    if output is None:
        return parse_send(sendbuf)
    if is_in_place(sendbuf):
        return output
    message = parse_send(sendbuf)
    check_alike(message, output)
    return message


def _prepare_numbers(
    message: SimpleMessage, output: SimpleMessage | None
) -> tuple[Any, Callable[[Any], None] | None]:
    """Return the array that a reduction overwrites, holding the input, and what stores it."""
    base: Any = message.datatype.base
    if output is None:
        return message.pack().view(base), None
    target = output.target()
    if target is None:
        data = message.pack().copy()
        return data.view(base), lambda _: output.unpack(data)
    if output is not message:
        target[:] = message.pack()
    return target.view(base), None


def _prepare_output(blocks: BlocksMessage) -> tuple[Bytes, Callable[[Any], None] | None]:
    """Return memory for all blocks end to end, and what stores them where they belong."""
    whole = blocks.whole()
    target = None if whole is None else whole.target()
    if target is not None:
        return target, None
    data: Bytes = np.empty(sum(blocks.nbytes_of(at) for at in range(len(blocks))), np.uint8)
    return data, lambda _: _store_blocks(blocks, cut(data, len(blocks)))


def _pack_blocks(blocks: BlocksMessage) -> Bytes:
    """Return all blocks, packed end to end."""
    whole = blocks.whole()
    return np.concatenate(_pack_each(blocks)) if whole is None else whole.pack()


def _pack_each(blocks: "BlocksMessage | _Cuts") -> list[Bytes]:
    return [blocks.block(at).pack() for at in range(len(blocks))]


def _store_blocks(blocks: BlocksMessage, parts: Sequence[Bytes]) -> None:
    for at, part in enumerate(parts):
        store(blocks.block(at), part, at)


def store(message: SimpleMessage, data: Bytes, rank: int) -> None:
    """Store what came from a rank."""
    check_room(rank, data.size, message.nbytes)
    message.unpack(data)


def _writable(data: Bytes) -> Bytes:
    """Return the bytes, or a copy if they must not be written."""
    return data if data.flags.writeable else data.copy()
