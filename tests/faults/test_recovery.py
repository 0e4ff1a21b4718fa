"""How a world goes on in process when ranks are killed, stopped, replaced and added."""

import os
import signal
from textwrap import dedent
from typing import Any

import pytest

from support.ranks.processes import BACKENDS, Cluster, Job, Process

LINKED = [one for one in BACKENDS if one != "grpc"]


def kill(rank: Process) -> None:
    os.kill(rank.child.pid, signal.SIGKILL)


def each(ranks: list[Process], *what: str) -> list[dict[str, Any]]:
    return [rank.expect(*what) for rank in ranks]


SUMS = """
def sum_of(value, length=5, **more):
    x = np.full(length, float(value))
    ah.all_reduce(x, **more)
    assert (x == x[0]).all()
    return x[0]

def whereabouts():
    return {"rank": ah.get_rank(), "size": ah.get_world_size()}
"""


def program(script: str) -> str:
    return SUMS + dedent(script)


@pytest.mark.parametrize("backend", LINKED)
def test_the_survivors_of_a_kill_in_the_middle_of_a_call_have_its_exact_result(job: Job) -> None:
    ranks = job(
        6,
        program("""
        ah.init_process_group(timeout=30, on_failure="shrink")
        mine = 10.0 ** ah.get_rank()
        sum_of(mine, 1 << 20)
        tell("running")
        while ah.get_world_size() == 6:
            before = sum_of(mine, 1 << 20)
        # Made in the middle of it, or before and given up: either way by four.
        tell("shrunk", sum=sum_of(mine, 1 << 20), last=before, **whereabouts())
        hear()
        """),
    )
    each(ranks, "running")
    for doomed in (1, 4):
        kill(ranks[doomed])
    told = each([ranks[0], ranks[2], ranks[3], ranks[5]], "shrunk")
    assert [(one["rank"], one["size"]) for one in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert {one["sum"] for one in told} == {101101.0}
    # Whatever the last call on the way was made by, it was the same for all.
    assert len({one["last"] for one in told}) == 1
    assert told[0]["last"] in (111111.0, 101111.0, 111101.0, 101101.0)


@pytest.mark.parametrize("backend", LINKED)
def test_a_retryable_call_that_lost_a_rank_has_touched_nothing_and_can_be_retried(
    job: Job,
) -> None:
    ranks = job(
        3,
        program("""
        ah.init_process_group(timeout=30, retryable=True)
        x = np.arange(100_000.0) + ah.get_rank()
        kept = x.copy()
        sum_of(1)
        tell("running")
        if ah.get_rank() == 1:
            hear()
        try:
            ah.all_reduce(x)
        except ah.PeerFailed as error:
            intact = bool((x == kept).all()) and error.outputs_intact
            tell("failed", intact=intact, ranks=error.failed_ranks)
            ah.retry(error)
            tell("retried", right=bool((x == 2 * np.arange(100_000.0) + 2).all()), **whereabouts())
        hear()
        """),
    )
    each(ranks, "running")
    kill(ranks[1])
    survivors = [ranks[0], ranks[2]]
    for told in each(survivors, "failed"):
        assert told == {"what": "failed", "intact": True, "ranks": [1]}
    told = each(survivors, "retried")
    assert [(one["right"], one["rank"], one["size"]) for one in told] == [
        (True, 0, 2),
        (True, 1, 2),
    ]


@pytest.mark.parametrize("backend", LINKED)
def test_a_rooted_call_is_retried_with_the_root_that_it_had(job: Job) -> None:
    ranks = job(
        4,
        program("""
        ah.init_process_group(timeout=30, retryable=True)
        sum_of(1)
        tell("running")
        if ah.get_rank() == 1:
            hear()
        x = np.full(3, 10.0 * ah.get_rank())
        try:
            ah.broadcast(x, src=2)
        except ah.PeerFailed as error:
            ah.retry(error)
        tell("retried", root=x[0], size=ah.get_world_size())
        hear()
        """),
    )
    each(ranks, "running")
    kill(ranks[1])
    for told in each([ranks[0], ranks[2], ranks[3]], "retried"):
        assert told == {"what": "retried", "root": 20.0, "size": 3}


@pytest.mark.parametrize("backend", LINKED)
def test_a_plain_group_is_shrunk_by_hand_and_agreed_upon(job: Job) -> None:
    ranks = job(
        4,
        """
        ah.init_process_group(timeout=30)
        group = ah.default_group()
        tell("agreed", all=group.agree(True), one_not=group.agree(ah.get_rank() != 2))
        told = failure(lambda: ah.barrier() if ah.get_rank() != 2 else hear())
        flag = group.agree(True)
        rest = group.shrink()
        x = np.full(3, float(ah.get_rank()))
        ah.all_reduce(x, group=rest)
        y = np.full(3, float(rest.rank))
        ah.broadcast(y, src=2, group=rest)
        if rest.rank == 0:
            ah.send(np.full(2, 7.0), dst=2, group=rest)
        if rest.rank == 2:
            z = np.zeros(2)
            sender = ah.recv(z, src=None, group=rest)
            assert (sender, z[0]) == (0, 7.0)
        tell("shrunk", error=told["error"], flag=flag, sum=x[0], root=y[0], rank=rest.rank)
        hear()
        """,
    )
    for told in each(ranks, "agreed"):
        assert (told["all"], told["one_not"]) == (True, False)
    kill(ranks[2])
    told = each([ranks[0], ranks[1], ranks[3]], "shrunk")
    for rank, one in enumerate(told):
        assert one == {
            "what": "shrunk",
            "error": "PeerFailed",
            "flag": True,
            "sum": 4.0,
            "root": 2.0,
            "rank": rank,
        }


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize("retryable", [False, True])
def test_who_revokes_a_group_frees_the_others_to_shrink_it(job: Job, retryable: bool) -> None:
    ranks = job(
        3,
        f"""
        ah.init_process_group(timeout=30, retryable={retryable})
        group = ah.default_group()
        if ah.get_rank() == 1:
            group.revoke("the loss is no number")
        x = np.ones(2)
        try:
            ah.all_reduce(x)
        except ah.GroupAborted as error:
            told = [error.by.split(" (")[0], error.reason, float(x.sum())]
        group = group.shrink()
        ah.all_reduce(x, group=group)
        tell("shrunk", told=told, size=group.size, sum=x[0])
        hear()
        """,
    )
    for told in each(ranks, "shrunk"):
        assert told["told"] == ["rank 1", "the loss is no number", 2.0]
        assert (told["size"], told["sum"]) == (3, 3.0)


NEWCOMER = program("""
ah.init_process_group(timeout=30, on_failure="MODE", max_size=8)
tell("joined", sum=sum_of(100), **whereabouts())
hear()
""")


def newcomer(cluster: Cluster, url: str, backend: str, mode: str = "shrink") -> Process:
    return cluster.start(
        NEWCOMER.replace("MODE", mode), ALLHANDS_URL=url + "/job", ALLHANDS_BACKEND=backend
    )


@pytest.mark.parametrize("backend", LINKED)
def test_a_world_takes_in_new_processes(cluster: Cluster, backend: str) -> None:
    url = cluster.daemon()
    script = program("""
    ah.init_process_group(timeout=30, on_failure="shrink", max_size=8)
    sum_of(1)
    tell("running")
    ah.default_group().grow(2)
    tell("grown", sum=sum_of(1), **whereabouts())
    part = ah.new_group([3, 0])
    x = np.ones(3)
    if ah.get_rank() in (0, 3):
        ah.all_reduce(x, group=part)
    hear()
    """)
    ranks = cluster.world(2, script, ALLHANDS_URL=url + "/job", ALLHANDS_BACKEND=backend)
    each(ranks, "running")
    newcomers = [newcomer(cluster, url, backend) for _ in range(2)]
    told = each(ranks, "grown")
    assert [(one["rank"], one["size"], one["sum"]) for one in told] == [
        (0, 4, 202.0),
        (1, 4, 202.0),
    ]
    told = each(newcomers, "joined")
    assert sorted(one["rank"] for one in told) == [2, 3]
    assert {(one["size"], one["sum"]) for one in told} == {(4, 202.0)}


def test_a_world_that_waits_goes_on_with_a_replacement_and_says_so_once(cluster: Cluster) -> None:
    url = cluster.daemon()
    script = program("""
    ah.init_process_group(timeout=30, on_failure="wait")
    x = np.full(5, 1.0)
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    told = failure(lambda: ah.all_reduce(x))
    assert (x == 1).all()
    tell("replaced", error=told["error"], sum=sum_of(1), **whereabouts())
    hear()
    """)
    ranks = cluster.world(3, script, ALLHANDS_URL=url + "/job")
    each(ranks, "running")
    kill(ranks[1])
    new = newcomer(cluster, url, "auto", "wait")
    for place, told in zip((0, 2), each([ranks[0], ranks[2]], "replaced"), strict=True):
        assert told == {
            "what": "replaced",
            "error": "MembershipChanged",
            "sum": 102.0,
            "rank": place,
            "size": 3,
        }
    assert new.expect("joined")["rank"] == 1


@pytest.mark.parametrize("backend", LINKED)
def test_a_retryable_group_names_lines_and_tells_mismatches_and_late_ranks(job: Job) -> None:
    ranks = job(
        2,
        program("""
        ah.init_process_group(timeout=30, retryable=True)
        x = np.full(4 + ah.get_rank(), 1.0)
        try:
            ah.all_reduce(x)
        except ah.CollectiveMismatch as error:
            table = [error.table[rank] for rank in range(2)]
        ah.monitored_barrier(timeout=20)
        if ah.get_rank() == 1:
            tell("late", error=failure(lambda: ah.monitored_barrier(timeout=1))["error"])
        else:
            told = failure(lambda: ah.monitored_barrier(timeout=0.5))
            tell("late", error=told["error"])
        tell("told", table=table, sum=sum_of(2), kept=bool((x == 1).all()))
        hear()
        """),
    )
    for told in each(ranks, "late"):
        assert told["error"] is None
    for told in each(ranks, "told"):
        assert [row.split(" at ")[0] for row in told["table"]] == [
            f"all_reduce(float64[{length}], SUM)" for length in (4, 5)
        ]
        assert all("<script>:" in row for row in told["table"])
        assert (told["sum"], told["kept"]) == (4.0, True)


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize("which", [0, 1])
def test_a_call_of_a_retryable_group_that_is_cancelled_leaves_the_next_one_right(
    job: Job, which: int
) -> None:
    ranks = job(
        2,
        program(f"""
        ah.init_process_group(timeout=30, retryable=True)
        ah.barrier()
        if ah.get_rank() == 1:
            hear()
        arrays = [np.full(3, number + 1.0) for number in range(3)]
        works = [ah.all_reduce(x, async_op=True) for x in arrays]
        if ah.get_rank() == 0:
            works[{which}].cancel()
            tell("cancelled")
        ended = []
        for work in works:
            try:
                work.wait()
                ended.append(None)
            except ah.AllhandsError as error:
                ended.append(type(error).__name__)
        tell("ended", errors=ended, sums=[float(x[0]) for x in arrays], next=sum_of(5))
        hear()
        """),
    )
    ranks[0].expect("cancelled")
    ranks[1].say("go on")
    for told in each(ranks, "ended"):
        assert [error is None for error in told["errors"]] == [at != which for at in range(3)]
        assert told["sums"] == [at + 1.0 if at == which else 2.0 * (at + 1) for at in range(3)]
        assert told["next"] == 10.0


def test_with_fewer_ranks_than_the_least_size_calls_fail_for_good(job: Job) -> None:
    ranks = job(
        3,
        program("""
        ah.init_process_group(timeout=30, on_failure="shrink", min_size=3)
        sum_of(1)
        tell("running")
        if ah.get_rank() == 1:
            hear()
        for _ in range(2):
            tell("failed", **failure(lambda: sum_of(1)))
        hear()
        """),
    )
    each(ranks, "running")
    kill(ranks[1])
    for _ in range(2):
        for told in each([ranks[0], ranks[2]], "failed"):
            assert told["error"] == "PeerFailed"
            assert "min_size is 3" in told["text"]


def test_calls_that_depend_on_the_number_of_ranks_say_that_it_has_changed(job: Job) -> None:
    ranks = job(
        3,
        program("""
        ah.init_process_group(timeout=30, on_failure="shrink")
        sum_of(1)
        tell("running")
        if ah.get_rank() == 0:
            hear()
        outputs = [np.full(2, -1.0) for _ in range(3)]
        told = failure(lambda: ah.all_gather(outputs, np.ones(2)))
        intact = all((one == -1).all() for one in outputs)
        gone = failure(lambda: ah.broadcast(np.ones(2), src=0))["error"]
        tell("changed", error=told["error"], intact=intact, gone=gone, sum=sum_of(1))
        hear()
        """),
    )
    each(ranks, "running")
    kill(ranks[0])
    for told in each(ranks[1:], "changed"):
        assert told == {
            "what": "changed",
            "error": "MembershipChanged",
            "intact": True,
            "gone": None,
            "sum": 2.0,
        }


@pytest.mark.parametrize("backend", LINKED)
def test_a_rank_that_was_expelled_while_it_was_stopped_harms_nothing(job: Job) -> None:
    ranks = job(
        3,
        program("""
        ah.init_process_group(timeout=30, on_failure="shrink", heartbeat_window=1)
        sum_of(1)
        tell("running")
        if ah.get_rank() == 2:
            tell("awake", **failure(lambda: [sum_of(9, 1 << 18) for _ in range(10 ** 6)]))
            hear()
        while ah.get_world_size() == 3:
            sum_of(1, 1 << 18)
        tell("shrunk")
        wrong = 0
        for number in range(300):
            wrong += int(sum_of(number, 1 << 14) != 2 * number)
        tell("right", wrong=wrong)
        hear()
        """),
    )
    each(ranks, "running")
    os.kill(ranks[2].child.pid, signal.SIGSTOP)
    each(ranks[:2], "shrunk")
    os.kill(ranks[2].child.pid, signal.SIGCONT)
    told = ranks[2].expect("awake")
    assert told["error"] == "MembershipChanged", told
    for told in each(ranks[:2], "right"):
        assert told["wrong"] == 0


def test_a_state_is_carried_through_a_kill_and_given_to_a_newcomer(cluster: Cluster) -> None:
    url = cluster.daemon()
    script = """
    ah.init_process_group(timeout=30, on_failure="shrink", max_size=8)
    state = ah.State(total=np.zeros(1000), step=0, note="")
    def train(state):
        while state.step < 60 or ah.get_world_size() != 3:
            x = np.full(1000, 1.0)
            ah.all_reduce(x)
            state.total += x / ah.get_world_size()
            state.step += 1
            state.note = f"step {state.step}"
            if state.step == 20:
                tell("there", rank=ah.get_rank())
                hear()
            state.commit()
        return state
    state.run(train)
    exact = bool((state.total == state.step).all())
    tell("done", step=state.step, exact=exact, note=state.note, size=ah.get_world_size())
    hear()
    """
    ranks = cluster.world(3, script, ALLHANDS_URL=url + "/job")
    each(ranks, "there")
    kill(ranks[1])
    for rank in (ranks[0], ranks[2]):
        rank.say("go on")
    new = cluster.start(script, ALLHANDS_URL=url + "/job")
    told = each([ranks[0], ranks[2], new], "done")
    assert {(one["exact"], one["note"], one["size"]) for one in told} == {
        (True, f"step {told[0]['step']}", 3)
    }
