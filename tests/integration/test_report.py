"""`allhands report` on real jobs: one file, while the job runs and after its end."""

from pathlib import Path

from programs import recorded as programs
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster, Job


def command(cluster: Cluster, *arguments: str) -> str:
    """Run a command of `allhands` beside the job; return the output."""
    child = cluster.fork_server.start(
        module="allhands.cli.main", arguments=list(arguments), environment=cluster.environment
    )
    with child.stdin, child.stdout, child.stderr:
        said, errors = child.stdout.read(), child.stderr.read()
        assert child.wait(PATIENCE) == 0, errors
    return said


def test_a_report_names_the_late_rank_while_the_job_runs_and_afterwards(
    cluster: Cluster, job: Job, tmp_path: Path
) -> None:
    ranks = job(8, programs.straggle)
    for rank in ranks:
        rank.expect("in place")
    first, last = tmp_path / "running.html", tmp_path / "ended.html"
    said = command(cluster, "report", "job", "--file", str(first))
    assert said.startswith(f"{first}: 8 ranks, ")
    shown = command(cluster, "diagnose", "job")
    assert "rank 5 was last to begin" in shown
    for rank in ranks:
        rank.say()
        assert rank.ended() == 0
    command(cluster, "report", "job", "-o", str(last))
    for text in (first.read_text(), last.read_text()):
        assert "rank 5 was last to begin" in text
        assert "Slowest operations" in text
        assert "all_reduce #" in text
        assert " in straggle" in text
        assert "://" not in text
    assert "running; 8 ranks" in first.read_text()
    assert "<td>ended</td>" in last.read_text()
