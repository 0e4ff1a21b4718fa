"""Planned faults on real processes: links and sessions through a proxy."""

import json
import textwrap
from pathlib import Path

from allhands.testing import COORDINATOR, faults
from allhands.testing.proxy import session_through
from support.ranks.processes import Cluster, Job

LED = """
import contextlib
from allhands.testing import faults
from allhands.testing.proxy import BLOCK, links_through
plan = faults(seed=7)
me = int(os.environ["RANK"])
through = contextlib.ExitStack()
proxies = through.enter_context(links_through(plan, me))
ah.init_process_group(timeout=VERIFYING, backend="socket", verify=VERIFY)
x = np.ones(400_000, np.float32)
ah.all_reduce(x)

def leave():
    ah.destroy_process_group()
    through.close()
"""


def led(script: str, *, verify: bool = False, timeout: float = 30) -> str:
    lead = LED.replace("VERIFYING", str(timeout)).replace("VERIFY", str(verify))
    return lead + textwrap.dedent(script)


def test_a_flip_on_a_real_link_names_it_on_every_rank(job: Job) -> None:
    script = """
    ah.barrier()
    if me == 1:
        plan.flip(link=(0, 1), nth=700, bit=BLOCK * 4)
    ah.barrier()
    told = ""
    try:
        for _ in range(10):
            x[:] = 1
            ah.all_reduce(x)
            assert (x == 3).all()
    except ah.DataCorrupted as error:
        told = error.link
    tell("told", link=told, flips=[event.ranks for event in plan.log])
    x[:] = 1
    ah.all_reduce(x)
    tell("sum", sum=float(x.sum()))
    leave()
    """
    ranks = job(3, led(script, verify=True))
    told = [rank.expect("told") for rank in ranks]
    assert told[1]["flips"] == [[0, 1]]
    assert [one["link"] for one in told] == [[0, 1]] * 3
    for rank in ranks:
        assert rank.expect("sum")["sum"] == 3.0 * 400_000
        assert rank.ended() == 0, "".join(rank.errors)


def test_a_link_that_nothing_passes_on_ends_calls_at_their_deadline(job: Job) -> None:
    script = """
    ah.barrier()
    plan.partition({0}, {1})
    x[:] = 1
    tell("failed", **failure(lambda: ah.all_reduce(x, timeout=2)))
    plan.is_over = True
    os._exit(0)
    """
    ranks = job(2, led(script))
    for rank in ranks:
        assert rank.expect("failed")["error"] == "CollectiveTimeout"


def test_a_link_that_breaks_as_planned_is_named_at_both_its_ends(job: Job) -> None:
    script = """
    ah.barrier()
    if me == 1:
        plan.cut(link=(0, 1))
    x[:] = 1
    errors = []
    for _ in range(2):
        errors.append(failure(lambda: ah.all_reduce(x, timeout=10)))
    tell("failed", **errors[-1])
    os._exit(0)
    """
    ranks = job(2, led(script))
    for rank in ranks:
        told = rank.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]


def test_a_slow_link_takes_its_time_and_changes_nothing(job: Job) -> None:
    script = """
    ah.barrier()
    if me == 1:
        plan.slow(2_000_000, link=(0, 1)).delay(0.001, link=(0, 1), probability=0.01)
    x[:] = me + 1
    begun = time.monotonic()
    ah.all_reduce(x)
    tell("sum", right=bool((x == 3).all()), took=time.monotonic() - begun)
    plan.is_over = True
    leave()
    """
    ranks = job(2, led(script))
    took = []
    for rank in ranks:
        told = rank.expect("sum")
        assert told["right"]
        took.append(told["took"])
    assert took[1] > 0.3  # at least half of 1.6 MB, which cannot come sooner
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def test_who_is_parted_from_the_coordinator_is_lost_for_the_others(cluster: Cluster) -> None:
    url = cluster.daemon()
    port = int(url.rpartition(":")[2])
    [notice] = Path(cluster.runtime, "allhands").glob("coordinator-*.json")
    token = json.loads(notice.read_text())["token"]
    script = """
    ah.init_process_group(timeout=20, heartbeat_window=1.0)
    tell("here")
    if ah.get_rank() == 1:
        hear()
        # Before it hears of it, it may still end what rank 0 began.
        until(lambda: failure(lambda: ah.barrier(timeout=1))["error"] == "MembershipChanged")
    tell("failed", **failure(lambda: ah.barrier(timeout=10)))
    os._exit(0)
    """
    plan = faults(seed=7)
    with session_through(plan, 1, ("127.0.0.1", port)) as proxy:
        urls = [url, f"ah://127.0.0.1:{proxy.port}"]
        ranks = [
            cluster.start(
                script,
                RANK=str(rank),
                WORLD_SIZE="2",
                ALLHANDS_URL=f"{one}/job",
                ALLHANDS_TOKEN=token,
                ALLHANDS_BACKEND="socket",
            )
            for rank, one in enumerate(urls)
        ]
        for rank in ranks:
            rank.expect("here")
        plan.partition({1}, {COORDINATOR})
        told = ranks[0].expect("failed")
        assert told["error"] == "PeerFailed"
        assert told["ranks"] == [1]
        plan.is_over = True
        ranks[1].say()
        assert ranks[1].expect("failed")["error"] == "MembershipChanged"
