"""Build what is published, into dist: the sdist, and a wheel for each Python and each machine.

    python release/wheels.py PYTHON ...

One wheel for each version of Python, not one for all: within the limited API a call of 8 bytes
takes 1.3 times as long, because of how the caller's line and deadline are found there. zig compiles
for both machines against an old glibc, auditwheel checks and names that, and every wheel that can
be tried here is: two ranks, in a new environment. Pythons that are not here are told of at the end.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
GLIBC = "2.27"
"""The first that knows memfd_create: that of Red Hat 8, Debian 10, and later."""
MACHINES = ("x86_64", "aarch64")
RELEASES = ("3.11", "3.12", "3.13", "3.14")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

_ABOUT = """
import json, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
print(json.dumps([version, sys.executable, sysconfig.get_config_h_filename()]))
"""


@dataclass(frozen=True)
class Python:
    version: str
    executable: str
    configuration: Path
    """Its pyconfig.h."""


def main(names: list[str]) -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(DIST, ignore_errors=True)
    pythons = {python.version: python for name in reversed(names) for python in find(name)}
    source = build_sdist()
    for version in sorted(pythons, key=RELEASES.index):
        compiling = environment(
            WORK / version, pythons[version], PROJECT["build-system"]["requires"]
        )
        for machine in MACHINES:
            wheel = build_wheel(source, pythons[version], compiling, machine)
            if machine == platform.machine():
                attempt(wheel, pythons[version])
    run("twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    print(*(path.name for path in sorted(DIST.iterdir())), sep="\n")
    if missing := [version for version in RELEASES if version not in pythons]:
        print(f"no wheels for Python {', '.join(missing)}: not among {' '.join(names)}")
    repository = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    if ".example/" in repository:
        print(f"not to be published yet: no such place as {repository}, see pyproject.toml")


def find(name: str) -> list[Python]:
    """Return the Python of that name or path if it is there, runs, and has headers."""
    told = (
        subprocess.run([name, "-c", _ABOUT], capture_output=True, text=True)
        if shutil.which(name)
        else None
    )
    if told is None or told.returncode:
        return []
    version, executable, configuration = json.loads(told.stdout)
    there = version in RELEASES and Path(configuration).exists()
    return [Python(version, executable, Path(configuration))] if there else []


def build_sdist() -> Path:
    """Return where the sdist lies unpacked: wheels are built from nothing else."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(DIST), where=ROOT)
    (archive,) = DIST.iterdir()
    WORK.mkdir(parents=True)
    run("tar", "-xf", str(archive), where=WORK)
    return WORK / archive.name.removesuffix(".tar.gz")


def environment(folder: Path, python: Python, requirements: list[str]) -> Path:
    """Make a virtual environment with these installed; return its programs."""
    run(python.executable, "-m", "venv", "--clear", str(folder))
    run(
        str(folder / "bin" / "pip"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *requirements,
    )
    return folder / "bin"


def build_wheel(source: Path, python: Python, compiling: Path, machine: str) -> Path:
    built = WORK / f"{python.version}-{machine}"
    # Debian's pyconfig.h leads to one for each machine, in directories that only its own compilers
    # search. Those of 64-bit machines with glibc say the same where this package looks.
    headers = built / "include"
    leaf = headers / f"{machine}-linux-gnu" / f"python{python.version}"
    leaf.mkdir(parents=True)
    shutil.copy(python.configuration, leaf / "pyconfig.h")
    run(
        *(
            str(compiling / "python"),
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-d",
            str(built / "raw"),
        ),
        where=source,
        ALLHANDS_NATIVE="require",
        CC=f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}",
        CFLAGS=f"-I{headers} -Wno-pass-failed",
        LDFLAGS="-s",
        ZIG_GLOBAL_CACHE_DIR=str(WORK / "zig"),
        ZIG_LOCAL_CACHE_DIR=str(WORK / "zig"),
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
    )
    (raw,) = (built / "raw").iterdir()
    # Named after what it needs. A platform can be asked for only where it is this machine's.
    run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(built / "named"), str(raw))
    (named,) = (built / "named").iterdir()
    wanted = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    if wanted not in named.name:
        sys.exit(f"{named.name} is not {wanted}: see `auditwheel show {raw}`")
    return Path(shutil.copy(named, DIST))


def attempt(wheel: Path, python: Python) -> None:
    programs = environment(WORK / f"trying-{python.version}", python, [str(wheel)])
    two_ranks = str(ROOT / "release" / "two_ranks.py")
    print(run(str(programs / "allhands"), "run", "-n", "2", two_ranks, where=WORK), end="")


def run(*command: str, where: Path = ROOT, **variables: str) -> str:
    """Return what the command prints; end with everything that it said where it fails."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=where,
        env={**os.environ, "PATH": path, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
