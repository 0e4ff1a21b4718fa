"""Entry points in an environment whose runtime directory is absent or unusable."""

import os
from pathlib import Path

import pytest

from programs import launched_ranks
from programs.joins import tell_a_sum
from support.ranks.addresses import free_port
from support.ranks.forking import PATIENCE
from support.ranks.launchers import as_script
from support.ranks.processes import Cluster, Process


@pytest.fixture(params=["absent", "unusable"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Variables without a runtime directory; `unusable`: without a fallback either."""
    if request.param == "unusable":
        (tmp_path / f"allhands-{os.getuid()}").mkdir(mode=0o755)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "absent"), "TMPDIR": str(tmp_path)}


def _daemon(cluster: Cluster, listen: str, **environment: str) -> Process:
    return cluster.serve("--listen", listen, **environment)


def _printed(cluster: Cluster, *arguments: str, **environment: str) -> str:
    """Run a successful command; return the output."""
    child = cluster.fork_server.start(
        module="allhands.cli.main",
        arguments=[*arguments],
        environment={**cluster.environment, **environment},
    )
    with child.stdin, child.stdout, child.stderr:
        printed = child.stdout.read()
        assert child.wait(PATIENCE) == 0, child.stderr.read()
        return printed


def test_a_world_of_one_needs_no_runtime_directory(
    cluster: Cluster, environment: dict[str, str]
) -> None:
    alone = cluster.start(tell_a_sum, **environment)
    assert alone.expect("done")["sum"] == 1
    assert alone.ended() == 0


def test_a_world_with_a_token_needs_no_runtime_directory(
    cluster: Cluster, environment: dict[str, str]
) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "ALLHANDS_TOKEN": "t"}
    for rank in cluster.world(2, tell_a_sum, **environment, **where):
        assert rank.expect("done")["sum"] == 2
        assert rank.ended() == 0


def test_the_launcher_needs_no_runtime_directory(
    cluster: Cluster, environment: dict[str, str]
) -> None:
    script = as_script(launched_ranks.show_size)
    printed = _printed(cluster, "run", "-n", "2", *script, **environment)
    assert '"size": 2' in printed


def test_a_daemon_with_a_token_and_commands_with_its_url_need_no_runtime_directory(
    cluster: Cluster, environment: dict[str, str]
) -> None:
    url = f"127.0.0.1:{free_port()}"
    token = {"ALLHANDS_TOKEN": "t"}
    daemon = _daemon(cluster, url, **environment, **token)
    joined = cluster.start(
        tell_a_sum, **environment, **token, ALLHANDS_URL=f"ah://{url}/j", RANK="0", WORLD_SIZE="1"
    )
    assert joined.expect("done")["sum"] == 1
    assert joined.ended() == 0
    _printed(cluster, "status", "--coordinator", f"ah://{url}", **environment, **token)
    assert daemon.child.poll() is None, daemon.errors


def test_where_the_token_could_be_told_nobody_the_daemon_says_what_to_do(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / f"allhands-{os.getuid()}").mkdir(mode=0o755)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "absent"), "TMPDIR": str(tmp_path)}
    daemon = _daemon(cluster, "127.0.0.1:0", **environment)
    assert daemon.ended() == 1
    assert "XDG_RUNTIME_DIR" in "".join(daemon.errors)
