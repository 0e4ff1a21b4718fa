"""Groups that span hosts: two network namespaces, with ranks in each that share memory."""

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import trustme

from allhands.bench import netns
from allhands.bench.launchers import BenchHost
from support.ranks.addresses import free_port
from support.ranks.processes import Cluster, Process

Span = Callable[..., list[Process]]
Spread = Callable[..., list[Process]]


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[BenchHost, BenchHost]]:
    try:
        with netns.open_two_hosts(None) as pair:
            yield pair
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))


@pytest.fixture
def span(spread: Spread, hosts: tuple[BenchHost, BenchHost]) -> Span:
    """Give a function that runs a script in a world whose ranks are on the hosts named."""

    def start(places: str, script: str) -> list[Process]:
        shared = {
            "WORLD_SIZE": str(len(places)),
            "MASTER_ADDR": hosts["ab".index(places[0])].address,
            "MASTER_PORT": PORT,
            **CREDENTIALS,
        }
        return spread(
            places, script, *({**shared, "RANK": str(rank)} for rank in range(len(places)))
        )

    return start


@pytest.fixture
def spread(cluster: Cluster, hosts: tuple[BenchHost, BenchHost]) -> Spread:
    """Give a function that runs a script on the hosts named, with an environment for each."""

    def start(places: str, script: str, *environments: Mapping[str, str]) -> list[Process]:
        return [
            cluster.start(
                ENTER.format(pid=pid_of(hosts["ab".index(place)])) + textwrap.dedent(script),
                **environment,
            )
            for place, environment in zip(places, environments, strict=True)
        ]

    return start


def pid_of(host: BenchHost) -> str:
    """Return the process that holds the namespaces of a host."""
    return host.command_prefix[host.command_prefix.index("--target") + 1]


PORT = str(free_port())
"""Of loopback here; nobody else listens in those namespaces."""

CREDENTIALS = {"ALLHANDS_TOKEN": "sesame", "ALLHANDS_INSECURE": "1"}

ENTER = """
import ctypes
for kind in ("net", "uts"):
    with open(f"/proc/{pid}/ns/{{kind}}") as space:
        assert ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0) == 0, ctypes.get_errno()
"""

EVERY_OPERATION = """
ah.init_process_group(timeout=40)
me, size = ah.get_rank(), ah.get_world_size()
said = set()

def check(found, wanted, what):
    assert np.array_equal(found, wanted), (what, length)

def run(what, call):
    work = call()
    work.wait()
    said.add((what, work.explain()))

for length in (0, 1, 6_000, 100_001, 2_000_003):
    base = np.arange(length) % 11
    total = base * (size * (size + 1) // 2)
    for dtype in ("float32", "float16", "int64") if length < 1000_000 else ("float32",):
        for op, wanted in ((ah.ReduceOp.SUM, total), (ah.ReduceOp.MAX, base * size)):
            x = (base * (me + 1)).astype(dtype)
            run("all_reduce", lambda: ah.all_reduce(x, op, async_op=True))
            check(x, wanted, "all_reduce")
    x = (base * (me + 1)).astype(np.float64)
    ah.all_reduce(x, ah.ReduceOp.AVG)
    check(x, total / size, "average")
    for root in range(size):
        x = base + me
        run("broadcast", lambda: ah.broadcast(x, root, async_op=True))
        check(x, base + root, "broadcast")
        x = base * (me + 1)
        run("reduce", lambda: ah.reduce(x, root, async_op=True))
        check(x, total if me == root else base * (me + 1), "reduce")
    out = np.zeros(size * length, np.int16)
    mine = (base + me).astype(np.int16)
    run("all_gather", lambda: ah.all_gather_into_tensor(out, mine, async_op=True))
    check(out, np.concatenate([base + rank for rank in range(size)]), "all_gather")
    share = np.zeros(length, np.int16)
    run("reduce_scatter", lambda: ah.reduce_scatter_tensor(share, out, async_op=True))
    check(share, (base + me) * size, "reduce_scatter")
    run("barrier", lambda: ah.barrier(async_op=True))
tell("said", all=sorted(said))
ah.destroy_process_group()
"""


