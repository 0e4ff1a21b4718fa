"""Clusters of real etcd nodes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.etcd_nodes import EtcdNodes, run_nodes


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[EtcdNodes]:
    """Yield three nodes of the test's own, which it may kill and pause."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: see `make test-etcd`")
    with run_nodes(tmp_path / "etcd") as running:
        yield running
