"""The asyncio face of the calls that are made of several; `engine.composed` describes them."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite import BROADCAST_BYTES
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work
from allhands.futures import wrap_for_loop
from allhands.group.group import Group

T = TypeVar("T")

_CANCEL_SECONDS = 1.0
"""Far longer than the one turn of the I/O loop that ending a call takes."""


class AsyncComposed:
    """They are awaited, and return what they give."""

    group: Group

    async def all_gather_v(
        self, x: AnyArray, *, timeout: float | None = None, label: str | None = None
    ) -> Any:
        """Return the arrays of all ranks, of any shapes and one dtype."""
        return await await_result(self.group.all_gather_v(x, timeout=timeout, label=label))

    async def gather_v(
        self, x: AnyArray, dst: int = 0, *, timeout: float | None = None, label: str | None = None
    ) -> Any:
        """Return the arrays of all ranks on rank `dst`; None elsewhere."""
        return await await_result(self.group.gather_v(x, dst, timeout=timeout, label=label))

    async def scatter_v(
        self,
        scatter_list: Sequence[AnyArray] | None = None,
        src: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Return this rank's array of the list on rank `src`; the others give None."""
        return await await_result(
            self.group.scatter_v(scatter_list, src, timeout=timeout, label=label)
        )

    async def all_to_all_v(
        self,
        inputs: Sequence[AnyArray],
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Give `inputs[j]` to rank j; return a list of what all ranks give."""
        return await await_result(self.group.all_to_all_v(inputs, timeout=timeout, label=label))

    async def reduce_scatter_v(
        self,
        inputs: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Return the combination of what all ranks have in `inputs[rank]`."""
        return await await_result(
            self.group.reduce_scatter_v(inputs, op, timeout=timeout, label=label)
        )

    async def scan(
        self,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Overwrite `x` with the combination of ranks 0 to this one; return it."""
        return await await_result(self.group.scan(x, op, timeout=timeout, label=label))

    async def exscan(
        self,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Overwrite `x` with the combination of the ranks before this one; return it."""
        return await await_result(self.group.exscan(x, op, timeout=timeout, label=label))

    async def all_reduce_coalesced(
        self,
        arrays: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Overwrite each of the arrays with the combination of all ranks'; return them."""
        return await await_result(
            self.group.all_reduce_coalesced(arrays, op, timeout=timeout, label=label)
        )

    async def broadcast_coalesced(
        self,
        arrays: Sequence[AnyArray],
        src: int = 0,
        buffer_size: int = BROADCAST_BYTES,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Overwrite each of the arrays with that of rank `src`; return them."""
        work = self.group.broadcast_coalesced(
            arrays, src, buffer_size, timeout=timeout, label=label
        )
        return await await_result(work)

    async def all_gather_object(
        self, value: object, *, timeout: float | None = None, label: str | None = None
    ) -> Any:
        """Return every rank's object."""
        return await await_result(self.group.all_gather_object(value, timeout=timeout, label=label))

    async def gather_object(
        self, value: object, dst: int = 0, *, timeout: float | None = None, label: str | None = None
    ) -> Any:
        """Return every rank's object on rank `dst`; None elsewhere."""
        return await await_result(
            self.group.gather_object(value, dst, timeout=timeout, label=label)
        )

    async def scatter_object(
        self,
        values: Sequence[object] | None = None,
        src: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Return this rank's object of the list on rank `src`; the others give None."""
        return await await_result(
            self.group.scatter_object(values, src, timeout=timeout, label=label)
        )

    async def broadcast_object_list(
        self,
        values: list[Any],
        src: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> Any:
        """Overwrite the items of the list with those of rank `src`; return it."""
        work = self.group.broadcast_object_list(values, src, timeout=timeout, label=label)
        return await await_result(work)


async def await_result(work: Work) -> Any:
    """Return what a call gives; where the waiting is cancelled the call ends too, before this."""
    future = wrap_for_loop(work.get_future())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([future], timeout=_CANCEL_SECONDS)
        if future.done() and not future.cancelled():
            future.exception()
        raise


async def await_then_return(work: Work, result: T) -> T:
    """Wait for a call in the same way; return a result that is known before."""
    await await_result(work)
    return result
