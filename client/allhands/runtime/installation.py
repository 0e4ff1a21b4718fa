"""Origin of this installation of the package, as pip has recorded it."""

import functools
import importlib.metadata
import json
import shlex


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
