"""The checker: whether there is an order of a history's operations that explains all results.

The search of Wing and Gong, with the memory of Lowe: operations are put in order one by one, each
within its own begin and end; a set of operations that led to a state before is not tried again.
The order has to hold for every known result. Operations of unknown outcome take effect anywhere
after their begin, or never: what is last in the order is seen by no other.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from support.linearizability.history import UNKNOWN_END, Operation

S = TypeVar("S", bound=Hashable)
MOST_STEPS = 1_000_000


class Model(Protocol[S]):
    """A sequential object: what one operation after the other does."""

    def make_state(self) -> S:
        """Return the state before all operations."""

    def apply(self, state: S, operation: Operation) -> S | None:
        """Return the state after an operation; None: its result is impossible in this state.

        An operation of unknown outcome is possible in every state.
        """


class Undecided(Exception):
    """The search took more than `MOST_STEPS` steps."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A history that no order explains."""

    longest: tuple[Operation, ...]
    """The longest order found that explains its own operations."""
    next: tuple[Operation, ...]
    """Operations of which one had to follow, and none could."""

    def __str__(self) -> str:
        lines = [f"  {one}" for one in self.longest[-12:]]
        return "\n".join(
            [
                f"after these, the last of {len(self.longest)} in order:",
                *lines,
                "none of these can be next:",
                *(f"  {one}" for one in self.next),
            ]
        )


class _Search:
    """Operations in the order of their begins, and which of them can come next.

    Begins and ends of the known ones are a list of nodes in the order of time, from which those
    taken into the order are taken out; node 0 is before all.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        known = [place for place, one in enumerate(operations) if one.is_known]
        self._unknown = [place for place, one in enumerate(operations) if not one.is_known]
        begins = [(operations[place].begin, place, True) for place in known]
        events = sorted(begins + [(operations[place].end, place, False) for place in known])
        self._places = [-1, *(place for _, place, _ in events)]
        self._are_begins = [True, *(is_begin for _, _, is_begin in events)]
        self._following = [*range(1, len(events) + 1), 0]
        self._before = [len(events), *range(len(events))]
        self._nodes: dict[int, list[int]] = {place: [] for place in known}
        for node, place in enumerate(self._places[1:], 1):
            self._nodes[place].append(node)
        self._earlier = {place: self._find_equal(place) for place in self._unknown}

    def list_candidates(self, taken: int) -> Iterator[int]:
        """Iterate over the operations that can be next: known ones first.

        Between two steps the list of nodes may change, and has to change back.
        """
        node = self._following[0]
        while self._are_begins[node] and node:
            yield self._places[node]
            node = self._following[node]
        until = self.find_limit()
        for place in self._unknown:
            if self.operations[place].begin > until:
                break
            earlier = self._earlier[place]
            # Of equal ones the first comes first: to exchange them changes nothing.
            if not taken >> place & 1 and (earlier is None or taken >> earlier & 1):
                yield place

    def find_limit(self) -> int:
        """Return the first end of operations that are not in the order: what is next has begun."""
        node = self._following[0]
        while self._are_begins[node] and node:
            node = self._following[node]
        return self.operations[self._places[node]].end if node else UNKNOWN_END

    def take(self, place: int) -> None:
        """Take the nodes of an operation out of the list."""
        for node in self._nodes.get(place, ()):
            before, following = self._before[node], self._following[node]
            self._following[before], self._before[following] = following, before

    def put_back(self, place: int) -> None:
        """Put back the nodes of the operation that was taken out last."""
        for node in reversed(self._nodes.get(place, ())):
            self._following[self._before[node]] = self._before[self._following[node]] = node

    def _find_equal(self, place: int) -> int | None:
        """Return the last operation of unknown outcome before one that asks for the same."""
        wanted = self.operations[place]
        for earlier in reversed(self._unknown[: self._unknown.index(place)]):
            one = self.operations[earlier]
            if (one.verb, one.arguments) == (wanted.verb, wanted.arguments):
                return earlier
        return None


def find_contradiction(
    model: Model[S], operations: Sequence[Operation], most_steps: int = MOST_STEPS
) -> Contradiction | None:
    """Return why a history is not linearizable; None: it is.

    Raises:
        Undecided: the search took too long.
    """
    search = _Search(operations := sorted(operations, key=lambda one: one.begin))
    left = sum(one.is_known for one in operations)
    state, taken = model.make_state(), 0
    seen = {(taken, state)}
    path: list[tuple[int, S, int]] = []
    levels = [search.list_candidates(taken)]
    longest: tuple[int, ...] = ()
    stuck_at = 0
    for _ in range(most_steps):
        if not left:
            return None
        if (place := next(levels[-1], None)) is not None:
            one = operations[place]
            after = model.apply(state, one)
            is_idle = after == state and not one.is_known  # as if it never came
            if after is None or is_idle or (taken | 1 << place, after) in seen:
                continue
            path.append((place, state, taken))
            state, taken, left = after, taken | 1 << place, left - one.is_known
            seen.add((taken, state))
            search.take(place)
            levels.append(search.list_candidates(taken))
            continue
        if len(path) >= len(longest):
            longest, stuck_at = tuple(one for one, _, _ in path), search.find_limit()
        if not path:
            return _describe(operations, longest, stuck_at)
        levels.pop()
        place, state, taken = path.pop()
        left += operations[place].is_known
        search.put_back(place)
    raise Undecided(f"{len(operations)} operations took more than {most_steps:,} steps")


def _describe(operations: Sequence[Operation], longest: Sequence[int], until: int) -> Contradiction:
    rest = set(range(len(operations))) - set(longest)
    candidates = [operations[place] for place in sorted(rest)]
    return Contradiction(
        tuple(operations[place] for place in longest),
        tuple(one for one in candidates if one.begin < until),
    )
