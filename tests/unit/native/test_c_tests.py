"""The native core's tests in C, plain and under sanitizers.

ALLHANDS_NATIVE_ROUNDS says how long the random ones go on; `make sanitize` gives them more time,
and looks at addresses also where ranks are threads.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "client" / "allhands" / "native"
TESTS = sorted((ROOT / "tests" / "native").glob("test_*.c"))

ROUNDS = os.environ.get("ALLHANDS_NATIVE_ROUNDS", "2")
IS_THOROUGH = "ALLHANDS_NATIVE_ROUNDS" in os.environ
RANKS_ARE = {"test_collectives": ["threads", "forks"], "test_p2p": ["threads", "forks"]}
"""What plays the ranks, of the tests that have any."""

FLAGS = ["-std=c11", "-fwrapv", "-ffp-contract=off", "-pthread", "-Wall", "-Wextra", "-Werror"]
BUILDS = {
    "plain": ["-O2"],
    "thread": ["-g", "-O1", "-fsanitize=thread"],
    "address": ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
RUNS = [
    pytest.param(build, test, ranks, id="-".join(filter(None, (test.stem, ranks, build))))
    for build in BUILDS
    for test in TESTS
    for ranks in RANKS_ARE.get(test.stem, [""])
    if (build, ranks) != ("thread", "forks")
    if (build, ranks) != ("address", "threads") or IS_THOROUGH
]


def run(command: list[str], timeout: float = 600) -> tuple[int, str]:
    """Run a command; return status and output. A timeout kills the process group."""
    with subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            said += f"\nkilled after {timeout:.0f} s"
    return process.returncode, said


class Builder:
    """Compiles each build of the core once, across all test processes."""

    def __init__(self, compiler: str, folder: Path) -> None:
        self._compiler = compiler
        self._folder = folder

    def test(self, build: str, source: Path) -> list[str]:
        """Return the command of a test."""
        core = self._folder / f"core-{build}.a"
        program = self._folder / f"{source.stem}-{build}"
        with self._alone(build):
            if not core.exists():
                self._compile_core(build, core)
        with self._alone(program.name):
            if not program.exists():
                self._compile(build, "-o", str(program), str(source), str(core))
        return [*self.runner(build), str(program)]

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Keep parallel test processes from the same build."""
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def runner(self, build: str) -> list[str]:
        # The ThreadSanitizer of older compilers does not find its way in memory that the kernel
        # lays out more randomly than they knew.
        setarch = shutil.which("setarch")
        return [setarch, "-R"] if build == "thread" and setarch else []

    def why_not(self, build: str) -> str:
        """Return the reason why a build is impossible here; "" if possible."""
        source = self._folder / f"nothing-{build}.c"
        program = self._folder / f"nothing-{build}"
        with self._alone(program.name):
            source.write_text("int main(void) { return 0; }\n")
            status, said = run([self._compiler, *BUILDS[build], "-o", str(program), str(source)])
            if status == 0:
                status, said = run([*self.runner(build), str(program)])
        return said or f"exit status {status}" if status else ""

    def _compile_core(self, build: str, core: Path) -> None:
        objects = []
        for source in sorted(NATIVE.rglob("*.c")):
            if re.search(r"\bPy[A-Z_]", source.read_text()):
                continue  # the shell around the core
            named = "-".join(source.relative_to(NATIVE).with_suffix("").parts)
            made = str(self._folder / f"{named}-{build}.o")
            self._compile(build, "-c", "-o", made, str(source))
            objects.append(made)
        status, said = run(["ar", "rcs", str(core), *objects])
        assert status == 0, said

    def _compile(self, build: str, *arguments: str) -> None:
        status, said = run([self._compiler, *FLAGS, *BUILDS[build], f"-I{NATIVE}", *arguments])
        assert status == 0, said


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: neither gcc nor cc is on PATH")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    (folder / "native").mkdir(exist_ok=True)
    return Builder(compiler, folder / "native")


@pytest.mark.timeout(1200)  # compilers on busy machines; and `make sanitize` asks for much
@pytest.mark.parametrize(("build", "test", "ranks"), RUNS)
def test_the_core_passes_its_tests(builder: Builder, build: str, test: Path, ranks: str) -> None:
    if reason := builder.why_not(build):
        pytest.skip(f"cannot build with {' '.join(BUILDS[build])} here: {reason}")
    status, said = run([*builder.test(build, test), *([ranks, ROUNDS] if ranks else [])])
    assert status == 0, said
