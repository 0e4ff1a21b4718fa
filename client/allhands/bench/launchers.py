"""Launchers of each system's ranks, and their requirements."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allhands.bench.systems import ALLHANDS, MPI, TCP, TORCH

# A peer's Python needs NumPy and the peer. To import allhands proper would need more, so that
# name is given to a package that is found in the same place and has no code of its own.
_AS_RANK = """
import runpy, sys, types
package = types.ModuleType("allhands")
package.__path__ = [sys.argv.pop(1)]
sys.modules["allhands"] = package
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
RANK_MODULE = "allhands.bench.rank"
_HERE = str(Path(__file__).parent.parent)

_PRINT_LIBRARY = """
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""

_NEEDED_BY_TORCH = {"torch": "torch==2.13.0", "numpy": "numpy"}
_LAUNCHER_PREFIXES = (
    "OMPI_",
    "PMI",
    "PMIX_",
    "MPI_LOCAL",
    "HYDI_",
    "SLURM_",
    "MASTER_",
    "TORCHELASTIC_",
)
_OWN = {"ALLHANDS_URL", "ALLHANDS_JOB", "ALLHANDS_TOKEN", "ALLHANDS_TLS_CA"}
_RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}


class SystemMissing(Exception):
    """A system cannot be measured here; the text names the packages to install."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to start: a rank, or a launcher of ranks."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BenchHost:
    """Host of ranks: this host, or a network namespace."""

    name: str
    address: str
    interface: str
    command_prefix: tuple[str, ...] = ()
    """The command that runs another one there."""


THIS_HOST = BenchHost("this host", "127.0.0.1", "lo")


@dataclass(frozen=True, slots=True)
class PythonPaths:
    """Interpreters of the systems that need another Python."""

    by_system: Mapping[str, str] = field(default_factory=dict)

    def get(self, system: str) -> str:
        return self.by_system.get(system, sys.executable)


def make_base_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without an outer launcher's variables; one thread a rank."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in _OWN | _RANK_VARIABLES
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def find_launcher(system: str, pythons: PythonPaths) -> "Launcher":
    """Find the launcher of a system.

    Raises:
        SystemMissing: it is not there.
    """
    python = pythons.get(system)
    if system in ALLHANDS:
        return _find_allhands(system)
    if system in MPI:
        return _find_mpi(system, python)
    if system == TCP:
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            raise SystemMissing(f"{system} needs a C compiler: apt install gcc")
        return Launcher(system, sys.executable)
    _require_modules(system, python, _NEEDED_BY_TORCH)
    return Launcher(system, python)