def explained(ranks: list[Process]) -> dict[str, set[str]]:
    """Return how each operation was carried out in phases; short ones go over links as a whole."""
    said: dict[str, set[str]] = {}
    for rank in ranks:
        for what, text in rank.expect("said")["all"]:
            if "hosts of" in text:
                said.setdefault(what, set()).add(text)
    for rank in ranks:
        assert rank.ended() == 0, rank.errors
    return said


@pytest.mark.parametrize("places", ["aabb", "abab"])
def test_even_hosts_share_memory_inside_and_rings_between(span: Span, places: str) -> None:
    said = explained(span(places, EVERY_OPERATION))
    assert said["all_reduce"] == {
        "2 hosts of 2 ranks: all_reduce in shared memory, all_reduce across hosts",
        "2 hosts of 2 ranks: all_reduce in shared memory, all_reduce across hosts, "
        "reduce_scatter in shared memory, all_gather in shared memory",
    }
    for what in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
        assert all(
            text.startswith("2 hosts of 2 ranks: ") and "in shared memory" in text
            for text in said[what]
        ), said[what]


def test_uneven_hosts_let_one_rank_each_speak(span: Span) -> None:
    said = explained(span("aab", EVERY_OPERATION))
    assert said["all_reduce"] == {
        "2 hosts of 2/1 ranks: reduce in shared memory, all_reduce across hosts, "
        "broadcast in shared memory",
        "2 hosts of 2/1 ranks: reduce in shared memory, broadcast in shared memory",
        "2 hosts of 2/1 ranks: all_reduce across hosts",
    }
    assert "all_gather" not in said
    assert "barrier" not in said


FOREVER = """
ah.init_process_group(timeout=40)
x = np.ones({length}, np.float32)
ah.all_reduce(x)
tell("running", pid=os.getpid())
def forever():
    while True:
        ah.all_reduce(x)
tell("failed", **failure(forever))
hear()
os._exit(0)
"""


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("length", [2, 4 << 20])
def test_a_killed_rank_is_named_on_both_hosts(span: Span, length: int, victim: int) -> None:
    ranks = span("aabb", FOREVER.format(length=length))
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[victim], signal.SIGKILL)
    for survivor in (rank for at, rank in enumerate(ranks) if at != victim):
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [victim]
        assert f"pid {pids[victim]}" in told["text"]
        assert told["op"] is None or told["op"] == "all_reduce"


@pytest.mark.parametrize("length", [8_000, 1 << 20])
def test_a_rank_that_does_not_come_is_named_on_both_hosts(span: Span, length: int) -> None:
    ranks = span(
        "aabb",
        f"""
        ah.init_process_group(timeout=20)
        x = np.ones({length}, np.float32)
        if ah.get_rank() == 1:
            hear()
            tell("late", **failure(lambda: ah.all_reduce(x, timeout=0.5, label="step 7")))
        else:
            tell("late", **failure(lambda: ah.all_reduce(x, timeout=1.5, label="step 7")))
            hear()
        y = np.full({length}, ah.get_rank() + 1.0)
        ah.all_reduce(y)
        tell("sum", right=bool((y == 10).all()))
        ah.destroy_process_group()
        """,
    )
    for rank in (0, 2, 3):
        told = ranks[rank].expect("late")
        assert told["error"] == "CollectiveTimeout", told
        assert (told["op"], told["seq"], told["ranks"]) == ("all_reduce", 1, [1]), told
        assert "(step 7)" in told["text"]
    ranks[1].say()
    assert ranks[1].expect("late")["error"] == "CollectiveTimeout"
    for rank in (0, 2, 3):
        ranks[rank].say()
    for rank in ranks:
        assert rank.expect("sum")["right"]
        assert rank.ended() == 0


