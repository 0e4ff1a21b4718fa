"""The page in a real browser: what it draws of a running, a stalled and a failed job."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire
from support.browser import explain_missing, open_browser
from support.http_pages import find_url
from support.tls_contexts import make_credentials

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(bool(explain_missing()), reason=explain_missing())

PATIENCE = 30_000  # milliseconds
SIZE = 8
ALL = range(SIZE)
EVIL = "<img src=x onerror=document.title='stolen'>"


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with run_daemon(tmp_path_factory.mktemp("runtime"), "--http", "127.0.0.1:0") as daemon:
        yield daemon


@dataclass
class Visit:
    """A page in a window of its own, with what went wrong in it."""

    page: "Page"
    problems: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def wait_for(self, selector: str, text: str = "") -> None:
        found = self.page.locator(selector)
        (found.filter(has_text=text) if text else found).first.wait_for(timeout=PATIENCE)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@pytest.fixture
def visit(browser: "Browser", served: DaemonProcess) -> Iterator[Callable[..., Visit]]:
    """Return a function that opens a link in a new window."""
    windows = []

    def open_link(link: str = "", scheme: Any = "light") -> Visit:
        window = browser.new_context(
            color_scheme=scheme,
            viewport={"width": 1280, "height": 900},
            reduced_motion="reduce",
            ignore_https_errors=True,  # which knows no authority of a test
        )
        windows.append(window)
        made = Visit(window.new_page())
        made.page.set_default_timeout(PATIENCE)
        made.page.on("pageerror", lambda error: made.problems.append(str(error)))
        made.page.on(
            "console",
            lambda told: made.problems.append(told.text) if "Security" in told.text else None,
        )
        made.page.on("request", lambda request: made.requested.append(request.url))
        made.page.goto(link or served.run_command("page").stdout.strip())
        return made

    yield open_link
    for window in windows:
        window.close()


class World:
    """Eight ranks in one group, that beat, and say what the test has them say."""

    def __init__(self, daemon: DaemonProcess, job: str) -> None:
        self.members: list[RawMember] = []
        self._said = [wire.Heartbeat() for _ in range(SIZE)]
        self._is_over = threading.Event()
        self._beating = threading.Thread(target=self._beat)
        for rank in range(SIZE):
            join = wire.Join(job=job, rank=rank, world_size=SIZE, host="node-a")
            join.pid, join.port, join.heartbeat_window = 4000 + rank, 5000 + rank, 60.0
            join.label = EVIL if rank == 5 else ""
            self.members.append(RawMember(daemon.endpoint, join))
            self.members[-1].receive("joined")
            self.members[-1].send(open_group=wire.OpenGroup(group="world", ranks=range(SIZE)))
        self._beating.start()

    def say(self, ranks: Iterable[int], sequence: int, operation: str, elapsed: float) -> None:
        """Have ranks be in a call, or in none since it has ended."""
        progress = wire.Progress(group="world", sequence=sequence, operation=operation)
        progress.completed = sequence - 1 if operation else sequence
        progress.elapsed = elapsed
        for rank in ranks:
            self._said[rank] = wire.Heartbeat(progress=[progress])
            self.members[rank].send(heartbeat=self._said[rank])

    def stall(self, missing: int) -> None:
        """Have all but one rank be in a call."""
        self.say((rank for rank in ALL if rank != missing), 7, "all_reduce", 9.0)
        self.say([missing], 6, "", 9.0)

    def leave(self, rank: int, **why: str) -> None:
        """Have a rank leave because of an error."""
        self.stop()
        self.members[rank].send(leave=wire.Leave(**why))
        self.members[rank].receive("leave_accepted")

    def stop(self) -> None:
        """Stop beating. Idempotent."""
        self._is_over.set()
        self._beating.join()

    def _beat(self) -> None:
        """Beat as ranks do: who is silent counts as stalled."""
        while not self._is_over.wait(0.5):
            for member, said in zip(self.members, self._said, strict=True):
                member.send(heartbeat=said)


@pytest.fixture
def world(served: DaemonProcess, job_name: str) -> Iterator[World]:
    made = World(served, job_name)
    yield made
    made.stop()
    for member in made.members:
        member.close()


def test_a_link_opens_the_page_once_and_leaves_no_secret_behind(
    served: DaemonProcess, visit: Callable[..., Visit]
) -> None:
    link = served.run_command("page").stdout.strip()
    first = visit(link)
    first.wait_for("#app")
    url = find_url(served)
    assert first.page.url == f"{url}/"
    assert first.page.evaluate("history.length") <= 2
    assert first.page.evaluate("document.cookie") == ""  # no script can read it
    assert not first.page.locator("#door").is_visible()
    second = visit(link)
    second.wait_for("#reason", "has been used")
    assert not second.page.locator("#app").is_visible()
    first.page.reload()
    first.wait_for("#app")
    first.page.click("#sign-out")
    first.wait_for("#reason", "session is closed")
    first.page.reload()
    first.wait_for("#door", "allhands page")
    assert first.problems == second.problems == []
    assert all(one.startswith(url) for one in first.requested)


def test_with_certificates_the_page_and_its_stream_are_encrypted(
    visit: Callable[..., Visit], tmp_path: Path
) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    folder = make_credentials(tmp_path / "tls", "127.0.0.1") / "daemon"
    options = ("--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key"))
    with run_daemon(tmp_path / "runtime", *options, "--http", "127.0.0.1:0") as daemon:
        shown = visit(daemon.run_command("page").stdout.strip())
        shown.wait_for("#app")
        assert shown.page.url.startswith("https://127.0.0.1:")
        [cookie] = shown.page.context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        assert daemon.run_command("kv", "put", "secret-job", "k", "v").returncode == 0
        shown.wait_for("#jobs", "secret-job")  # which comes by the stream
        assert {urlsplit(one).scheme for one in shown.requested} == {"https"}
        assert shown.problems == []


def test_a_running_job_is_a_ring_of_ranks_without_waits(
    world: World, job_name: str, visit: Callable[..., Visit]
) -> None:
    world.say(ALL, 3, "all_reduce", 0.1)
    shown = visit()
    shown.page.click(f"#jobs a:has-text('{job_name}')")
    shown.wait_for("svg .node.is-inside")
    shown.wait_for("#trouble", "No rank is waited for")
    assert shown.count(".groups .node") == SIZE
    assert shown.count(".arrows path") == 0
    shown.wait_for(".where", "all_reduce #3")
    shown.wait_for("#events", "epoch 1 opened, 8 members")
    world.say(ALL, 3, "", 0.0)
    shown.page.locator(".node.is-inside").first.wait_for(state="detached")
    assert shown.problems == []


def test_a_stalled_job_names_the_missing_rank_and_where_it_is(
    world: World, job_name: str, visit: Callable[..., Visit]
) -> None:
    world.say(ALL, 6, "", 0.0)
    shown = visit()
    shown.page.click(f"#jobs a:has-text('{job_name}')")
    shown.wait_for(".node.is-outside")
    top = shown.page.locator("#groups").bounding_box()
    world.stall(missing=5)
    shown.wait_for("#trouble", "Ranks 0-4, 6-7 wait for rank 5 in all_reduce #7 of group world")
    assert shown.page.locator("#groups").bounding_box() == top  # nothing jumps
    assert shown.count(".arrows path") == SIZE - 1
    assert shown.count(".node.is-waiting") == SIZE - 1
    assert shown.page.locator(".node.is-missing").text_content().endswith("5")
    world.say(ALL, 7, "", 0.0)
    shown.page.locator(".arrows path").first.wait_for(state="detached")
    assert shown.problems == []


def test_the_keyboard_leads_to_a_rank_with_its_stack_and_calls(
    world: World, job_name: str, visit: Callable[..., Visit]
) -> None:
    world.stall(missing=5)
    shown = visit()
    record = wire.FlightRecord(group="world", sequence=6, operation="all_reduce", nbytes=4096)
    record.created, record.started, record.finished = 10**9, 2 * 10**9, 3 * 10**9
    record.outcome, record.file, record.line = "ok", "train.py", 31
    text = f"File train.py, line 44, in load_batch {EVIL}"
    reports = [
        {"rank": 5, "missing": "", "isKnown": True, "stack": text, "calls": [read_call(record)]}
    ]
    shown.page.route("**/reports*", lambda route: route.fulfill(json=reports))
    shown.page.click(f"#jobs a:has-text('{job_name}')")
    shown.wait_for(".node.is-missing")
    shown.page.locator(".node.is-missing").focus()
    shown.page.keyboard.press("Enter")
    shown.wait_for("#rank-stack", text)
    shown.wait_for("#rank-calls td", "4.00 KiB")
    shown.wait_for("#rank-calls td", "train.py:31")
    shown.wait_for("#rank-facts", EVIL)  # as text: it is no element
    assert shown.count("#rank img") == 0
    assert shown.page.evaluate("document.activeElement.id") == "rank-title"
    shown.page.keyboard.press("Escape")
    shown.page.locator("#rank").wait_for(state="hidden")
    assert "stolen" not in shown.page.title()
    assert shown.problems == []


def read_call(record: wire.FlightRecord) -> dict[str, Any]:
    return {
        "group": record.group,
        "sequence": record.sequence,
        "operation": record.operation,
        "signature": "",
        "nbytes": record.nbytes,
        "outcome": record.outcome,
        "label": "",
        "begun": record.started / 1e9,
        "ended": record.finished / 1e9,
        "waitsFor": [],
        "source": f"{record.file}:{record.line}",
    }


def test_a_failed_job_says_what_failed_first(
    world: World, job_name: str, visit: Callable[..., Visit]
) -> None:
    trace = "Traceback (most recent call last):\n  File train.py, line 7"
    world.leave(3, error=f"ValueError: {EVIL}", traceback=trace)
    for rank in ALL:
        if rank != 3:
            world.leave(rank, error="GroupAborted: rank 3 failed")
    shown = visit()
    shown.page.click(f"#jobs a:has-text('{job_name}')")
    shown.wait_for("#job-state", "failed")
    shown.wait_for("#trouble .stack", "line 7")
    shown.wait_for(
        "#trouble", f"rank 3 (host node-a, pid 4003) left the job because of ValueError: {EVIL}"
    )
    assert shown.page.locator(".node.is-failed").text_content().endswith("3")
    assert shown.count(".node.is-aborted") == SIZE - 1
    assert shown.count("#trouble img, #events img") == 0
    assert shown.problems == []


def make_parts(size: int) -> dict[str, Any]:
    ranks = {f"rank/{rank}": ["inside", "", "world", 1, "barrier", 0.0] for rank in range(size)}
    job = {"state": "running", "epoch": 1, "size": size, "members": size, "keys": 0}
    return {
        "job": {**job, "ended": None, "failed": False, "window": 5.0},
        **ranks,
        "groups": [["world", [[0, size - 1]]]],
        "waits": [],
        "failures": [],
    }


@pytest.mark.parametrize(
    ("size", "selector"),
    [(24, "svg circle.ring"), (25, "svg rect"), (200, "svg rect"), (2000, "canvas")],
)
def test_more_ranks_are_a_grid_and_very_many_a_canvas(
    size: int, selector: str, visit: Callable[..., Visit]
) -> None:
    shown = visit()
    changes = json.dumps({"reset": True, "parts": make_parts(size)})
    body = f"event: job\ndata: {changes}\n\n"
    shown.page.route(
        "**/stream*", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    shown.page.evaluate("location.hash = '#/large'")
    shown.wait_for(f".groups {selector}")
    shown.wait_for("#legend", f"in a call {size}")
    if selector == "canvas":
        assert f"{size} in a call" in (
            shown.page.locator("canvas.field").get_attribute("aria-label") or ""
        )
        shown.page.fill("#find-rank", "1234")
        shown.page.keyboard.press("Enter")
        shown.wait_for("#rank-title", "Rank 1234")
    assert shown.problems == []


def test_it_is_dark_where_the_reader_wants_it(visit: Callable[..., Visit]) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(scheme="light").page, visit(scheme="dark").page
    assert light.evaluate(colour) == "rgb(246, 247, 249)"
    assert dark.evaluate(colour) == "rgb(20, 24, 31)"


def test_a_page_finds_the_daemon_again_and_then_its_door(
    tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    with run_daemon(tmp_path, "--http", "127.0.0.1:0") as daemon:
        shown = visit(daemon.run_command("page").stdout.strip())
        shown.wait_for("#live", "live")
        http = find_url(daemon).removeprefix("http://")
    shown.wait_for("#live", "connecting again")
    with run_daemon(tmp_path, "--http", http):
        shown.wait_for("#reason", "There is no session")