@dataclass(frozen=True, slots=True)
class Launcher:
    """Builds the processes of a rank pool."""

    system: str
    python: str
    mpirun: tuple[str, ...] = ()
    """The command to which a number of ranks and what to run are added; empty: none is needed."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def list_processes(
        self,
        hosts: Sequence[BenchHost],
        ranks: int,
        arguments: Sequence[str],
        port: int,
        module: str = RANK_MODULE,
    ) -> list[ProcessSpec]:
        """List the processes to start for `ranks` ranks, equally many on each host.

        Each rank runs `module` with `arguments`. `port` is free on rank 0's host; pools that span
        hosts use it for their rendezvous.
        """
        # Between hosts no notice on a file system tells the token.
        token = {"ALLHANDS_TOKEN": secrets.token_hex(16)} if len(hosts) > 1 else {}
        base = {**make_base_environment(os.environ), **self.environment, **token}
        own = self.system in ALLHANDS
        job = ("--contender", self.system, *arguments)
        if own:
            rank = (self.python, "-m", module, *job)
        else:
            rank = (self.python, "-c", _AS_RANK, _HERE, module, *job)
        if self.mpirun:
            return [ProcessSpec((*self.mpirun, "-n", str(ranks), *rank), base)]
        if own and len(hosts) == 1 and self.system != TORCH:
            launcher = (self.python, "-m", "allhands.cli.main", "run", "-n", str(ranks), "-m")
            return [ProcessSpec((*hosts[0].command_prefix, *launcher, *rank[2:]), base)]
        return [
            ProcessSpec(
                (*host.command_prefix, *rank),
                {**base, **_make_rank_environment(hosts, host, number, ranks, port)},
            )
            for number, host in _assign_hosts(hosts, ranks)
        ]


def _assign_hosts(hosts: Sequence[BenchHost], ranks: int) -> Iterator[tuple[int, BenchHost]]:
    for number in range(ranks):
        yield number, hosts[number * len(hosts) // ranks]


def _make_rank_environment(
    hosts: Sequence[BenchHost], host: BenchHost, rank: int, ranks: int, port: int
) -> dict[str, str]:
    local = ranks // len(hosts)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(port),
        "ALLHANDS_INSECURE": "1",
        "GLOO_SOCKET_IFNAME": host.interface,
    }


def _find_allhands(system: str) -> Launcher:
    import allhands as ah

    if system == TORCH:
        _require_modules(system, sys.executable, {**_NEEDED_BY_TORCH, "ml_dtypes": "ml_dtypes"})
    needs = {"allhands-arena": "empty", "allhands-persistent": "all_reduce_init"}
    name = needs.get(system)
    if name is not None and not hasattr(ah, name):
        raise SystemMissing(f"{system} needs `allhands.{name}`, which this release does not have")
    return Launcher(system, sys.executable)


def _find_mpi(system: str, python: str) -> Launcher:
    _require_modules(system, python, {"mpi4py": "mpi4py", "numpy": "numpy"})
    if system == "openmpi":
        names = ("mpirun.openmpi", "mpirun", "mpiexec.openmpi", "mpiexec")
        mpirun = _find_mpirun(system, python, names, "Open MPI", "apt install openmpi-bin")
        # More ranks than cores are allowed, and Open MPI then yields by itself; bound to a core
        # each, ranks of other contenders would find it taken.
        options = ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
        environment = _find_library_environment(python, mpirun, "Open MPI", "openmpi")
        return Launcher(system, python, (mpirun, *options), environment)
    names = ("mpiexec.hydra", "mpiexec.mpich", "mpiexec", "mpirun")
    mpirun = _find_mpirun(system, python, names, "HYDRA", "pip install mpich")
    return Launcher(
        system, python, (mpirun,), _find_library_environment(python, mpirun, "MPICH", "mpich")
    )


def _find_mpirun(system: str, python: str, names: Sequence[str], sign: str, remedy: str) -> str:
    """Find the launcher of one MPI, beside the Python first: all MPIs call theirs the same."""
    beside = str(Path(shutil.which(python) or python).parent)
    for folder in (beside, None):
        for name in names:
            path = shutil.which(name, path=folder)
            if path is not None and sign in _read_output([path, "--version"]):
                return path
    raise SystemMissing(
        f"{system} needs its {names[1]}, and neither PATH nor {beside} has one: `{remedy}`"
    )


def _find_library_environment(python: str, mpirun: str, sign: str, abi: str) -> Mapping[str, str]:
    """Find the setting with which mpi4py loads this MPI: its wheels can load several."""
    libraries = sorted(Path(mpirun).resolve().parent.parent.glob("lib*/**/libmpi.so*"))[:1]
    candidates: list[dict[str, str]] = [{}, {"MPI4PY_MPIABI": abi}]
    candidates += [{"MPI4PY_LIBMPI": str(one), "MPI4PY_MPIABI": abi} for one in libraries]
    said = ""
    for candidate in candidates:
        said = _read_output([python, "-c", _PRINT_LIBRARY], candidate)
        if sign in said:
            return candidate
    raise SystemMissing(
        f"mpi4py of {python} does not load the {sign} of {mpirun}: install mpi4py 4.1 or later "
        f"there, or one built for it (it said: {said.strip().splitlines()[-1:]})"
    )


def _require_modules(system: str, python: str, modules: Mapping[str, str]) -> None:
    if shutil.which(python) is None:
        raise SystemMissing(f"{system} should run under {python}, which is no program here")
    ask = (
        "import importlib.util as u, sys; "
        "print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])"
    )
    missing = _read_output([python, "-c", ask, *modules]).split()
    if missing:
        wanted = " ".join(modules.get(name, name) for name in missing)
        other = f", or another Python that has it: --{system}-python"
        raise SystemMissing(
            f"{system} needs `{python} -m pip install {wanted}`"
            f"{'' if system in ALLHANDS else other}"
        )


def _read_output(command: Sequence[str], more: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env={**make_base_environment(os.environ), **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout
