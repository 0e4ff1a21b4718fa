"""Source of mpi4py with its tests: a pinned release, fetched once and checked."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

RELEASE = "4.1.2"
_DIGEST = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"


def find_cache() -> Path:
    """Return the folder that what was fetched is kept in."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "allhands" / "mpi4py"


def fetch() -> Path:
    """Return the folder of the source, fetched by pip if it is not there yet.

    Raises:
        RuntimeError: what was fetched is another file than the one that is pinned.
    """
    cache = find_cache()
    folder = cache / f"mpi4py-{RELEASE}"
    if (folder / "test").is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "mpi4py", "--no-build-isolation", "--dest", scratch]
        subprocess.run([*command, f"mpi4py=={RELEASE}"], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != _DIGEST:
            raise RuntimeError(f"{archive.name} has the digest {digest}, and not {_DIGEST}")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (Path(scratch) / folder.name).rename(folder)
    return folder


def list_files(folder: Path) -> list[str]:
    """Return the names of the test files, without their suffix."""
    return sorted(path.stem for path in (folder / "test").glob("test_*.py"))
