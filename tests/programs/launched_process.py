"""A rank that prints as JSON what it can see of the way in which it was started.

Without functions: what the main module holds at first, and the stack, are part of that.
"""

NAMES_AT_FIRST = sorted(globals())

import ctypes  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

_PR_GET_PDEATHSIG = 2  # linux/prctl.h
# Not SigQ, which counts what is queued for all processes of the user.
_SIGNAL_SETS = "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"

_death_signal = ctypes.c_int()
ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(_death_signal))
_status = dict(
    line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
)
_limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
_streams = sys.stdin, sys.stdout, sys.stderr

json.dump(
    {
        "names at first": NAMES_AT_FIRST,
        "file": __file__,
        "package": __package__,
        "spec": None if __spec__ is None else __spec__.name,
        "is main": sys.modules["__main__"].__dict__ is globals(),
        "arguments": [sys.argv, sys.orig_argv, Path("/proc/self/cmdline").read_text()],
        "name": Path("/proc/self/comm").read_text(),
        "path": sys.path,
        "flags": [repr(sys.flags), sys._xoptions, sys.warnoptions],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "leads its session": os.getpid() == os.getpgrp() == os.getsid(0),
        "parent": os.getppid(),
        "death signal": _death_signal.value,
        "signals": {name: _status[name] for name in _SIGNAL_SETS},
        "handlers": {str(one): str(signal.getsignal(one)) for one in signal.valid_signals()},
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _limits},
        "cores, priority, mask": [[*os.sched_getaffinity(0)], os.nice(0), _status["Umask"]],
        "descriptors": {
            number: os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
            for number in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{number}")
        },
        "streams": [
            [one.name, one.encoding, one.errors, one.line_buffering, one.isatty(), one.seekable()]
            for one in _streams
        ],
        "input": sys.stdin.read(),
        "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
        "garbage": [gc.isenabled(), *gc.get_threshold()],
        "stack": [[one.filename, one.function] for one in inspect.stack()],
        "customized": [name for name in sys.modules if "sitecustomize" in name],
        "draw": random.random(),
    },
    sys.stdout,
)
print()
