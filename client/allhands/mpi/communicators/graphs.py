"""Graphs of processes: neighbours by index and edges, and edges by who gave them. Pure."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from allhands.mpi import errors
from allhands.mpi.constants import ERR_ARG, ERR_TOPOLOGY, PROC_NULL
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The neighbours of one process, with weights if there are any."""

    sources: list[int]
    destinations: list[int]
    source_weights: list[int] | None
    destination_weights: list[int] | None


def check_graph(
    index: Sequence[int], edges: Sequence[int], size: int
) -> tuple[list[int], list[int]]:
    """Return index and edges as MPI has them: where the neighbours of each node end.

    An index that begins with 0, of where they begin, is taken too. Edges that belong to no node
    are left out.

    Raises:
        Exception: there are more nodes than ranks, or index and edges do not fit together.
    """
    ends, others = [int(one) for one in index], [int(one) for one in edges]
    if ends and ends[0] == 0 and ends[-1] == len(others) and len(ends) > 1:
        ends = ends[1:]
    if len(ends) > size:
        raise errors.make_error(
            ERR_TOPOLOGY, f"the graph has {len(ends)} nodes, and there are {size} ranks"
        )
    if any(end < begin for begin, end in pairwise([0, *ends])):
        raise errors.make_error(ERR_ARG, f"an index decreases: {ends}")
    if ends and ends[-1] > len(others):
        raise errors.make_error(
            ERR_ARG, f"the index is of {ends[-1]} edges, and there are {len(others)}"
        )
    del others[ends[-1] if ends else 0 :]
    if any(not 0 <= other < len(ends) for other in others):
        raise errors.make_error(ERR_ARG, "an edge leads to no node of the graph")
    return ends, others


def list_neighbours(index: Sequence[int], edges: Sequence[int], rank: int) -> list[int]:
    """Return the neighbours of a node."""
    return list(edges[(index[rank - 1] if rank else 0) : index[rank]])


def check_ranks(ranks: Iterable[int], size: int) -> None:
    """Raise if there is a rank that is neither in a communicator of this size nor PROC_NULL."""
    strangers = sorted({rank for rank in ranks if rank != PROC_NULL and not 0 <= rank < size})
    if strangers:
        raise errors.make_error(ERR_ARG, f"neighbours {strangers} are not among the {size} ranks")


Edge = tuple[int, int, int]
"""From, to, weight."""


def list_edges(
    sources: Sequence[int],
    degrees: Sequence[int],
    destinations: Sequence[int],
    weights: Sequence[int] | None,
) -> list[Edge]:
    """Return the edges that a rank gives."""
    if len(degrees) != len(sources) or sum(degrees) != len(destinations):
        raise ValueError("sources, degrees and destinations do not fit together")
    if weights is not None and len(weights) != len(destinations):
        raise ValueError(f"expecting {len(destinations)} weights, got {len(weights)}")
    edges = []
    at = 0
    for source, degree in zip(sources, degrees, strict=True):
        for place in range(at, at + degree):
            weight = 1 if weights is None else weights[place]
            edges.append((source, destinations[place], weight))
        at += degree
    return edges


def select(edges: Sequence[Edge], rank: int, has_weights: bool) -> Adjacency:
    """Return the neighbours of a rank among the edges of all."""
    coming = [edge for edge in edges if edge[1] == rank]
    going = [edge for edge in edges if edge[0] == rank]
    return Adjacency(
        [edge[0] for edge in coming],
        [edge[1] for edge in going],
        [edge[2] for edge in coming] if has_weights else None,
        [edge[2] for edge in going] if has_weights else None,
    )
