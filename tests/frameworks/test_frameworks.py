"""Lightning, also with forked ranks, accelerate and a Trainer of transformers: as over Gloo.

`make test-frameworks` installs what this wants and says in figures how the two backends compare.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).with_name("programs.py")
SECONDS = 240.0
ALONE = ("lightning_forks",)
"""Programs that start their ranks themselves."""


def trained(framework: str, backend: str, tmp_path: Path, **variables: str) -> dict[str, Any]:
    """Return the result printed by rank 0 of two."""
    kept = {name: value for name, value in os.environ.items() if "ALLHANDS" not in name}
    kept |= {"XDG_RUNTIME_DIR": str(tmp_path), **variables}
    launch = (sys.executable, "-m", "allhands.cli.main", "run", "-n", "2")
    if framework in ALONE:
        launch = (sys.executable,)
    done = subprocess.run(
        [*launch, str(PROGRAMS), framework, backend],
        env=kept,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [said] = [line for line in done.stdout.splitlines() if '{"backend"' in line]
    found = json.loads(said.removeprefix("[0] "))
    assert isinstance(found, dict)
    return found


@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("framework", ["lightning", *ALONE, "accelerate", "transformers"])
def test_ten_steps_end_in_the_numbers_of_gloo(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework.partition("_")[0])
    wanted = trained(framework, "gloo", tmp_path)
    found = trained(framework, "allhands", tmp_path)
    unchanged = trained(framework, "gloo", tmp_path, ALLHANDS_TORCH_AS="gloo")
    assert (wanted["backend"], wanted["group"]) == ("gloo", "ProcessGroup of torch")
    assert (found["backend"], found["group"]) == ("allhands", "ProcessGroup of allhands")
    assert (unchanged["backend"], unchanged["group"]) == ("gloo", "ProcessGroup of allhands")
    print(f"\n{framework}: Gloo {wanted['seconds']:.2f} s, allhands {found['seconds']:.2f} s;")
    print(f"    losses {found['losses']}")
    for one in (found, unchanged):
        assert one["losses"] == wanted["losses"]
        assert one["weights"] == wanted["weights"]
