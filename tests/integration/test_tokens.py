"""Tokens for jobs at a real daemon: both ports, joins, restarts, commands, the audit log."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from allhands import errors
from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server import access
from programs import launched_ranks
from support.ranks.forking import PATIENCE
from support.ranks.launchers import as_script


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    (tmp_path / "runtime").mkdir(mode=0o700)
    audit = ("--audit-log", str(tmp_path / "audit"), "--data-dir", str(tmp_path / "data"))
    with run_daemon(tmp_path / "runtime", *audit) as running:
        yield running


@pytest.fixture
def admin(daemon: DaemonProcess) -> Iterator[Control]:
    with Control(daemon.endpoint, job="j", timeout=PATIENCE) as control:
        yield control


def open_as(
    daemon: DaemonProcess, token: str, job: str = "j", *, use_lines: bool = True
) -> Control:
    endpoint = replace(daemon.endpoint, token=token)
    return Control(endpoint, job=job, timeout=PATIENCE, use_lines=use_lines)


def get_id(token: str) -> str:
    return token.split("_")[1]


def run_ranks(
    daemon: DaemonProcess, token: str, count: int = 1
) -> subprocess.CompletedProcess[str]:
    script = as_script(launched_ranks.show_sum)
    return subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "run", "-n", str(count), *script],
        env=os.environ | {"ALLHANDS_URL": f"{daemon.notice.url}/j", "ALLHANDS_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_every_method_has_a_verb() -> None:
    methods = wire.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name
    assert set(access._METHODS) == set(methods)
    assert access.find_verb("/allhands.v1.Coordinator/Unheard") == "cluster"


@pytest.mark.parametrize("use_lines", [True, False])
def test_keys_are_read_and_written_as_the_token_allows(
    daemon: DaemonProcess, admin: Control, use_lines: bool
) -> None:
    admin.put("key", b"value")
    reading = admin.create_token(verbs=["read"])
    with open_as(daemon, reading, use_lines=use_lines) as control:
        assert control.get("key") == b"value"
        with pytest.raises(errors.PermissionDenied, match=r"needs write.*--verbs write"):
            control.put("key", b"changed")
        assert bool(control._kv_pool._idle) == use_lines
    with (
        open_as(daemon, reading, job="other", use_lines=use_lines) as control,
        pytest.raises(errors.PermissionDenied, match="is for job j"),
    ):
        control.get("key")
    with open_as(daemon, admin.create_token(verbs=["write"]), use_lines=use_lines) as control:
        control.put("key", b"changed")
        with pytest.raises(errors.PermissionDenied, match="needs read"):
            control.get("key")
    assert admin.get("key") == b"changed"


def test_jobs_and_tokens_of_others_stay_hidden(daemon: DaemonProcess, admin: Control) -> None:
    admin.put("key", b"")
    with open_as(daemon, daemon.notice.token, job="other") as control:
        control.put("key", b"")
    with open_as(daemon, admin.create_token(verbs=["admin"])) as control:
        assert [one.job for one in control.jobs()] == ["j"]
        with pytest.raises(errors.PermissionDenied, match="is for job j"):
            control.delete_job("other")
        for call in (control.tokens, control.create_token, lambda: control.revoke_token("x")):
            with pytest.raises(errors.PermissionDenied, match="needs the cluster's own token"):
                call()
        control.delete_job("j")


@pytest.mark.parametrize("use_lines", [True, False])
def test_a_revoked_token_is_refused_at_once(
    daemon: DaemonProcess, admin: Control, use_lines: bool
) -> None:
    token = admin.create_token()
    with open_as(daemon, token, use_lines=use_lines) as control:
        control.put("key", b"value")
        admin.revoke_token(get_id(token))
        with pytest.raises(errors.Unauthenticated, match="revoked"):
            control.put("key", b"changed")
    assert admin.get("key") == b"value"
    with pytest.raises(errors.NotFound):
        admin.revoke_token(get_id(token))


@pytest.mark.parametrize("use_lines", [True, False])
def test_an_expired_token_is_refused(
    daemon: DaemonProcess, admin: Control, use_lines: bool
) -> None:
    token = admin.create_token(lifetime=0.001)

    def is_refused() -> bool:
        with open_as(daemon, token, use_lines=use_lines) as control:
            try:
                control.put("key", b"")
            except errors.Unauthenticated as error:
                return "has expired" in str(error)
            return False

    poll_until(is_refused, PATIENCE)
    assert "has expired" in run_ranks(daemon, token).stderr


def test_a_token_for_one_join_lets_one_rank_in(daemon: DaemonProcess, admin: Control) -> None:
    token = admin.create_token(verbs=["join"], max_joins=1)
    first = run_ranks(daemon, token)
    assert first.returncode == 0, first.stderr
    assert "sum 1.0" in first.stdout
    second = run_ranks(daemon, token)
    assert second.returncode != 0
    assert "is for 1 join, and has been used" in second.stderr
    [status] = admin.tokens()
    assert (status.joins, status.max_joins) == (1, 1)


def test_a_token_for_two_joins_carries_a_world_of_two(
    daemon: DaemonProcess, admin: Control
) -> None:
    done = run_ranks(daemon, admin.create_token(verbs=["join"], max_joins=2), 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2


def test_a_token_without_the_verb_or_for_another_job_joins_nothing(
    daemon: DaemonProcess, admin: Control
) -> None:
    for token, why in (
        (admin.create_token(verbs=["read", "write"]), "needs join"),
        (admin.create_token(job="other"), "is for job other"),
    ):
        done = run_ranks(daemon, token)
        assert done.returncode != 0
        assert why in done.stderr, done.stderr


def test_the_secret_of_lines_is_of_one_token(daemon: DaemonProcess, admin: Control) -> None:
    """Who may call for one job does not pass for the cluster, or for another token."""
    reading = admin.create_token(verbs=["read"])
    writing = admin.create_token(verbs=["write"])
    for claimed in ("", get_id(writing)):
        with open_as(daemon, reading) as control:
            honest = control._find_port

            def find(limit: float, honest=honest, claimed=claimed):  # type: ignore[no-untyped-def]
                return replace(honest(limit), token_id=claimed)

            control._kv_pool._find_port = find
            with pytest.raises(errors.PermissionDenied):  # by gRPC, as no line is to be had
                control.put("key", b"forged")
            assert not control._kv_pool._idle


def test_tokens_and_their_uses_outlast_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    data = ("--data-dir", str(tmp_path / "data"))
    with (
        run_daemon(tmp_path / "runtime", *data) as daemon,
        Control(daemon.endpoint, job="j", timeout=PATIENCE) as admin,
    ):
        once = admin.create_token(verbs=["join"], max_joins=1)
        reading = admin.create_token(verbs=["read"])
        revoked = admin.create_token()
        admin.revoke_token(get_id(revoked))
        assert run_ranks(daemon, once).returncode == 0
        before = admin.tokens()
    for path in (tmp_path / "data").iterdir():
        assert once.split("_", 2)[2].encode() not in path.read_bytes()
    with (
        run_daemon(tmp_path / "runtime", *data) as daemon,
        Control(daemon.endpoint, job="j", timeout=PATIENCE) as admin,
    ):
        assert admin.tokens() == before
        assert "has been used" in run_ranks(daemon, once).stderr
        with open_as(daemon, reading) as control:
            assert control.list() == ()
        with (
            open_as(daemon, revoked) as control,
            pytest.raises(errors.Unauthenticated, match="not known to this coordinator"),
        ):
            control.list()


def test_the_commands_make_list_and_revoke_tokens(daemon: DaemonProcess, admin: Control) -> None:
    made = daemon.run_command(
        *("token", "create", "--job", "j", "--verbs", "read", "--expires", "1h", "--single-use")
    )
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    listed = daemon.run_command("token", "list").stdout
    assert f"{get_id(token)}  j    read" in listed
    assert "0 of 1" in listed
    assert token.split("_", 2)[2] not in listed
    with open_as(daemon, token) as control:
        assert control.list() == ()
    assert daemon.run_command("token", "revoke", get_id(token)).returncode == 0
    assert admin.tokens() == ()
    for wrong in (["--verbs", "fly"], ["--expires", "soon"], ["--expires", "0s"]):
        assert daemon.run_command("token", "create", "--job", "j", *wrong).returncode == 2


# ---------------------------------------------------------------- the audit log


def read_audit(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_audit_log_says_who_did_what_and_no_secret(
    daemon: DaemonProcess, admin: Control, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    token = admin.create_token(verbs=["join", "read"])
    assert run_ranks(daemon, token).returncode == 0
    for use_lines in (True, False):
        with open_as(daemon, token, use_lines=use_lines) as control:
            control.list()
            control.list()
            with pytest.raises(errors.PermissionDenied):
                control.put("key", b"")
    forged = "guess\x1b[31m"
    with (
        open_as(daemon, "guess-guess") as control,
        pytest.raises(errors.Unauthenticated),
    ):
        control.list()
    with (
        open_as(daemon, token, job=forged) as control,
        pytest.raises(errors.PermissionDenied),
    ):
        control.list()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = read_audit(path)
    seen = {(one["who"], one["verb"], one["job"], one["outcome"].split(":")[0]) for one in lines}
    who = f"token {get_id(token)}"
    assert ("cluster token", "cluster", "j", "allowed") in seen
    assert (who, "join", "j", "allowed") in seen
    assert (who, "read", "j", "allowed") in seen
    assert (who, "write", "j", "refused") in seen
    assert (who, "read", forged, "refused") in seen
    assert any(one["who"] == "unknown" and "not the token" in one["outcome"] for one in lines)
    assert all(set(one) >= {"time", "peer", "method"} for one in lines)
    text = path.read_text()
    assert token.split("_", 2)[2] not in text
    assert daemon.notice.token not in text
    assert "guess-guess" not in text
    assert "\x1b" not in text
    log = "".join(daemon.log_lines)
    assert token.split("_", 2)[2] not in log
    assert "\x1b" not in log


def test_an_audit_log_that_is_moved_away_is_begun_anew(
    daemon: DaemonProcess, admin: Control, tmp_path: Path
) -> None:
    admin.jobs()
    os.rename(tmp_path / "audit", tmp_path / "audit.1")
    admin.jobs()
    assert [one["method"] for one in read_audit(tmp_path / "audit")] == ["ListJobs"]
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o600


def test_an_audit_log_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="No such file or directory"),
        run_daemon(tmp_path, "--audit-log", str(tmp_path / "missing" / "audit")),
    ):
        pass
