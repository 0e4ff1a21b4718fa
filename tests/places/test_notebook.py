"""examples/notebook.ipynb, executed by a kernel of Jupyter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook.ipynb"
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=60).execute()
nbformat.write(notebook, sys.argv[2])
"""


def execute(folder: Path) -> list[Any]:
    """Execute the notebook in a process of its own; return its cells with outputs."""
    executed = folder / "executed.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(executed)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "IPYTHONDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells: list[Any] = json.loads(executed.read_text())["cells"]
    return cells


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_every_cell_runs_and_shows_what_its_text_says(tmp_path: Path) -> None:
    shown = [
        "".join(map(read_text, cell["outputs"]))
        for cell in execute(tmp_path)
        if cell["cell_type"] == "code"
    ]
    imports, processes, threads, absent, alone = shown
    assert imports == ""
    assert processes.count("array([1.5, 1.5, 1.5])") == 4
    assert threads.count("array([1.5, 1.5])") == 4
    assert absent.count("missing (2,)") == 2
    assert "busy elsewhere" in absent
    assert alone == "1 [0. 1. 2.]\n"


def read_text(output: Any) -> str:
    """Return what an output shows as text."""
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])
