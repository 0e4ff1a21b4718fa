"""torchrun with its own rendezvous: ranks of a host that find their world by themselves."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_program_without_pytorch_is_a_world_under_torchrun(tmp_path: Path) -> None:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ALLHANDS_")}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [sys.executable, *command, str(ROOT / "examples/hello.py")],
        env={**kept, "XDG_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"hello from rank {rank} of 3: all ranks add up to 3" in done.stdout, done
    assert "world size 3, 3 joined" in done.stdout
