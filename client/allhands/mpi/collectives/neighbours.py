"""Collective calls among neighbours of a topology (MPI 4.1, chapter 8.6)."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from allhands.mpi.buffers.messages import (
    BlocksMessage,
    SimpleMessage,
    parse_blocks,
    parse_send,
    parse_vector,
    parse_vector_w,
)
from allhands.mpi.p2p.object_messages import dump_object, load_bytes
from allhands.mpi.p2p.requests import Prequest, Request
from allhands.mpi.progress.frames import Bytes
from allhands.mpi.progress.transfers import Transfer

_TAG = 1
_PLACES = 1 << 10
"""Tags of places of neighbours: more follow one another in order, as all messages do."""


class _Exchange(Protocol):
    def __call__(self) -> Transfer: ...


class NeighbourCollectives:
    """Collectives with the neighbours of this rank; mixin of `Topocomm`.

    On a grid a rank may be the neighbour before and the neighbour behind: what is sent to the one
    before is received by it as from the one behind.
    """

    def _list_edges(self) -> tuple[list[int], list[int]]:
        raise NotImplementedError

    def _check_alive(self) -> None:
        """Raise if the communicator is null or freed."""

    def _exchange_neighbours(
        self, sends: Sequence[Bytes], targets: Sequence[SimpleMessage | None]
    ) -> Any:
        """Begin to send to each neighbour and to receive from each; see the class."""
        coming, going = self._list_edges()
        is_grid = hasattr(self, "_dims")

        def tag_of_receive(place: int) -> int:
            return _TAG + (place ^ 1 if is_grid else 0) % _PLACES

        def tag_of_send(place: int) -> int:
            return _TAG + (place if is_grid else 0) % _PLACES

        return self._exchange(  # type: ignore[attr-defined]
            [(rank, tag_of_send(at), sends[at]) for at, rank in enumerate(going)],
            [(rank, tag_of_receive(at), targets[at]) for at, rank in enumerate(coming)],
            what="a collective among neighbours",
        )

    def _plan_to_all(
        self, sendbuf: Any, recvbuf: Any, parse: Callable[[Any, int, bool], BlocksMessage]
    ) -> _Exchange:
        """Return what begins to send one message to all neighbours."""
        self._check_alive()
        coming, going = self._list_edges()
        message = parse_send(sendbuf)
        blocks = parse(recvbuf, len(coming), True)

        def begin() -> Transfer:
            data = message.pack().copy()
            exchange: Transfer = self._exchange_neighbours(
                [data] * len(going), [blocks.block(at) for at in range(len(coming))]
            )
            return exchange

        return begin

    def _plan_to_each(
        self, sendbuf: Any, recvbuf: Any, parse: Callable[[Any, int, bool], BlocksMessage]
    ) -> _Exchange:
        """Return what begins to send each neighbour a message of its own."""
        self._check_alive()
        coming, going = self._list_edges()
        brought = parse(sendbuf, len(going), False)
        blocks = parse(recvbuf, len(coming), True)

        def begin() -> Transfer:
            exchange: Transfer = self._exchange_neighbours(
                [brought.block(at).pack().copy() for at in range(len(going))],
                [blocks.block(at) for at in range(len(coming))],
            )
            return exchange

        return begin

    def _finish(self, begin: _Exchange) -> None:
        self._complete(begin())  # type: ignore[attr-defined]

    # ------------------------------------------------------------ blocking

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a buffer to all neighbours, and collect equal ones from them."""
        self._finish(self._plan_to_all(sendbuf, recvbuf, parse_blocks))

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a buffer to all neighbours, and collect theirs of various sizes."""
        self._finish(self._plan_to_all(sendbuf, recvbuf, parse_vector))

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange equal blocks with the neighbours."""
        self._finish(self._plan_to_each(sendbuf, recvbuf, parse_blocks))

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange blocks of various sizes with the neighbours."""
        self._finish(self._plan_to_each(sendbuf, recvbuf, parse_vector))

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange blocks of various sizes and datatypes with the neighbours."""
        self._finish(self._plan_to_each(sendbuf, recvbuf, parse_vector_w))

    # ------------------------------------------------------------ non-blocking

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin a `Neighbor_allgather`."""
        return Request._of(self._plan_to_all(sendbuf, recvbuf, parse_blocks)())

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin a `Neighbor_allgatherv`."""
        return Request._of(self._plan_to_all(sendbuf, recvbuf, parse_vector)())

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin a `Neighbor_alltoall`."""
        return Request._of(self._plan_to_each(sendbuf, recvbuf, parse_blocks)())

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin a `Neighbor_alltoallv`."""
        return Request._of(self._plan_to_each(sendbuf, recvbuf, parse_vector)())

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Begin a `Neighbor_alltoallw`."""
        return Request._of(self._plan_to_each(sendbuf, recvbuf, parse_vector_w)())

    # ------------------------------------------------------------ persistent

    def Neighbor_allgather_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare a `Neighbor_allgather`."""
        return Prequest._prepare(self._plan_to_all(sendbuf, recvbuf, parse_blocks))

    def Neighbor_allgatherv_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare a `Neighbor_allgatherv`."""
        return Prequest._prepare(self._plan_to_all(sendbuf, recvbuf, parse_vector))

    def Neighbor_alltoall_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare a `Neighbor_alltoall`."""
        return Prequest._prepare(self._plan_to_each(sendbuf, recvbuf, parse_blocks))

    def Neighbor_alltoallv_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare a `Neighbor_alltoallv`."""
        return Prequest._prepare(self._plan_to_each(sendbuf, recvbuf, parse_vector))

    def Neighbor_alltoallw_init(self, sendbuf: Any, recvbuf: Any, info: Any = None) -> Prequest:
        """Prepare a `Neighbor_alltoallw`."""
        return Prequest._prepare(self._plan_to_each(sendbuf, recvbuf, parse_vector_w))

    # ------------------------------------------------------------ objects

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Send an object to all neighbours, and return theirs."""
        self._check_alive()
        _, going = self._list_edges()
        return self._exchange_objects([sendobj] * len(going))

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send each neighbour an object, and return those that they sent."""
        self._check_alive()
        _, going = self._list_edges()
        objects = [None] * len(going) if sendobj is None else list(sendobj)
        if len(objects) != len(going):
            raise ValueError(f"expecting {len(going)} items, got {len(objects)}")
        return self._exchange_objects(objects)

    def _exchange_objects(self, objects: Sequence[Any]) -> list[Any]:
        coming, _ = self._list_edges()
        exchange = self._exchange_neighbours(
            [dump_object(one) for one in objects], [None] * len(coming)
        )
        self._complete(exchange)  # type: ignore[attr-defined]
        came = iter(exchange.list_receives())
        return [load_bytes(next(came).result) if rank >= 0 else None for rank in coming]
