"""Order of turns among clients of several jobs."""

from allhands_server.machine.fair_order import FairOrder


def take_all(order: FairOrder[str]) -> list[str]:
    return [order.take() for _ in range(len(order))]


def test_jobs_take_turns_however_many_clients_each_has() -> None:
    order: FairOrder[str] = FairOrder()
    for client in ("a1", "a2", "a3", "b1", "c1", "c2"):
        order.add(client, client[0])
    assert take_all(order) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_clients_of_one_job_take_turns() -> None:
    order: FairOrder[str] = FairOrder()
    taken = []
    for client in ("a1", "a2"):
        order.add(client, "a")
    for _ in range(4):
        taken.append(order.take())
        order.add(taken[-1], "a")
    assert taken == ["a1", "a2", "a1", "a2"]


def test_a_client_of_another_job_has_the_turn_after_next() -> None:
    order: FairOrder[str] = FairOrder()
    for number in range(100):
        order.add(f"loud {number}", "loud")
    order.add("quiet", "quiet")
    order.take()
    assert order.take() == "quiet"


def test_a_client_that_waits_keeps_its_place() -> None:
    order: FairOrder[str] = FairOrder()
    order.add("a1", "a")
    order.add("a2", "a")
    order.add("a1", "b")
    assert len(order) == 2
    assert take_all(order) == ["a1", "a2"]


def test_a_discarded_client_has_no_turn() -> None:
    order: FairOrder[str] = FairOrder()
    for client in ("a1", "b1", "b2"):
        order.add(client, client[0])
    order.discard("a1")
    order.discard("a1")
    order.discard("b2")
    assert take_all(order) == ["b1"]
    assert not order
