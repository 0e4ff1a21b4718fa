"""All ranks, together: collective communication among Python processes.

The public names are listed in `__init__.pyi`; each is imported when first used, so that commands
which need no arrays answer at once.
"""

import os
import sys

import lazy_loader

from allhands.runtime.loading import pause_gc

if sys.platform != "linux":
    raise ImportError(f"allhands runs on Linux only, and this is {sys.platform}")

# Before anything imports gRPC, which reads it only then. Its own way with forks starts its threads
# anew in every forked child of a rank, where they crash (grpcio 1.85: in half of the children). A
# child is no rank; without this it is let alone.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_public = frozenset(__all__)


def __getattr__(name: str) -> object:
    """Import the module of a public name.

    Raises:
        AttributeError: there is no such name; the text has the nearest one.
    """
    if name in _public:
        with pause_gc():
            return _load(name)
    from allhands.suggestions import make_public_name_error

    raise make_public_name_error(name, _public)