def test_who_comes_when_its_neighbour_has_given_the_call_up_is_told(span: Span) -> None:
    ranks = span(
        "aabb",
        """
        ah.init_process_group(timeout=40)
        x = np.ones(1 << 20, np.float32)
        if ah.get_rank() == 1:
            hear()
            tell("late", **failure(lambda: ah.all_reduce(x)))
        else:
            tell("late", **failure(lambda: ah.all_reduce(x, timeout=0.5)))
            hear()
        y = np.full(1 << 20, ah.get_rank() + 1.0)
        ah.all_reduce(y)
        tell("sum", right=bool((y == 10).all()))
        ah.destroy_process_group()
        """,
    )
    for rank in (0, 2, 3):
        assert ranks[rank].expect("late")["error"] == "CollectiveTimeout"
    ranks[1].say()
    told = ranks[1].expect("late")
    assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [0]), told
    assert "rank 0 (host allhands-a" in told["text"]
    assert "gave it up" in told["text"]
    for rank in (0, 2, 3):
        ranks[rank].say()
    for rank in ranks:
        assert rank.expect("sum")["right"]
        assert rank.ended() == 0


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize(
    ("usual", "unusual"),
    [
        ("ah.all_reduce(np.ones(5))", "ah.all_reduce(np.ones(4))"),
        ("ah.all_reduce(np.ones(1 << 20))", "ah.all_reduce(np.ones(1 << 20), ah.ReduceOp.MAX)"),
        ("ah.barrier()", "ah.broadcast(np.ones(5), 1)"),
        ("ah.all_reduce(np.ones(1 << 20))", "ah.all_to_all_single(np.ones(4), np.ones(4))"),
    ],
)
def test_different_calls_are_told_apart_on_both_hosts(
    span: Span, usual: str, unusual: str, odd: int
) -> None:
    ranks = span(
        "aabb",
        f"""
        ah.init_process_group(timeout=20)
        call = (lambda: {unusual}) if ah.get_rank() == {odd} else (lambda: {usual})
        tell("different", **failure(call))
        for length in (1, 100_000):
            y = np.full(length, ah.get_rank() + 1.0)
            ah.all_reduce(y)
            assert (y == 10).all()
        tell("sum")
        ah.destroy_process_group()
        """,
    )
    texts = []
    for rank in ranks:
        told = rank.expect("different")
        assert told["error"] == "CollectiveMismatch", told
        texts.append(told["text"].replace(" (this one)", "").split(": ", 1)[1])
        assert "#1 of group 'world'" in told["text"]
    assert len(set(texts)) == 1, texts
    for rank in ranks:
        rank.expect("sum")
        assert rank.ended() == 0


def test_ranks_on_different_hosts_measure_their_links_and_agree(span: Span) -> None:
    ranks = span(
        "aab",
        """
        ah.init_process_group(timeout=20)
        groups = [None, ah.new_group([0, 2])]
        works = [
            ah.all_reduce(np.ones(9), group=group, async_op=True)
            for group in groups
            if group is None or ah.get_rank() != 1
        ]
        for work in works:
            work.wait()
        tell("said", texts=[work.explain() for work in works])
        ah.destroy_process_group()
        """,
    )
    texts = {text for rank in ranks for text in rank.expect("said")["texts"]}
    assert len(texts) == 1, texts
    assert re.fullmatch(
        r"doubling over links, where a message takes \d+ us and streams run at \d+ MB/s",
        texts.pop(),
    )
    for rank in ranks:
        assert rank.ended() == 0


# ---------------------------------------------------------------- how a world over hosts begins

MASTER = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": PORT}
BY_TORCH = [{**MASTER, "RANK": str(rank)} for rank in range(2)]
BY_SLURM = [
    {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "10.77.0.[1-2]",
        "SLURM_JOB_ID": PORT,
        "SLURM_STEP_ID": "0",
    }
    for rank in range(2)
]
BEGIN = """
told = failure(lambda: ah.init_process_group(timeout=20))
if told["error"] is None:
    x = np.ones(3)
    ah.all_reduce(x)
    told["sum"] = x.tolist()
    ah.destroy_process_group()
tell("begun", **told)
"""


