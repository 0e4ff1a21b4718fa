"""Choice of a call's algorithm, by size and by measured link cost."""

import asyncio
import math
import os
from collections.abc import Callable

import pytest

from allhands.collectives.algorithms import (
    bruck,
    cost,
    doubling,
    halving,
    ring,
    select,
    tree,
    van_de_geijn,
)
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.schedule import Schedule
from allhands.membership import link_probe
from allhands.membership.link_probe import measure_links
from allhands.testing.inproc_world import inproc_world

NEAR = LinkCost(50e-6, 1.2e9)
FAR = LinkCost(10e-3, 1.2e9)
SLOW = LinkCost(50e-6, 12e6)
WIRES = (NEAR, FAR, SLOW)
SIZES = [2**power for power in range(3, 31)]
WORLDS = (2, 3, 4, 5, 8, 13, 64)


def limit(size: int, wire: LinkCost | None, short: str) -> int:
    """Return the first number of bytes for which all_reduce is not `short`."""
    return next(
        nbytes
        for nbytes in SIZES
        if select.select_all_reduce(size, nbytes, link_cost=wire).name != short
    )


LENGTH = 64 * 3 * 5 * 13 * 4
"""Elements, of a byte each; divided evenly by all of WORLDS."""

MODELS: list[tuple[Callable[[LinkCost, int, int], float], Callable[[int, int], Schedule]]] = [
    (cost.estimate_doubling, lambda rank, size: doubling.all_reduce(rank, size, LENGTH)),
    (cost.estimate_halving_doubling, lambda rank, size: halving.all_reduce(rank, size, LENGTH)),
    (cost.estimate_ring, lambda rank, size: ring.all_reduce(rank, size, LENGTH)),
    (cost.estimate_tree, lambda rank, size: tree.broadcast(rank, size, LENGTH, 0)),
    (cost.estimate_van_de_geijn, lambda rank, size: van_de_geijn.broadcast(rank, size, LENGTH, 0)),
    (cost.estimate_bruck, lambda rank, size: bruck.all_gather(rank, size, [LENGTH // size] * size)),
    (
        cost.estimate_ring_all_gather,
        lambda rank, size: ring.all_gather(rank, size, [LENGTH // size] * size),
    ),
]


@pytest.mark.parametrize(("model", "build"), MODELS)
@pytest.mark.parametrize("size", WORLDS)
def test_the_model_counts_what_schedules_do(
    size: int,
    model: Callable[[LinkCost, int, int], float],
    build: Callable[[int, int], Schedule],
) -> None:
    every = [build(rank, size).rounds for rank in range(size)]
    waits = [any(step.sends for step in steps) for steps in zip(*every, strict=True)]
    assert model(LinkCost(1.0, math.inf), size, 0) == sum(waits)
    sent = sum(
        max(sum(len(send.span) for send in step.sends) for step in steps)
        for steps in zip(*every, strict=True)
    )
    # A scatter along a tree sends less from round to round, which the model does not halve.
    tolerance = 0.3 if model is cost.estimate_van_de_geijn else 1e-3
    assert model(LinkCost(0.0, 1.0), size, LENGTH) == pytest.approx(sent, rel=tolerance)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", WORLDS)
def test_all_reduce_takes_what_costs_least(size: int, wire: LinkCost) -> None:
    models = {
        "doubling": cost.estimate_doubling,
        "halving_doubling": cost.estimate_halving_doubling,
        "ring": cost.estimate_ring,
    }
    for nbytes in SIZES:
        chosen = select.select_all_reduce(size, nbytes, link_cost=wire).name
        costs = {name: model(wire, size, nbytes) for name, model in models.items()}
        if nbytes > select.MEDIUM_BYTES:
            assert chosen != "halving_doubling"
            del costs["halving_doubling"]
        assert costs[chosen] == min(costs.values())


def test_the_farther_the_longer_few_rounds_pay() -> None:
    for size in (2, 4, 8):
        assert limit(size, NEAR, "doubling") < limit(size, FAR, "doubling")
    # Two ranks send as much either way; more of them send less by halves, the sooner the slower.
    assert limit(2, SLOW, "doubling") == limit(2, NEAR, "doubling")
    assert limit(8, SLOW, "doubling") < limit(8, NEAR, "doubling")


def test_without_a_measurement_thresholds_decide() -> None:
    assert limit(2, None, "doubling") == 2 * select.PAIR_BYTES
    assert limit(4, None, "doubling") == select.DOUBLING_BYTES
    for is_ordered, wire in ((True, None), (True, FAR)):
        assert select.select_all_reduce(4, 8, is_ordered, wire).name == "gathered"
        assert select.select_all_reduce(4, select.SMALL_BYTES, is_ordered, wire).name == "ordered"


@pytest.mark.parametrize(
    ("choose", "short", "long"),
    [
        (select.select_broadcast, "tree", "van_de_geijn"),
        (select.select_all_gather, "bruck", "ring"),
    ],
)
def test_other_calls_weigh_rounds_against_bytes_too(
    choose: Callable[[int, int, LinkCost | None], select.Choice[...]], short: str, long: str
) -> None:
    def last_short(wire: LinkCost | None) -> int:
        names = [choose(8, nbytes, wire).name for nbytes in SIZES]
        assert names == sorted(names, key=[short, long].index)
        return names.count(short)

    assert 0 < last_short(NEAR) < last_short(FAR)
    assert last_short(None) == SIZES.index(select.SMALL_BYTES) + 1


@pytest.mark.parametrize(
    ("usable", "of_host", "ranks", "processors"),
    [(8, 8, 4, 2.0), (8, 8, 1, 8.0), (2, 8, 4, 2.0), (2, 2, 4, 0.5), (4, 64, 32, 0.125)],
    ids=["shared", "alone", "bound", "crowded", "part of a host"],
)
def test_processors_are_shared_by_the_ranks_that_are_not_bound(
    monkeypatch: pytest.MonkeyPatch, usable: int, of_host: int, ranks: int, processors: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)))
    monkeypatch.setattr(os, "cpu_count", lambda: of_host)
    assert link_probe._count_processors(ranks) == processors


@pytest.mark.parametrize("size", [2, 3, 4])
async def test_all_ranks_agree_on_what_was_measured(size: int) -> None:
    async with inproc_world(size) as world:
        engines = [rank.engines["world"] for rank in world.ranks]
        wires = await asyncio.gather(*map(measure_links, engines, range(1, size + 1)))
        assert len(set(wires)) == 1
        assert wires[0].processors == pytest.approx(link_probe._count_processors(size))
        assert wires[0].latency > 0
        assert wires[0].bandwidth > 0
        for engine in engines:
            engine.link_cost = FAR
        works = [group.barrier() for group in world.groups]
        await asyncio.gather(*(asyncio.wrap_future(work.get_future()) for work in works))
        assert {work.explain() for work in works} == {
            "dissemination over links, where a message takes 10000 us and streams run at 1200 MB/s"
        }
