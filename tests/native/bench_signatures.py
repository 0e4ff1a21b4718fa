"""Cost of signatures over shared memory: builds of the core with and without, in turns.

    python tests/native/bench_signatures.py [RANKS [SECONDS [OPERATION:BYTES,...]]]

Both builds' ranks are alive at once, and sleep unless it is their turn. A cell is the median over
the rounds of what a call takes without and with signatures, and of their ratio within a round.
"""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

CLIENT = Path(__file__).parents[2] / "client"
RANK = Path(__file__).parents[1] / "programs" / "signature_rank.py"
BUILDS = {"unsigned": ["-DAH_UNSIGNED"], "signed": []}
FLAGS = ["-O3", "-std=c11", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
CELLS = "all_reduce:8,all_reduce:1048576,broadcast:8,broadcast:1048576,barrier:0"
BATCH_SECONDS = 0.02
LEAST_ROUNDS = 9


class Crew:
    """The ranks of one build."""

    def __init__(self, folder: Path, flags: list[str], size: int) -> None:
        package = folder / "allhands"
        package.mkdir(parents=True)
        for entry in (CLIENT / "allhands").iterdir():
            if not entry.name.startswith("_native."):
                (package / entry.name).symlink_to(entry)
        made = package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        includes = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
        native = CLIENT / "allhands" / "native"
        includes.append(f"-I{native}")
        sources = map(str, sorted(native.rglob("*.c")))
        command = ["gcc", *FLAGS, *flags, *includes, "-shared", "-fPIC", *sources, "-o", str(made)]
        subprocess.run(command, check=True)
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            port = door.getsockname()[1]
        root = CLIENT.parent
        environment = {
            **os.environ,
            "PYTHONPATH": f"{folder}:{root / 'proto'}:{root / 'server'}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(size),
            "ALLHANDS_BACKEND": "shm",
        }
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-P", str(RANK)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**environment, "RANK": str(rank)},
            )
            for rank in range(size)
        ]

    def batch(self, operation: str, nbytes: int, count: int) -> float:
        """Make `count` calls; return the seconds per call on the slowest rank."""
        for rank in self._ranks:
            print(json.dumps([operation, nbytes, count]), file=rank.stdin, flush=True)
        return max(float(rank.stdout.readline()) for rank in self._ranks)

    def close(self) -> None:
        for rank in self._ranks:
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait()


def compare(crews: dict[str, Crew], operation: str, nbytes: int, seconds: float) -> str:
    took = min(crew.batch(operation, nbytes, 5) for crew in crews.values())
    count = max(1, min(int(BATCH_SECONDS / took), 20_000))
    rounds: list[dict[str, float]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(rounds) < LEAST_ROUNDS:
        order = list(crews) if len(rounds) % 2 else list(crews)[::-1]
        rounds.append({name: crews[name].batch(operation, nbytes, count) for name in order})
    without, signed = (median(one[name] for one in rounds) * 1e6 for name in BUILDS)
    ratio = median(one["signed"] / one["unsigned"] for one in rounds)
    return (
        f"{operation:12} {nbytes:>9} B  {without:9.3f} us without, {signed:9.3f} us with: "
        f"{ratio:.3f} ({len(rounds)} rounds of {count})"
    )


def main(size: int = 2, seconds: float = 5.0, cells: str = CELLS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        crews = {name: Crew(Path(folder) / name, flags, size) for name, flags in BUILDS.items()}
        try:
            for cell in cells.split(","):
                operation, _, nbytes = cell.partition(":")
                print(f"{size} ranks", compare(crews, operation, int(nbytes), seconds), flush=True)
        finally:
            for crew in crews.values():
                crew.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*(kind(one) for kind, one in zip((int, float, str), given, strict=False)))