@pytest.mark.parametrize("launched", [BY_TORCH, BY_SLURM])
@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({}, "no token (ALLHANDS_TOKEN) and no TLS (ALLHANDS_TLS_CA)"),
        ({"ALLHANDS_INSECURE": "1"}, "there is no token (ALLHANDS_TOKEN)"),
        ({"ALLHANDS_TOKEN": "sesame"}, "there is no TLS (ALLHANDS_TLS_CA)"),
    ],
)
def test_every_rank_is_told_at_once_what_a_world_over_hosts_needs(
    spread: Spread, launched: list[dict[str, str]], given: dict[str, str], absent: str
) -> None:
    ranks = spread("ab", BEGIN, *({**one, **given} for one in launched))
    told = [rank.expect("begun") for rank in ranks]
    assert [one["error"] for one in told] == ["ValueError", "ValueError"], told
    texts = {one["text"] for one in told}
    assert len(texts) == 1, texts
    [text] = texts
    assert absent in text
    for name in ("TOKEN", "INSECURE=1", "TLS_CA", "TLS_CERT", "TLS_KEY", "URL"):
        assert f"ALLHANDS_{name}" in text, text


@pytest.mark.parametrize("launched", [BY_TORCH, BY_SLURM])
def test_a_world_over_hosts_begins_where_every_rank_has_the_token(
    spread: Spread, launched: list[dict[str, str]]
) -> None:
    ranks = spread("ab", BEGIN, *({**one, **CREDENTIALS} for one in launched))
    assert [rank.expect("begun").get("sum") for rank in ranks] == [[2.0] * 3] * 2


@pytest.mark.parametrize("token", ["other", ""])
def test_who_waits_is_told_where_a_token_was_refused(spread: Spread, token: str) -> None:
    spread(
        "a",
        f"""
        from allhands.cli.main import main
        sys.argv = ["allhands", "serve", "--listen", "10.77.0.1:{PORT}", "--insecure"]
        main()
        """,
        {"ALLHANDS_TOKEN": "sesame"},
    )
    url = {**CREDENTIALS, "ALLHANDS_URL": f"ah://10.77.0.1:{PORT}/j"}
    begin = BEGIN.replace("timeout=20", "timeout=5")
    waiting, wrong = spread(
        "ab",
        begin,
        {**url, "RANK": "0", "WORLD_SIZE": "2"},
        {**url, "RANK": "1", "WORLD_SIZE": "2", "ALLHANDS_TOKEN": token},
    )
    assert wrong.expect("begun")["error"] == "Unauthenticated"
    told = waiting.expect("begun")
    assert told["error"] == "CollectiveTimeout", told
    why = "wrong token" if token else "no token"
    assert "never joined: 1 of 2" in told["text"]
    assert f"refused by the coordinator: a process at 10.77.0.2 ({why})" in told["text"], told
    assert waiting.ended() == 0
    assert any(f"refused a process at 10.77.0.2: {why}" in line for line in waiting.errors)


def test_rank_zero_hosts_a_coordinator_with_a_certificate(spread: Spread, tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("10.77.0.1")
    bundle, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(bundle))
    made.cert_chain_pems[0].write_to_path(str(cert))
    made.private_key_pem.write_to_path(str(key))
    every = {"ALLHANDS_TOKEN": "sesame", "ALLHANDS_TLS_CA": str(bundle)}
    hosting = {"ALLHANDS_TLS_CERT": str(cert), "ALLHANDS_TLS_KEY": str(key)}
    ranks = spread("ab", BEGIN, {**BY_TORCH[0], **every, **hosting}, {**BY_TORCH[1], **every})
    told = [rank.expect("begun") for rank in ranks]
    assert [one.get("sum") for one in told] == [[2.0] * 3] * 2, told


def test_a_world_of_one_needs_no_credentials_at_its_masters_address(spread: Spread) -> None:
    [alone] = spread("a", BEGIN, {**BY_TORCH[0], "WORLD_SIZE": "1"})
    assert alone.expect("begun").get("sum") == [1.0] * 3


# ---------------------------------------------------------------- which addresses ranks are told

