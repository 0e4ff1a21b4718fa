"""Forked children: inherited threads, event loops and gRPC objects are left alone.

Of the parent's threads only the one that forks goes on in the child. Whatever waits there for one
of the others, or for a lock that it held, waits for ever; so does freeing gRPC's objects, which
joins a thread (grpcio 1.85), and freeing those of an event loop takes descriptors out of the epoll
instance that parent and child share. So nothing of that kind is ever freed in a child, and gRPC is
loaded a second time there once it is wanted.
"""

import gc
import importlib.machinery
import importlib.util
import os
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

_CORE = "grpc._cython.cygrpc"
"""The module in C++ with all that gRPC has of state, threads and locks."""
_PLAIN = type(None), bool, int, float, str, bytes, tuple

generation = 0
"""How many forks lie between this process and the one that imported this module."""


@runtime_checkable
class ForkAware(Protocol):
    """An object to be notified in a forked child."""

    def forked(self) -> None:
        """Adapt to the child; must not wait, nor free inherited objects."""


class _Inheritance:
    """Objects inherited from the parent, or left to children."""

    def __init__(self) -> None:
        self.held: weakref.WeakSet[object] = weakref.WeakSet()
        self.uses_grpc = False
        self.has_stale_grpc = False
        self.for_ever: list[object] = []
        # Refers to itself, and is not looked at by the collector after `gc.freeze`: so it stays
        # when the interpreter ends, too.
        self.for_ever.append(self.for_ever)


_inheritance = _Inheritance()


def hold(one: object) -> None:
    """Keep children forked from now on from freeing `one` and all objects it refers to.

    If `one` is `ForkAware`, its `forked` is called in the child.
    """
    _inheritance.held.add(one)


def is_inherited(born: int) -> bool:
    """Whether an object made at that generation belongs to a parent process."""
    return born != generation


def use_grpc() -> None:
    """Make gRPC usable in this process; call before making a channel or server.

    Raises:
        RuntimeError: the parent has used it, and it cannot be loaded a second time.
    """
    if _inheritance.has_stale_grpc:
        _load_grpc_anew()
        _inheritance.has_stale_grpc = False
    _inheritance.uses_grpc = True


def _in_child() -> None:
    global generation
    generation += 1
    mine = _inheritance
    held = list(mine.held)
    if held or mine.uses_grpc:
        mine.for_ever.append(held)
        mine.held.clear()
        # Also what nobody refers to any more, but for itself in a circle.
        gc.freeze()
    if mine.uses_grpc:
        mine.uses_grpc, mine.has_stale_grpc = False, True
    for one in held:
        if isinstance(one, ForkAware):
            one.forked()


os.register_at_fork(after_in_child=_in_child)


# ---------------------------------------------------------------- gRPC, a second time


def _load_grpc_anew() -> None:
    """Put a new instance of gRPC's core in the place of the parent's, in all modules of gRPC.

    Classes that callers know, such as `grpc.RpcError`, stay the same. What the parent has made
    goes on referring to the instance that it was made with, which does nothing any more.
    """
    old = sys.modules[_CORE]
    try:
        new = _load_second_instance(old)
    except (OSError, ImportError) as error:
        raise RuntimeError(
            "gRPC cannot be used here: this process was forked from one that has used it, and it "
            f"could not be loaded a second time ({error}); start processes with the methods "
            "'spawn' or 'forkserver' of multiprocessing, or fork them before the first world or "
            "store is made"
        ) from error
    there = vars(new)
    instead = {
        id(value): there[name]
        for name, value in vars(old).items()
        if name in there and not isinstance(value, _PLAIN)
    }
    instead[id(old)] = new
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "grpc" and module not in (None, old, new):
            for attribute, value in list(vars(module).items()):
                if id(value) in instead:
                    setattr(module, attribute, instead[id(value)])


def _load_second_instance(old: ModuleType) -> ModuleType:
    """Load the core from a copy in memory, as the linker reuses known files."""
    assert old.__file__ is not None
    memory = os.memfd_create("grpc", os.MFD_CLOEXEC)
    try:
        with Path(old.__file__).open("rb") as library:
            size = os.fstat(library.fileno()).st_size
            offset = 0
            while offset < size:
                offset += os.sendfile(memory, library.fileno(), offset, size - offset)
        # By the process's number: the linker knows files by their paths, and a child's child may
        # have another one behind the same descriptor.
        path = f"/proc/{os.getpid()}/fd/{memory}"
        loader = importlib.machinery.ExtensionFileLoader(_CORE, path)
        spec = importlib.util.spec_from_file_location(_CORE, path, loader=loader)
        assert spec is not None
        new = importlib.util.module_from_spec(spec)
        new.__file__ = old.__file__
        sys.modules[_CORE] = new
        try:
            loader.exec_module(new)
        except BaseException:
            sys.modules[_CORE] = old
            raise
    finally:
        os.close(memory)
    setattr(sys.modules["grpc._cython"], "cygrpc", new)  # noqa: B010 no attribute that mypy knows
    return new
