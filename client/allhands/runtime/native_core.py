"""The native core, if the installation built the extension module."""

import importlib
import os
from types import ModuleType

_ABSENT = (
    "the native core is missing ({error}): ranks of one host talk over links, which is slower; "
    "install a C compiler and the headers of Python (Debian: apt install gcc libc6-dev "
    "python3-dev), then build allhands anew: {command}"
)

# Where a call was made is told of who calls this package, which its own programs may do too.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PROGRAMS = os.path.join(_PACKAGE, "bench", "")


def find() -> tuple[ModuleType | None, str]:
    """Return the native core, or None and the reason for users."""
    try:
        core = importlib.import_module("allhands._native")
    except ImportError as error:
        # Metadata of distributions takes long to import, for an advice that few need.
        from allhands.runtime.installation import get_rebuild_command

        return None, _ABSENT.format(error=error, command=get_rebuild_command())
    core.skip_frames_of(_PACKAGE, _PROGRAMS)
    return core, ""