DAEMON = f"""
from allhands.cli.main import main
sys.argv = ["allhands", "serve", "--listen", "0.0.0.0:{PORT}", "--insecure"]
main()
"""
MEET = """
ah.init_process_group(timeout=20)
x = np.ones(3)
ah.all_reduce(x)
with ah.connect() as control:
    told = [one.address for one in control.job().members]
tell("met", sum=x.tolist(), addresses=told)
ah.destroy_process_group()
"""


def _at(coordinator: str, rank: int, size: int = 2, **more: str) -> dict[str, str]:
    url = f"ah://{coordinator}:{PORT}/j"
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "ALLHANDS_URL": url}
    return {**CREDENTIALS, **place, **more}


def _met(ranks: list[Process]) -> list[str]:
    """Return the addresses of a world whose ranks have met, without ports."""
    told = [rank.expect("met") for rank in ranks]
    size = len(ranks)
    assert [one["sum"] for one in told] == [[float(size)] * 3] * size, told
    assert len({tuple(one["addresses"]) for one in told}) == 1
    return list(told[0]["addresses"])


def test_a_rank_beside_the_daemon_is_reached_from_other_hosts(spread: Spread) -> None:
    spread("a", DAEMON, {"ALLHANDS_TOKEN": "sesame"})
    addresses = _met(spread("ab", MEET, _at("127.0.0.1", 0), _at("10.77.0.1", 1)))
    assert [one.rpartition(":")[0] for one in addresses] == ["10.77.0.1", "10.77.0.2"]


def test_the_address_is_that_of_the_interface_or_as_it_is_given(spread: Spread) -> None:
    spread("a", DAEMON, {"ALLHANDS_TOKEN": "sesame"})
    ranks = spread(
        "ab",
        MEET,
        _at("127.0.0.1", 0, ALLHANDS_INTERFACE="veth0", ALLHANDS_PORT_RANGE="31000-31001"),
        _at("10.77.0.1", 1, ALLHANDS_ADVERTISE="10.77.0.2", ALLHANDS_PORT_RANGE="31000-31009"),
    )
    assert _met(ranks) == ["10.77.0.1:31000", "10.77.0.2:31000"]


def test_an_address_that_is_translated_on_the_way_is_advertised_all_the_same(
    spread: Spread, hosts: tuple[BenchHost, BenchHost]
) -> None:
    """Behind 192.0.2.7 host b is reached, which does not know of it."""
    enter_a = hosts[0].command_prefix
    subprocess.run([*enter_a, "ip", "route", "add", "192.0.2.7", "via", "10.77.0.2"], check=True)
    nat = ["iptables", "-t", "nat", "-A", "PREROUTING", "-d", "192.0.2.7", "-j", "DNAT"]
    done = subprocess.run(
        [*hosts[1].command_prefix, *nat, "--to-destination", "10.77.0.2"],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("this kernel translates no addresses")
    spread("a", DAEMON, {"ALLHANDS_TOKEN": "sesame"})
    ranks = spread(
        "ab", MEET, _at("127.0.0.1", 0), _at("10.77.0.1", 1, ALLHANDS_ADVERTISE="192.0.2.7")
    )
    assert [one.rpartition(":")[0] for one in _met(ranks)] == ["10.77.0.1", "192.0.2.7"]


def test_an_address_that_nobody_reaches_is_named_with_what_was_tried(spread: Spread) -> None:
    spread("a", DAEMON, {"ALLHANDS_TOKEN": "sesame"})
    begin = """
    told = failure(lambda: (ah.init_process_group(timeout=10), ah.all_reduce(np.ones(3))))
    tell("begun", **told)
    """
    ranks = spread(
        "ab",
        begin,
        _at("127.0.0.1", 0),
        _at("10.77.0.1", 1, ALLHANDS_ADVERTISE="10.77.0.1", ALLHANDS_PORT_RANGE="31100-31101"),
    )
    told = [rank.expect("begun") for rank in ranks]
    assert any("cannot connect to 10.77.0.1:3110" in one["text"] for one in told), told
    assert any("over gRPC" in one["text"] for one in told), told
