"""Where in the program a call was made: kept as it is, put into words when somebody reads."""

import os
import sys
from collections.abc import Callable
from types import CodeType

from allhands.runtime import native_core

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PROGRAMS = os.path.join(_PACKAGE, "bench", "")
"""In the package, and users of it all the same."""
_FILES_KNOWN = 4096

_is_internal: dict[str, bool] = {}
_skipped_folders: list[str] = []


def walk_frames() -> tuple[CodeType | None, int]:
    """Return the code of the innermost frame of the program, and where it is in there.

    That is one outside of this package, and of what is to be skipped too.
    """
    frame = sys._getframe(1)
    while True:
        code = frame.f_code
        inside = _is_internal.get(code.co_filename)
        if inside is None:
            inside = _classify_file(code.co_filename)
        if not inside:
            return code, frame.f_lasti
        if frame.f_back is None:
            return None, 0
        frame = frame.f_back


_core, _ = native_core.find()
find_caller: Callable[[], tuple[CodeType | None, int]] = (
    walk_frames if _core is None else _core.find_caller
)
"""The same, without making frame objects where that can be done without."""


def skip_folder(folder: str) -> None:
    """Look further out also where code of this folder calls, for programs in their stead.

    It is for libraries whose back end this package is. Idempotent.

    Raises:
        ValueError: there are too many of them.
    """
    prefix = os.path.join(os.path.abspath(folder), "")
    if prefix not in _skipped_folders:
        if _core is not None:
            _core.also_skip_frames_of(prefix)
        _skipped_folders.append(prefix)
        _is_internal.clear()


def locate(code: CodeType | None, instruction: int) -> tuple[str, int, str]:
    """Return file, line and function of a call site found by `find_caller`."""
    if code is None:
        return "", 0, ""
    line = next(
        (
            line
            for start, stop, line in code.co_lines()
            if start <= instruction < stop and line is not None
        ),
        code.co_firstlineno,
    )
    return code.co_filename, line, code.co_name


def _classify_file(filename: str) -> bool:
    if len(_is_internal) >= _FILES_KNOWN:  # programs can make up names without end
        _is_internal.clear()
    inside = filename.startswith(_PACKAGE) and not filename.startswith(_PROGRAMS)
    inside = inside or filename.startswith(tuple(_skipped_folders))
    _is_internal[filename] = inside
    return inside
