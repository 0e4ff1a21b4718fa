"""`allhands kv`, `allhands lease` and `allhands watch` against a daemon."""

import base64
import json
import subprocess
from collections.abc import Callable

import pytest

from allhands.testing.daemon import DaemonProcess

Allhands = Callable[..., str]


@pytest.fixture
def allhands(daemon: DaemonProcess, job_name: str) -> Allhands:
    """Return a function that runs a command on the test's job, and returns its output."""

    def run(*words: str, stdin: str = "") -> str:
        arguments = [job_name if word == "JOB" else word for word in words]
        done = daemon.run_command(*arguments, stdin=stdin, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def fill(allhands: Allhands) -> None:
    for key, value in (("a/1", "one"), ("a/2", "two"), ("b", "other")):
        allhands("kv", "put", "JOB", key, value)


def test_keys_are_got_by_range_in_an_order(allhands: Allhands) -> None:
    fill(allhands)
    assert allhands("kv", "get", "JOB", "a/", "--prefix") == "a/1\none\na/2\ntwo\n"
    assert allhands("kv", "get", "JOB", "a/1", "b", "--print-value-only") == "one\ntwo\n"
    assert allhands("kv", "get", "JOB", "a/2", "--from-key", "--keys-only") == "a/2\nb\n"
    newest = ("--prefix", "--sort-by", "modify", "--order", "descend", "--limit", "1")
    assert allhands("kv", "get", "JOB", "", "--keys-only", *newest) == "b\n"
    assert allhands("kv", "get", "JOB", "a", "--prefix", "--count-only") == "2\n"
    assert allhands("kv", "count", "JOB", "a/") == "2\n"
    assert allhands("kv", "count", "JOB") == "3\n"
    assert allhands("kv", "del", "JOB", "a/", "--prefix") == "2\n"
    assert allhands("kv", "ls", "JOB") == "b\n"


def test_records_as_json_have_a_version_and_lead_to_the_past(allhands: Allhands) -> None:
    fill(allhands)
    found = json.loads(allhands("kv", "get", "JOB", "b", "-o", "json"))
    (record,) = found["records"]
    assert (found["version"], found["count"], found["has_more"]) == (1, 1, False)
    assert base64.b64decode(record["value"]) == b"other"
    assert record["mod_revision"] == record["create_revision"] == found["revision"]
    assert record["key_version"] == 1
    allhands("kv", "put", "JOB", "b", "new")
    past = ("kv", "get", "JOB", "b", "--print-value-only", "--rev", str(found["revision"]))
    assert allhands(*past) == "other\n"
    allhands("kv", "compact", "JOB", str(found["revision"] + 1))


def test_a_history_that_is_gone_is_told_with_the_oldest_revision(
    allhands: Allhands, daemon: DaemonProcess, job_name: str
) -> None:
    fill(allhands)
    fill(allhands)
    revision = json.loads(allhands("kv", "get", "JOB", "b", "-o", "json"))["revision"]
    allhands("kv", "compact", "JOB", str(revision))
    done = daemon.run_command("watch", job_name, "b", "--rev", str(revision))
    assert done.returncode == 1
    assert f"{revision + 1:,} is the oldest revision to watch from" in done.stderr


def test_a_transaction_comes_from_standard_input(allhands: Allhands) -> None:
    text = 'version("k") = "0"\n\nput k first\nget k\n\nget k\ndel k\n'
    assert allhands("kv", "txn", "JOB", stdin=text) == "SUCCESS\n\nOK\n\nk\nfirst\n"
    assert allhands("kv", "txn", "JOB", stdin=text) == "FAILURE\n\nk\nfirst\n\n1\n"
    done = json.loads(allhands("kv", "txn", "JOB", "-o", "json", stdin=text))
    assert (done["version"], done["succeeded"], len(done["results"])) == (1, True, 2)


def test_a_line_that_is_no_transaction_is_quoted(daemon: DaemonProcess, job_name: str) -> None:
    done = daemon.run_command("kv", "txn", job_name, stdin="\nmove a b\n")
    assert done.returncode == 2
    assert "move a b" in done.stderr


def test_a_lease_is_granted_kept_and_revoked(allhands: Allhands) -> None:
    lease = allhands("lease", "grant", "JOB", "300").strip()
    allhands("kv", "put", "JOB", "k", "v", "--lease", lease)
    assert allhands("lease", "list", "JOB") == f"{lease}\n"
    kept = allhands("lease", "keep-alive", "JOB", lease, "--once")
    assert kept == f"lease {lease} kept alive for 300 s\n"
    told = allhands("lease", "timetolive", "JOB", lease, "--keys").splitlines()
    assert told[0].startswith(f"lease {lease} granted for 300 s, ")
    assert told[1:] == ["k"]
    status = json.loads(allhands("lease", "timetolive", "JOB", lease, "--keys", "-o", "json"))
    assert (status["granted_seconds"], status["keys"]) == (300, ["k"])
    assert 0 < status["remaining_seconds"] <= 300
    assert allhands("lease", "revoke", "JOB", lease) == "1\n"
    assert allhands("kv", "ls", "JOB") == ""


def test_a_lease_that_has_ended_is_told_of(daemon: DaemonProcess, job_name: str) -> None:
    for verb in ("revoke", "keep-alive", "timetolive"):
        done = daemon.run_command("lease", verb, job_name, "77")
        assert done.returncode == 1
        assert "has no lease 77" in done.stderr


def read_lines(watching: "subprocess.Popen[str]", count: int) -> list[str]:
    assert watching.stdout is not None
    return [watching.stdout.readline().rstrip("\n") for _ in range(count)]


def test_a_watch_shows_changes_as_they_come(
    allhands: Allhands, daemon: DaemonProcess, job_name: str
) -> None:
    fill(allhands)
    found = json.loads(allhands("kv", "get", "JOB", "b", "-o", "json"))
    since = str(found["revision"] + 1)
    watch = ("watch", job_name, "a/", "--prefix", "--rev", since, "--prev-kv", "--count", "2")
    with daemon.start_command(*watch) as watching:
        allhands("kv", "put", "JOB", "a/1", "new")
        assert read_lines(watching, 5) == ["PUT", "a/1", "one", "a/1", "new"]
        allhands("kv", "del", "JOB", "a/2")
        assert read_lines(watching, 4) == ["DELETE", "a/2", "two", "a/2"]
        assert watching.wait(60) == 0
    told = allhands(
        "watch", "JOB", "b", "--rev", str(found["revision"]), "--count", "1", "-o", "json"
    )
    event = json.loads(told)
    assert (event["version"], event["type"], event["previous"]) == (1, "PUT", None)
    assert base64.b64decode(event["record"]["value"]) == b"other"
