"""Memory of the host, or of the container around this process."""

from pathlib import Path

from allhands_server.host_memory import _list_group_limits, find_memory, find_resident


def test_a_process_has_some_memory_of_its_host() -> None:
    assert 0 < find_resident() < find_memory()


def test_the_limits_of_all_groups_around_the_process_count(tmp_path: Path) -> None:
    groups, of_process = tmp_path / "groups", tmp_path / "cgroup"
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (groups / "outer" / "memory.max").write_text("1000\n")
    of_process.write_text("0::/outer/inner\n")
    assert list(_list_group_limits(groups, of_process)) == [1000]


def test_groups_of_the_first_version_have_limits_too(tmp_path: Path) -> None:
    groups, of_process = tmp_path / "groups", tmp_path / "cgroup"
    inner = groups / "memory" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.limit_in_bytes").write_text("2000\n")
    (groups / "memory" / "memory.limit_in_bytes").write_text("9000\n")
    of_process.write_text("4:cpu,memory:/inner\n3:devices:/inner\n")
    assert list(_list_group_limits(groups, of_process)) == [2000, 9000]


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert list(_list_group_limits(tmp_path, tmp_path / "nothing")) == []
