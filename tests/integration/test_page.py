"""The page's requests as browsers make them: who may see what, and what strangers cannot do."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from allhands.coordinator.client import Control
from allhands.errors import PermissionDenied
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire
from programs import launched_ranks
from support.documents.output_fields import check_fields
from support.http_pages import Visitor, find_url, follow_until, send
from support.ranks.launchers import Start, as_script

LONG = 5.0
Join = Callable[..., RawMember]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with an HTTP port and an audit log."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    options = ("--http", "127.0.0.1:0", "--audit-log", str(tmp_path / "audit"))
    with run_daemon(tmp_path / "runtime", *options) as daemon:
        yield daemon


@pytest.fixture
def join(served: DaemonProcess) -> Iterator[Join]:
    """Return a function to join a job, with a rank and a world size."""
    made: list[RawMember] = []

    def join(job: str, rank: int, size: int, label: str = "") -> RawMember:
        request = wire.Join(
            job=job,
            rank=rank,
            world_size=size,
            host="node-a",
            label=label,
            pid=4000 + rank,
            port=5000 + rank,
            heartbeat_window=60.0,
        )
        made.append(RawMember(served.endpoint, request))
        made[-1].receive("joined")
        return made[-1]

    yield join
    for member in made:
        member.close()


def ask_link(daemon: DaemonProcess, *arguments: str) -> str:
    """Return what `allhands page` prints."""
    done = daemon.run_command("page", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ask_link_by(daemon: DaemonProcess, token: str, job: str) -> str:
    """Return a link for a caller with a token of its own."""
    with Control(replace(daemon.endpoint, token=token), job=None, timeout=10) as control:
        return control.page_link(job).url


def create_token(daemon: DaemonProcess, job: str, verbs: str = "read") -> str:
    done = daemon.run_command("token", "create", "--job", job, "--verbs", verbs)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------- links and sessions


def test_a_link_opens_the_page_once_and_is_no_secret_of_logs(
    served: DaemonProcess, tmp_path: Path
) -> None:
    link = ask_link(served)
    assert link.startswith(f"{find_url(served)}/#link=")
    visitor = Visitor(link)
    again = send(visitor.url, "POST", "/session", visitor.code)
    assert again.status == 401
    assert "allhands page" in again.text
    assert visitor.get("/session").status == 200
    key = visitor.cookie.partition("=")[2].partition(";")[0]
    flags = {one.strip().lower() for one in visitor.cookie.split(";")[1:]}
    assert flags == {"httponly", "path=/", "samesite=strict"}
    logged = "".join(served.log_lines) + (tmp_path / "audit").read_text()
    assert visitor.code not in logged
    assert key not in logged
    assert "link=" not in logged


def test_without_a_session_there_is_the_empty_page_alone(served: DaemonProcess, join: Join) -> None:
    join("j", 0, 1)
    url = find_url(served)
    index = send(url, "GET", "/")
    assert index.status == 200
    assert "allhands page" in index.text
    for path in ("/session", "/stream?job=j", "/reports?job=j&ranks=0"):
        for headers in ({}, {"Cookie": "allhands-1=x; " + "y" * 2000}):
            refused = send(url, "GET", path, headers=headers)
            assert refused.status == 401
            assert "allhands page" in refused.text
            assert "node-a" not in refused.text


def test_a_session_ends_where_the_browser_ends_it(served: DaemonProcess) -> None:
    visitor = Visitor(ask_link(served))
    with visitor.follow("") as events:
        assert next(events)[0] == "jobs"
        assert send(visitor.url, "DELETE", "/session", headers=visitor.headers).status == 204
        assert [name for name, _ in events] == ["over"]
    assert visitor.get("/session").status == 401


def test_requests_of_strangers_pages_are_refused(served: DaemonProcess) -> None:
    visitor = Visitor(ask_link(served))
    port = urlsplit(visitor.url).port
    # DNS rebinding: a stranger's name that stands for this address.
    assert visitor.get("/session", Host=f"evil.example:{port}").status == 403
    assert send(visitor.url, "GET", "/", headers={"Host": "evil.example"}).status == 403
    assert visitor.get("/session", Origin="http://evil.example").status == 403
    assert visitor.get("/stream?job=", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    link = ask_link(served)
    code = link.partition("=")[2]
    evil = {"Origin": "http://evil.example"}
    assert send(visitor.url, "POST", "/session", code, evil).status == 403
    Visitor(link)  # which that has not used up


def test_large_and_strange_requests_are_refused(served: DaemonProcess) -> None:
    visitor = Visitor(ask_link(served))
    assert send(visitor.url, "POST", "/session", "x" * 100_000).status == 413
    assert send(visitor.url, "PUT", "/session", "x").status == 405
    assert send(visitor.url, "POST", "/stream", "x").status == 405
    for ranks in ("", "x", "-1", "1;2", ",".join(map(str, range(65)))):
        assert visitor.get(f"/reports?job=j&ranks={ranks}").status == 400
    assert visitor.get("/reports?job=nothing&ranks=0").status == 404
    head = send(visitor.url, "HEAD", "/stream?job=", headers=visitor.headers)
    assert head.status == 200
    assert visitor.get("/page/..%2fassets.py").status == 404


def test_serve_prints_a_link_on_a_terminal(tmp_path: Path) -> None:
    ours, its = os.openpty()
    command = (sys.executable, "-m", "allhands.cli.main", "serve", "--listen", "127.0.0.1:0")
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen([*command, "--http", "127.0.0.1:0"], env=environ, stderr=its) as process:
        os.close(its)
        with open(ours, errors="replace") as terminal:
            link = next(line for line in terminal if "/#link=" in line).strip()
            Visitor(link)
            process.terminate()
            assert process.wait(30) == 0


def test_run_tells_of_the_page_of_its_job(run: Start, tmp_path: Path) -> None:
    program = as_script(launched_ranks.come_late, 2)
    running = run("-n", "2", "--job", "j", "--http", "127.0.0.1:0", *program)
    poll_until(lambda: any("the job has a page at" in line for line in running.errors))
    [told] = [line for line in running.errors if "the job has a page at" in line]
    url = told.split(" page at ")[1].split(": ")[0]
    assert send(url, "GET", "/").status == 200
    assert send(url, "GET", "/session").status == 401
    assert running.status() == 0, running.errors
    assert not any("link=" in line for line in running.errors)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--http", "0.0.0.0:0"), "to this host alone"),
        (("--http", "x"), "--http wants HOST:PORT"),
        (("--http", "127.0.0.1:0", "--coordinator", "ah://127.0.0.1:1"), "there already"),
    ],
)
def test_run_says_where_a_page_cannot_be(options: tuple[str, ...], said: str, run: Start) -> None:
    running = run("-n", "1", *options, *as_script(launched_ranks.come_late, 0))
    assert running.status() == 2
    assert said in " ".join(" ".join(running.errors).split())


def test_the_document_of_a_link_has_the_documented_fields(served: DaemonProcess) -> None:
    for form in ("json", "yaml"):
        done = served.run_command("page", "-o", form)
        document = yaml.safe_load(done.stdout)
        check_fields(document, is_full=True)
        assert document["kind"] == "PageLink"
        Visitor(document["url"])


def test_without_the_port_the_command_says_what_to_start(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        done = daemon.run_command("page")
    assert done.returncode == 1
    assert "allhands serve --http 127.0.0.1:7071" in done.stderr


def test_a_link_to_a_job_that_is_not_there_is_refused(served: DaemonProcess) -> None:
    done = served.run_command("page", "nothing")
    assert done.returncode == 1
    assert "no job 'nothing'" in done.stderr


# ---------------------------------------------------------------- rights


def test_a_token_for_one_job_shows_that_one_alone(
    served: DaemonProcess, join: Join, tmp_path: Path
) -> None:
    join("mine", 0, 1)
    join("other", 0, 1)
    token = create_token(served, "mine")
    link = ask_link_by(served, token, "mine")
    assert link.endswith("&job=mine")
    visitor = Visitor(link)
    assert json.loads(visitor.get("/session").text)["job"] == "mine"
    with visitor.follow("mine") as events:
        name, rows = next(events)
        assert (name, [row[0] for row in rows]) == ("jobs", ["mine"])
        assert follow_until(events, "rank/0")
    refused = visitor.get("/stream?job=other")
    assert refused.status == 403
    assert "is for job mine" in refused.text
    assert visitor.get("/reports?job=other&ranks=0").status == 403
    audited = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    streams = {
        (one["job"], one["outcome"][:7]) for one in audited if one["method"] == "GET /stream"
    }
    assert streams == {("mine", "allowed"), ("other", "refused")}


def test_a_token_that_may_not_read_gets_no_link(served: DaemonProcess, join: Join) -> None:
    join("j", 0, 1)
    with pytest.raises(PermissionDenied, match="this call needs read"):
        ask_link_by(served, create_token(served, "j", "join"), "j")


def test_a_token_that_is_revoked_closes_what_it_opened(served: DaemonProcess, join: Join) -> None:
    join("j", 0, 1)
    token = create_token(served, "j")
    visitor = Visitor(ask_link_by(served, token, "j"))
    with visitor.follow("j") as events:
        follow_until(events, "rank/0")
        revoked = served.run_command("token", "revoke", token.split("_")[1])
        assert revoked.returncode == 0, revoked.stderr
        assert next(name for name, _ in events if name == "over")
    assert visitor.get("/stream?job=j").status == 401


# ---------------------------------------------------------------- what is pushed


def test_the_stream_has_who_waits_for_whom_and_then_what_changes(
    served: DaemonProcess, join: Join
) -> None:
    first, second = join("j", 0, 2, "<b>label</b>"), join("j", 1, 2)
    for member in (first, second):
        member.send(open_group=wire.OpenGroup(group="world", ranks=[0, 1]))
    late = wire.Progress(group="world", sequence=3, completed=2, operation="barrier", elapsed=LONG)
    done = wire.Progress(group="world", sequence=2, completed=2, elapsed=LONG)
    first.send(heartbeat=wire.Heartbeat(progress=[late]))
    second.send(heartbeat=wire.Heartbeat(progress=[done]))
    visitor = Visitor(ask_link(served, "j"))
    with visitor.follow("j") as events:
        parts = follow_until(events, "rank/0", "waits")
        while not parts["waits"]:
            parts.update(follow_until(events, "waits"))
        [[group, sequence, operation, _, waiting, missing]] = parts["waits"]
        assert (group, sequence, operation) == ("world", 3, "barrier")
        assert (waiting, missing) == ([[0, 0]], [[1, 1]])
        assert parts["who/0"][3] == "<b>label</b>"
        first.send(heartbeat=wire.Heartbeat(progress=[done]))
        while parts["rank/0"][3] != 2:
            changed = follow_until(events, "rank/0")
            assert "who/0" not in changed
            parts.update(changed)


def test_a_job_that_comes_later_appears(served: DaemonProcess, join: Join) -> None:
    visitor = Visitor(ask_link(served))
    with visitor.follow("later") as events:
        assert next(events) == ("jobs", [])
        join("later", 0, 1)
        assert follow_until(events, "who/0")["who/0"][0] == "node-a"


def test_a_report_has_calls_stack_and_why_a_rank_has_none(
    served: DaemonProcess, join: Join
) -> None:
    member = join("j", 0, 2)
    silent = join("j", 1, 2)
    record = wire.FlightRecord(
        group="world",
        sequence=1,
        operation="all_reduce",
        nbytes=64,
        created=10**9,
        started=2 * 10**9,
        outcome="running",
        file="train.py",
        line=7,
        function="step",
        waits_for=[1],
    )
    report = wire.FlightReport(now=3.0, operations=[record], stack="File train.py, line 7")

    def answer() -> None:
        asked = member.receive("collect_report").collect_report
        part = wire.ReportPart(id=asked.id, data=report.SerializeToString(), is_last=True)
        member.send(report_part=part)

    answering = threading.Thread(target=answer)
    answering.start()
    visitor = Visitor(ask_link(served))
    found: list[dict[str, Any]] = json.loads(visitor.get("/reports?job=j&ranks=0").text)
    answering.join()
    [told] = found
    assert (told["rank"], told["missing"], told["stack"]) == (0, "", "File train.py, line 7")
    [call] = told["calls"]
    assert (call["operation"], call["nbytes"], call["waitsFor"]) == ("all_reduce", 64, [1])
    assert (call["source"], call["ended"]) == ("train.py:7 in step", None)
    silent.close()


def test_pages_beyond_the_bound_are_refused_and_those_that_close_make_room(
    served: DaemonProcess,
) -> None:
    visitor = Visitor(ask_link(served))
    with visitor.follow("") as first:
        next(first)
        others = [visitor.follow("") for _ in range(31)]
        for one in others:
            next(one.__enter__())
        refused = visitor.get("/stream?job=")
        assert refused.status == 503
        assert "32 pages are open" in refused.text
        for one in others:
            one.__exit__(None, None, None)
        poll_until(lambda: not _is_full(visitor))


def _is_full(visitor: Visitor) -> bool:
    return send(visitor.url, "HEAD", "/stream?job=", headers=visitor.headers).status == 503
