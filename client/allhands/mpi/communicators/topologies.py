"""Communicators whose ranks have neighbours: on a grid or a graph."""

from collections.abc import Sequence
from typing import Any, Self, cast

from allhands.mpi import errors
from allhands.mpi.collectives.neighbours import NeighbourCollectives
from allhands.mpi.communicators import cartesian, graphs
from allhands.mpi.communicators.comm import Comm
from allhands.mpi.communicators.intracomm import Intracomm
from allhands.mpi.constants import (
    CART,
    DIST_GRAPH,
    ERR_DIMS,
    ERR_RANK,
    GRAPH,
    UNDEFINED,
    UNWEIGHTED,
    WEIGHTS_EMPTY,
)
from allhands.mpi.info import Info

Compute_dims = cartesian.Compute_dims


class Topocomm(Intracomm, NeighbourCollectives):
    """A communicator with a topology."""

    _kind = UNDEFINED

    def __new__(cls, comm: Comm | None = None) -> Self:
        if comm is not None and comm:
            kind = comm.Get_topology()
            if kind == UNDEFINED or cls._kind not in (UNDEFINED, kind):
                raise TypeError(f"expecting a communicator for {cls.__name__}")
        return super().__new__(cls, comm)

    def Get_topology(self) -> int:
        self._check_exists()
        return self._kind

    topology = property(Get_topology, doc="Kind of its topology.")

    def _list_edges(self) -> tuple[list[int], list[int]]:
        """Return the ranks that this one receives from, and sends to, in order."""
        raise NotImplementedError

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        """The ranks that this one receives from, and sends to."""
        self._check_exists()
        return self._list_edges()

    @property
    def inedges(self) -> list[int]:
        """The ranks that this one receives from."""
        return self.inoutedges[0]

    @property
    def outedges(self) -> list[int]:
        """The ranks that this one sends to."""
        return self.inoutedges[1]

    @property
    def degrees(self) -> tuple[int, int]:
        """How many ranks this one receives from, and sends to."""
        coming, going = self.inoutedges
        return len(coming), len(going)

    @property
    def indegree(self) -> int:
        """How many ranks this one receives from."""
        return self.degrees[0]

    @property
    def outdegree(self) -> int:
        """How many ranks this one sends to."""
        return self.degrees[1]


