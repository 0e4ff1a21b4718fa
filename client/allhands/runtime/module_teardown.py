"""Modules whose teardown at the end of a process is left out.

An interpreter that ends frees what each module has defined, object by object. For NumPy, gRPC and
allhands that takes 10 to 40 ms, for Python's own library 10 more, and in a forked rank it copies
the pages that are shared until then. The system frees all of it at once anyway.
"""

import atexit
import gc
import sys
from types import ModuleType

_TORN_DOWN = ("__main__", "sys", "builtins")
"""The program, and what the end of the interpreter itself needs."""


class KeptModules:
    """Modules that are not torn down when the interpreter ends.

    What a program has put into such a module is not freed by the interpreter either. Handlers of
    `atexit` run as ever, the standard streams are flushed, and all other modules are torn down,
    also if kept ones refer to their functions.
    """

    def __init__(self) -> None:
        """Prepare the end of the process; to be made before modules register handlers for it."""
        self._modules: dict[str, ModuleType] = {}
        self._program: list[ModuleType] = []
        # A cycle out of the collector's sight is what keeps the modules when nobody names them.
        self._itself = self
        atexit.register(self._withdraw)  # the first one of all: it runs last

    def keep_loaded(self) -> None:
        """Keep the modules loaded so far but the program's; freezes all objects there are.

        Frozen objects are none that a collection of garbage looks at, or frees.
        """
        loaded = sys.modules.items()
        self._modules = {name: module for name, module in loaded if name not in _TORN_DOWN}
        gc.freeze()

    def _withdraw(self) -> None:
        """Hide the modules from the interpreter, which tears down those of `sys.modules`."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        # The interpreter clears modules that still exist. The names of one that does not, but whose
        # functions a kept module knows, would stay: with its files, which are written when freed.
        self._program = list(sys.modules.values())
