"""Builds allhands._native, the one extension, from all C files of client/allhands/native.

It needs a C compiler and Python's headers. What lacks them installs all the same, says so, and uses
links. ALLHANDS_NATIVE=0 leaves the extension out; ALLHANDS_NATIVE=require makes an installation
without it fail. CC, CFLAGS and LDFLAGS mean what they usually mean; _PYTHON_HOST_PLATFORM, as
linux-aarch64, names another machine that CC compiles for.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("client", "allhands")
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
EXTENSION = "_native" + SUFFIX.replace(platform.machine(), PLATFORM.removeprefix("linux_"))
# What makes sums the same everywhere is -ffp-contract=off; what makes integers wrap, -fwrapv.
FLAGS = shlex.split(
    "-O3 -std=c11 -fwrapv -ffp-contract=off -fvisibility=hidden -pthread -Wall -Wextra"
)


class Missing(Exception):
    """Why there is no native core."""


class NativeCore(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        in_place = root / PACKAGE / EXTENSION
        if version == "editable":
            # Whatever comes of this build, an older one is of older sources.
            in_place.unlink(missing_ok=True)
        wanted = os.environ.get("ALLHANDS_NATIVE", "")
        if wanted not in ("", "0", "1", "require"):
            raise ValueError(f"ALLHANDS_NATIVE must be 0, 1 or require, not {wanted!r}")
        try:
            if wanted == "0":
                raise Missing("ALLHANDS_NATIVE is 0")
            self._folder = tempfile.TemporaryDirectory(prefix="allhands-native-")
            built = Path(self._folder.name, EXTENSION)
            compile_extension(root / PACKAGE / "native", built)
        except Missing as missing:
            if wanted == "require":
                raise RuntimeError(
                    f"ALLHANDS_NATIVE is require, but the native core was not built: {missing}"
                ) from missing
            self.app.display_warning(
                f"allhands is installed without its native core: {missing}. Ranks of one host "
                "will use links, which are slower. For the native core install gcc and the "
                "headers of Python (Debian: apt install gcc libc6-dev python3-dev), and install "
                "allhands again with pip's --no-cache-dir, or this build is taken again."
            )
            # Not py3-none-any: this is no wheel for every machine, and no index is to take it.
            build_data["tag"] = f"py3-none-{PLATFORM}"
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            shutil.move(built, in_place)
        else:
            build_data["force_include"][str(built)] = f"allhands/{EXTENSION}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def compile_extension(folder: Path, built: Path) -> None:
    """Make `built` from all C files below `folder`.

    Raises:
        Missing: it cannot be made here; the text says why.
    """
    import numpy

    command = [
        *compiler(),
        *FLAGS,
        "-shared",
        "-fPIC",
        f"-I{folder}",
        f"-I{sysconfig.get_path('include')}",
        f"-I{sysconfig.get_path('platinclude')}",
        f"-I{numpy.get_include()}",
        *shlex.split(os.environ.get("CFLAGS", "")),
        *map(str, sorted(folder.rglob("*.c"))),
        "-ldl",
        *shlex.split(os.environ.get("LDFLAGS", "")),
        f"-o{built}",
    ]
    said = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stderr.write(said.stdout)
    if said.returncode:
        errors = [line for line in said.stdout.splitlines() if "error" in line]
        reason = next(iter(errors), f"exit status {said.returncode}")
        raise Missing(f"{shlex.join(command[:1])} failed: {reason}")


def compiler() -> list[str]:
    """The command of the C compiler: that of CC, of this Python, or one of the usual."""
    for name in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "gcc", "cc", "clang"):
        words = shlex.split(name or "")
        if words and shutil.which(words[0]):
            return words
    raise Missing("there is no C compiler (gcc, cc and clang are not on PATH)")