class Cartcomm(Topocomm):
    """A communicator whose ranks are the points of a grid, in C order."""

    _kind = CART
    _dims: tuple[int, ...]
    _periods: tuple[bool, ...]

    def _topology_fields(self) -> dict[str, Any]:
        return {"_dims": self._dims, "_periods": self._periods}

    def _list_edges(self) -> tuple[list[int], list[int]]:
        found = cartesian.list_neighbours(self._dims, self._periods, self._rank)
        return found, list(found)

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        self._check_exists()
        return len(self._dims)

    dim = property(Get_dim, doc="Number of dimensions.")
    ndim = property(Get_dim, doc="Number of dimensions.")

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return the lengths, whether they are periodic, and this rank's coordinates."""
        self._check_exists()
        periods = [int(one) for one in self._periods]
        return list(self._dims), periods, cartesian.find_coordinates(self._dims, self._rank)

    topo = property(Get_topo, doc="See `Get_topo`.")
    dims = property(lambda self: self.Get_topo()[0], doc="Lengths.")
    periods = property(lambda self: self.Get_topo()[1], doc="Whether they are periodic.")
    coords = property(lambda self: self.Get_topo()[2], doc="Coordinates of this rank.")

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates."""
        self._check_exists()
        if len(coords) != len(self._dims):
            raise ValueError(f"expecting {len(self._dims)} items, got {len(coords)}")
        return cartesian.find_rank(self._dims, self._periods, coords)

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank."""
        self._check_exists()
        if not 0 <= rank < len(self._ranks):
            raise errors.make_error(ERR_RANK, f"rank {rank} is not on the grid")
        return cartesian.find_coordinates(self._dims, rank)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the ranks to receive from and to send to, to shift data in a dimension."""
        self._check_exists()
        return cartesian.shift(self._dims, self._periods, self._rank, direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> "Cartcomm":
        """Return the grid of the ranks that differ from this one in those dimensions alone."""
        self._check_alive()
        kept = [bool(one) for one in remain_dims]
        if len(kept) != len(self._dims):
            raise ValueError(f"expecting {len(self._dims)} items, got {len(kept)}")
        coordinates = cartesian.find_coordinates(self._dims, self._rank)
        color = 0
        for length, at, remains in zip(self._dims, coordinates, kept, strict=True):
            if not remains:
                color = color * length + at
        split = self.Split(color, self._rank)
        split._group  # noqa: B018 (so that its number is this one's)
        return Cartcomm._make(
            split._context,
            split._ranks,
            _dims=tuple(one for one, remains in zip(self._dims, kept, strict=True) if remains),
            _periods=tuple(
                one for one, remains in zip(self._periods, kept, strict=True) if remains
            ),
        )


class Graphcomm(Topocomm):
    """A communicator whose ranks are the nodes of a graph."""

    _kind = GRAPH
    _index: tuple[int, ...]
    _edges: tuple[int, ...]

    def _topology_fields(self) -> dict[str, Any]:
        return {"_index": self._index, "_edges": self._edges}

    def _list_edges(self) -> tuple[list[int], list[int]]:
        found = graphs.list_neighbours(self._index, self._edges, self._rank)
        return found, list(found)

    def Get_dims(self) -> tuple[int, int]:
        """Return the numbers of nodes and edges."""
        self._check_exists()
        return len(self._index), len(self._edges)

    dims = property(Get_dims, doc="Numbers of nodes and edges.")
    nnodes = property(lambda self: self.Get_dims()[0], doc="Number of nodes.")
    nedges = property(lambda self: self.Get_dims()[1], doc="Number of edges.")

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Return where the neighbours of each node end, and the neighbours."""
        self._check_exists()
        return list(self._index), list(self._edges)

    topo = property(Get_topo, doc="See `Get_topo`.")
    index = property(lambda self: self.Get_topo()[0], doc="Where neighbours of each node end.")
    edges = property(lambda self: self.Get_topo()[1], doc="Neighbours of the nodes.")

    def Get_neighbors_count(self, rank: int) -> int:
        """Return the number of neighbours of a rank."""
        return len(self.Get_neighbors(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        """Return the neighbours of a rank."""
        self._check_exists()
        if not 0 <= rank < len(self._ranks):
            raise errors.make_error(ERR_RANK, f"rank {rank} is not in the graph")
        return graphs.list_neighbours(self._index, self._edges, rank)

    nneighbors = property(
        lambda self: self.Get_neighbors_count(self.Get_rank()), doc="Number of neighbours."
    )
    neighbors = property(lambda self: self.Get_neighbors(self.Get_rank()), doc="Neighbours.")


class Distgraphcomm(Topocomm):
    """A communicator with a graph of which each rank knows its own neighbours."""

    _kind = DIST_GRAPH
    _adjacency: graphs.Adjacency

    def _topology_fields(self) -> dict[str, Any]:
        return {"_adjacency": self._adjacency}

    def _list_edges(self) -> tuple[list[int], list[int]]:
        return list(self._adjacency.sources), list(self._adjacency.destinations)

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Return the numbers of ranks that send here and are sent to, and whether they weigh."""
        self._check_exists()
        found = self._adjacency
        return len(found.sources), len(found.destinations), found.source_weights is not None

    def Get_dist_neighbors(
        self,
    ) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """Return the ranks that send here and are sent to, and their weights, if they have any."""
        self._check_exists()
        found = self._adjacency
        weights = None
        if found.source_weights is not None:
            weights = list(found.source_weights), list(found.destination_weights or ())
        return list(found.sources), list(found.destinations), weights


def create_cart(comm: Intracomm, dims: Sequence[int], periods: Any, reorder: bool) -> Cartcomm:
    """Return the grid of the first ranks; COMM_NULL on the others."""
    lengths, wraps = _check_grid(comm, dims, periods)
    size = _count(lengths)
    made = comm._make_communicator(range(size), Cartcomm, _dims=lengths, _periods=wraps)
    return cast(Cartcomm, made)


def map_cart(comm: Intracomm, dims: Sequence[int], periods: Any) -> int:
    """Return this rank's rank on a grid."""
    lengths, _ = _check_grid(comm, dims, periods)
    return comm._rank if comm._rank < _count(lengths) else UNDEFINED


def _check_grid(
    comm: Intracomm, dims: Sequence[int], periods: Any
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    comm._check_alive()
    lengths = tuple(int(one) for one in dims)
    if periods is None or isinstance(periods, bool):
        periods = [bool(periods)] * len(lengths)
    wraps = tuple(bool(one) for one in periods)
    if len(wraps) != len(lengths):
        raise ValueError(f"expecting {len(lengths)} items, got {len(wraps)}")
    if any(one < 0 for one in lengths) or _count(lengths) > len(comm._ranks):
        raise errors.make_error(
            ERR_DIMS, f"a grid of {list(lengths)} is not for {len(comm._ranks)} ranks"
        )
    return lengths, wraps


def _count(lengths: Sequence[int]) -> int:
    number = 1
    for length in lengths:
        number *= length
    return number


def create_graph(
    comm: Intracomm, index: Sequence[int], edges: Sequence[int], reorder: bool
) -> Graphcomm:
    """Return the graph of the first ranks; COMM_NULL on the others."""
    comm._check_alive()
    ends, others = graphs.check_graph(index, edges, len(comm._ranks))
    made = comm._make_communicator(
        range(len(ends)), Graphcomm, _index=tuple(ends), _edges=tuple(others)
    )
    return cast(Graphcomm, made)


def map_graph(comm: Intracomm, index: Sequence[int], edges: Sequence[int]) -> int:
    """Return this rank's rank in a graph."""
    comm._check_alive()
    ends, _ = graphs.check_graph(index, edges, len(comm._ranks))
    return comm._rank if comm._rank < len(ends) else UNDEFINED


def create_dist_graph_adjacent(
    comm: Intracomm,
    sources: Sequence[int] | None,
    destinations: Sequence[int] | None,
    sourceweights: Any,
    destweights: Any,
    info: Info,
    reorder: bool,
) -> Distgraphcomm:
    """Return the graph of which each rank gives its neighbours."""
    comm._check_alive()
    coming, going = list(sources or ()), list(destinations or ())
    graphs.check_ranks([*coming, *going], len(comm._ranks))
    adjacency = graphs.Adjacency(
        coming,
        going,
        _read_weights(sourceweights, len(coming)),
        _read_weights(destweights, len(going)),
    )
    made = comm._make_communicator(range(len(comm._ranks)), Distgraphcomm, _adjacency=adjacency)
    return cast(Distgraphcomm, made)


def create_dist_graph(
    comm: Intracomm,
    sources: Sequence[int],
    degrees: Sequence[int],
    destinations: Sequence[int],
    weights: Any,
    info: Info,
    reorder: bool,
) -> Distgraphcomm:
    """Return the graph of the edges that all ranks give."""
    comm._check_alive()
    given = _read_weights(weights, len(destinations))
    own = graphs.list_edges(list(sources), list(degrees), list(destinations), given)
    gathered = comm._share((own, given is not None))
    edges = [tuple(edge) for edges, _ in gathered for edge in edges]
    # Of what all ranks gave, so that all of them raise, and none waits for those that did.
    graphs.check_ranks((rank for edge in edges for rank in edge[:2]), len(comm._ranks))
    adjacency = graphs.select(edges, comm._rank, any(has for _, has in gathered))
    made = comm._make_communicator(range(len(comm._ranks)), Distgraphcomm, _adjacency=adjacency)
    return cast(Distgraphcomm, made)


def _read_weights(weights: Any, count: int) -> list[int] | None:
    """Return the weights of edges; None: they have none."""
    if weights is None:
        return None
    if isinstance(weights, int):
        if weights == UNWEIGHTED:
            return None
        if weights == WEIGHTS_EMPTY:
            if count:
                raise ValueError("cannot handle WEIGHTS_EMPTY with edges")
            return []
    found = [int(one) for one in weights]
    if len(found) != count:
        raise ValueError(f"expecting {count} items, got {len(found)}")
    return found


Intracomm._topologies.update(
    {
        "cart": create_cart,
        "graph": create_graph,
        "dist graph": create_dist_graph,
        "dist graph adjacent": create_dist_graph_adjacent,
        "map of cart": map_cart,
        "map of graph": map_graph,
    }
)
