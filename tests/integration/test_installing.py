"""The published archives under pip: with and without a compiler, and not on Linux."""

import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIND = (
    "from allhands.runtime import native_core as n; core, why = n.find(); "
    "print(core and 'found', why)"
)


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, built from a copy without history."""
    copy = tmp_path_factory.mktemp("source") / "allhands"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.so", "dist"),
    )
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), where=copy)
    (archive,) = folder.iterdir()
    return archive


def run(*command: str, where: Path | None = None, **variables: str) -> str:
    """Run a command; return the output, also the text of a failure."""
    done = subprocess.run(
        command, cwd=where, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sdist_has_the_documents_and_no_link_that_is_dead_on_an_index(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        told = archive.extractfile("allhands-0.1.0/PKG-INFO")
        assert told is not None
        metadata = email.message_from_bytes(told.read())
    assert {"CHANGELOG.md", "LICENSE", "README.md", "Makefile"} <= names
    pages = (page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.*"))
    assert {str(page) for page in pages if "__pycache__" not in page.parts} <= names
    page = (ROOT / "server/allhands_server/http/page/static").iterdir()
    assert {str(one.relative_to(ROOT)) for one in page} <= names
    links = re.findall(r"\]\(([^)]*)\)", metadata.get_payload())
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    labels = [url.partition(",")[0] for url in metadata.get_all("Project-URL", [])]
    assert labels == ["Source", "Documentation", "Changelog", "Issues"]
    extras = [
        *("dask", "examples", "http", "jax", "joblib", "lightgbm", "notebook", "otel", "plot"),
        *("ray", "report", "top", "torch", "xgboost"),
    ]
    assert metadata.get_all("Provides-Extra") == extras


@dataclass(frozen=True)
class Installation:
    """A virtual environment with only the archive for pip, and a private cache.

    What the archive needs, to build and to run, is that of the tests' own environment.
    """

    folder: Path
    sdist: Path

    def create(self) -> None:
        venv.create(self.folder / "venv")
        (site,) = self.folder.glob("venv/lib/python*/site-packages")
        (site / "those_of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
        pip = self.folder / "venv" / "bin" / "pip"
        pip.write_text('#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n')
        pip.chmod(0o755)

    def run(self, command: str, *, compiler: bool = True) -> str:
        return run(
            *("/bin/sh", "-ec", command),
            where=self.folder,
            PATH=f"{self.folder}/venv/bin" + (f":{os.environ['PATH']}" if compiler else ""),
            CFLAGS="-O0",  # half a minute less
            PIP_CACHE_DIR=str(self.folder / "cache"),
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            PIP_FIND_LINKS=str(self.sdist.parent),
            PIP_NO_BUILD_ISOLATION="0",  # which is how pip's variable says that there is none
            PIP_NO_INDEX="1",
        )


@pytest.fixture
def installation(tmp_path: Path, sdist: Path) -> Installation:
    made = Installation(tmp_path, sdist)
    made.create()
    return made


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler to be installed")
@pytest.mark.timeout(300)  # it compiles
@pytest.mark.parametrize("origin", ["index", pytest.param("directory", marks=pytest.mark.nightly)])
def test_the_advice_of_a_build_without_a_compiler_gives_the_native_core(
    installation: Installation, origin: str
) -> None:
    unpacked = installation.folder / "allhands 0.1.0"  # pip takes such a name for a release's
    run("tar", "-xf", str(installation.sdist), where=installation.folder)
    (installation.folder / "allhands-0.1.0").rename(unpacked)
    wanted = "allhands" if origin == "index" else shlex.quote(str(unpacked))
    installation.run(f"pip install --ignore-installed --no-deps {wanted}", compiler=False)
    found, _, absence = installation.run(f'python -c "{FIND}"').partition(" ")
    assert found == "None"
    assert "apt install gcc" in absence

    advice = absence.partition("build allhands anew: ")[2].strip()
    assert advice.startswith("pip install ")
    installation.run(advice)

    assert installation.run(f'python -c "{FIND}"').split() == ["found"]


def test_a_build_without_a_compiler_is_no_wheel_for_every_machine(
    installation: Installation,
) -> None:
    installation.run("pip wheel --no-deps --wheel-dir made allhands", compiler=False)
    (wheel,) = (installation.folder / "made").iterdir()
    assert wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_refused_by_name(system: str, sdist: Path, tmp_path: Path) -> None:
    run("tar", "-xf", str(sdist), where=tmp_path)
    # Text: the system has to be another one before anything is imported.
    build = (
        f"import sys; sys.platform = {system!r}\n"
        "from hatchling.build import prepare_metadata_for_build_wheel as prepare\n"
        "prepare('.')\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", build],
        cwd=tmp_path / "allhands-0.1.0",
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    assert told.stderr.startswith(f"allhands runs on Linux only, and this is {system}: use")

    program = f"import sys; sys.platform = {system!r}\nimport allhands\n"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stderr.splitlines()[-1] == (
        f"ImportError: allhands runs on Linux only, and this is {system}"
    )
