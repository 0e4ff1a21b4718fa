"""The hook by which `from mpi4py import MPI` gets the MPI of allhands.

Where mpi4py is installed, its parts in Python (`mpi4py.util`, `mpi4py.futures`) are its own, over
this MPI; its compiled part is never loaded. Where it is not, there is a package of that name with
nothing but `MPI` and `rc`.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PACKAGE = "mpi4py"
MODULE = "mpi4py.MPI"
VERSION = "4.1.2"
"""Release of mpi4py whose interface this is."""
_PARTS = ("util", "futures", "bench", "run", "typing")


class Rc:
    """Options that a program sets before it imports MPI: see `mpi4py.rc`."""

    initialize = True
    threads = True
    thread_level = "multiple"
    finalize: bool | None = None
    fast_reduce = True
    recv_mprobe = True
    irecv_bufsz = 32768
    errors = "exception"

    def __init__(self, **options: Any) -> None:
        self(**options)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(self, name):
            raise TypeError(f"object has no attribute {name!r}")
        super().__setattr__(name, value)

    def __call__(self, **options: Any) -> None:
        """Set options."""
        for name in options:
            if not hasattr(self, name):
                raise TypeError(f"unexpected argument {name!r}")
        for name, value in options.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return "<mpi4py.rc>"


class _Loader(importlib.abc.Loader):
    """Loads the module of allhands under another name."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return importlib.import_module("allhands.mpi.MPI")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is loaded already."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `mpi4py.MPI`, and says what is missing where mpi4py is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == MODULE:
            return importlib.machinery.ModuleSpec(MODULE, _Loader())
        package, _, part = fullname.partition(".")
        if package == PACKAGE and part in _PARTS and not _is_installed():
            raise ModuleNotFoundError(
                f"{fullname} is a part of mpi4py in Python, which is not installed: "
                f"pip install mpi4py=={VERSION} (its compiled MPI will not be used)",
                name=fullname,
            )
        return None


def install() -> None:
    """Let later imports of `mpi4py.MPI` in this process get the MPI of allhands.

    Raises:
        RuntimeError: the compiled MPI of mpi4py has been loaded.
    """
    loaded = sys.modules.get(MODULE)
    if loaded is not None:
        if loaded.__name__ == "allhands.mpi.MPI" or hasattr(loaded, "_runtime"):
            return
        raise RuntimeError(
            "mpi4py.MPI was imported before: run the program by `python -m allhands.mpi`, or call "
            "install() before anything imports it"
        )
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    if PACKAGE not in sys.modules and not _is_installed():
        _make_package()


def _is_installed() -> bool:
    package = sys.modules.get(PACKAGE)
    if package is not None:
        return bool(getattr(package, "__file__", None))
    spec = importlib.machinery.PathFinder.find_spec(PACKAGE)
    return spec is not None and spec.origin is not None


def _make_package() -> None:
    package: Any = ModuleType(PACKAGE, "MPI for Python, over allhands.")
    package.__path__ = []
    package.__spec__ = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
    package.__version__ = VERSION
    package.rc = Rc()
    package.get_config = dict
    package.get_include = _refuse_include
    sys.modules[PACKAGE] = package
    sys.modules[f"{PACKAGE}.rc"] = package.rc


def _refuse_include() -> str:
    raise NotImplementedError("there is no MPI for C: the MPI of allhands is one of Python")
