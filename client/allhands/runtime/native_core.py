"""The native core, if the installation built the extension module."""

import functools
import importlib
import importlib.metadata
import json
import os
import shlex
from types import ModuleType

_ABSENT = (
    "the native core is missing ({error}): ranks of one host talk over links, which is slower; "
    "install a C compiler and the headers of Python (Debian: apt install gcc libc6-dev "
    "python3-dev), then build allhands anew: {command}"
)


def find() -> tuple[ModuleType | None, str]:
    """Return the native core, or None and the reason for users."""
    try:
        core = importlib.import_module("allhands._native")
    except ImportError as error:
        return None, _ABSENT.format(error=error, command=get_rebuild_command())
    # Where a call was made is told of who calls this package, which its own programs may do too.
    package = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
    core.skip_frames_of(package, os.path.join(package, "bench", ""))
    return core, ""


@functools.cache
def get_rebuild_command() -> str:
    """Return the pip command that builds this installation again, from the same origin.

    pip keeps the wheel built without a compiler, and installs that wheel even with
    --force-reinstall: only --no-cache-dir makes pip build.
    """
    return f"pip install --no-cache-dir --force-reinstall --no-deps {_find_origin()}"


def _find_origin() -> str:
    """Return pip's origin of the installation: allhands==VERSION, a directory, archive or URL."""
    try:
        installed = importlib.metadata.distribution("allhands")
    except importlib.metadata.PackageNotFoundError:
        return "allhands"
    # PEP 610; there is none where a name was resolved in an index.
    direct = json.loads(installed.read_text("direct_url.json") or "{}")
    if "url" not in direct:
        return f"allhands=={installed.version}"
    editable = "--editable " if direct.get("dir_info", {}).get("editable") else ""
    url: str = direct["url"]
    if "vcs_info" in direct:
        url = f"{direct['vcs_info']['vcs']}+{url}@{direct['vcs_info']['commit_id']}"
    if "subdirectory" in direct:
        url += f"#subdirectory={direct['subdirectory']}"
    return editable + shlex.quote(url)
