"""The native core, where the installation could build it."""

import importlib
import os
from types import ModuleType

_ABSENT = (
    "the native core is missing ({error}): ranks of one host talk over links, which is slower; "
    "install a C compiler and then allhands again (pip install --force-reinstall allhands)"
)


def find() -> tuple[ModuleType | None, str]:
    """Return the core, or None and what a user should know about its absence."""
    try:
        core = importlib.import_module("allhands._native")
    except ImportError as error:
        return None, _ABSENT.format(error=error)
    # Where a call was made is told of who calls this package, which its own programs may do too.
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
    core.skip_frames_of(package, os.path.join(package, "bench", ""))
    return core, ""
