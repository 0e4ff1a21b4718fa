"""Directories of notices, and the checks of a runtime directory's owner."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from allhands_proto import notice
from allhands_proto.notice import Notice


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, and no runtime directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def _fallback(temporary: Path) -> Path:
    return temporary / f"allhands-{os.getuid()}"


@pytest.mark.parametrize("named", ["{}/absent", "/proc", "relative", ""])
def test_a_runtime_directory_that_cannot_be_used_is_replaced_by_a_private_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", named.format(temporary))
    assert notice.directory() == _fallback(temporary)
    assert stat.S_IMODE(_fallback(temporary).lstat().st_mode) == 0o700


def test_a_runtime_directory_of_another_user_is_not_used(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(temporary / "mine"))
    (temporary / "mine").mkdir()
    stranger = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    with pytest.raises(PermissionError, match=f"uid {stranger}"):
        notice.directory()  # nor is the one that it has just made: it belongs to the real user
    assert not (temporary / "mine" / "allhands").exists()


def test_a_replacement_that_others_may_enter_is_refused(temporary: Path) -> None:
    _fallback(temporary).mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        notice.directory()


def test_a_replacement_that_is_a_link_is_refused(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir(mode=0o700)
    _fallback(temporary).symlink_to(temporary / "elsewhere")
    with pytest.raises(PermissionError):
        notice.directory()


def test_nothing_is_found_where_the_directory_cannot_be_used(temporary: Path) -> None:
    _fallback(temporary).mkdir(mode=0o755)
    assert notice.find(7070) is None
    notice.withdraw(Notice("127.0.0.1", 7070, "t", os.getpid(), "daemon"))
