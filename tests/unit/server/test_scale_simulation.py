"""The simulation of large worlds, and what the real machine's operations take in it."""

import pytest

from support.scale.costs import Costs, Traffic, fit_costs, price
from support.scale.simulation import Link, simulate
from support.scale.table import make_table

COSTS = Costs(3e-4, 4e-4, 7e-5, 5e-5, 1e-8, 2e-8)


def test_the_messages_of_an_operation_grow_with_the_world_and_not_with_its_square() -> None:
    small, large = simulate(60, COSTS), simulate(240, COSTS)
    for name in small:
        assert large[name].traffic.messages < 5 * small[name].traffic.messages, name


def test_the_bytes_of_an_operation_grow_with_the_world_where_no_list_of_all_is_told() -> None:
    small, large = simulate(60, COSTS), simulate(240, COSTS)
    for name in small.keys() - {"join", "named barrier"}:  # all ranks hear of, or name, all
        traffic, more = small[name].traffic, large[name].traffic
        nbytes = traffic.received_nbytes + traffic.sent_nbytes
        assert more.received_nbytes + more.sent_nbytes < 5 * nbytes, name


def test_the_messages_of_each_operation_are_those_of_the_protocol() -> None:
    size = 100
    free = {name: one.traffic for name, one in simulate(size, Costs()).items()}
    assert (free["join"].sessions, free["join"].received, free["join"].sent) == (100, 100, 200)
    assert free["monitored barrier"].calls == size
    assert (free["monitored barrier"].received, free["monitored barrier"].sent) == (0, 0)
    assert (free["new group"].received, free["new group"].sent) == (size, size)
    assert (free["failure of one"].received, free["failure of one"].sent) == (0, size - 1)
    assert free["rest"].received == size


def test_operations_take_the_time_of_their_cpu_the_link_and_the_machines_timers() -> None:
    found = simulate(50, Costs(sessions=0.01), Link(latency=0.001, bandwidth=1e12))
    assert found["join"].seconds == pytest.approx(50 * 0.01 + 0.002)
    assert found["failure of one"].seconds == pytest.approx(0.5 + 0.002)
    slow = simulate(50, Costs(), Link(latency=0.0, bandwidth=1000.0))["join"]
    assert slow.seconds == pytest.approx(slow.traffic.sent_nbytes / 1000.0)


def test_heartbeats_slow_down_what_happens_beside_them() -> None:
    idle = simulate(50, Costs(calls=0.001))["monitored barrier"]
    busy = simulate(50, Costs(calls=0.001, received=0.01))["monitored barrier"]
    assert busy.seconds == pytest.approx(2 * idle.seconds, rel=0.01)


def test_costs_are_found_again_from_what_operations_take() -> None:
    samples = [
        (one.traffic, price(one.traffic, COSTS))
        for size in (20, 100)
        for one in simulate(size, COSTS).values()
    ]
    found = fit_costs(samples)
    for traffic, seconds in samples:
        assert price(traffic, found) == pytest.approx(seconds, rel=0.01)


def test_no_cost_is_below_zero() -> None:
    found = fit_costs([(Traffic(calls=1, sent=1), 1.0), (Traffic(calls=1, sent=2), 0.5)])
    assert min(found.list_amounts()) >= 0


def test_the_table_holds_sizes_against_costs_that_were_fitted_to_others() -> None:
    rows = {}
    for size in (20, 40, 80):
        for name, one in simulate(size, COSTS).items():
            seconds = 1.0 if name == "rest" else one.seconds
            rows[size, name] = {"cpu": one.cpu, "seconds": seconds}
    _, stretch, table = make_table(rows, [20, 40], [160])
    cells = [[*column.cells] for column in table.columns]
    by_row = [*zip(*cells, strict=True)]
    assert stretch == pytest.approx(1.0, abs=0.02)
    assert [row[0] for row in by_row] == ["20*"] * 7 + ["40*"] * 7 + ["80"] * 7 + ["160"] * 7
    assert all(0.9 < float(str(row[6])) < 1.1 for row in by_row[14:21])
    assert [row[6] for row in by_row[21:]] == [""] * 7
