"""The backend's place in torch.distributed: what makes process groups of that name."""

import importlib.util
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

if TYPE_CHECKING:
    from allhands.torch.process_group import ProcessGroup
    from allhands.torch.rendezvous import Given
    from allhands.torch.store import Store

NAME = "allhands"
SCHEME = "ah"
FAKE = "fake"
DEVICES = ("cpu", "cuda")


def register() -> None:
    """Make the backend, `ah://` and `fake://` known to torch.distributed. Idempotent."""
    if SCHEME not in _rendezvous_handlers:
        dist.register_rendezvous_handler(SCHEME, Rendezvous())
    if FAKE not in _rendezvous_handlers:
        dist.register_rendezvous_handler(FAKE, meet_nobody)
    if NAME.upper() not in dist.Backend._plugins:
        # Devices as a list: PyTorch takes a string, and a tuple's default, for other things.
        dist.Backend.register_backend(NAME, Creator(), extended_api=True, devices=list(DEVICES))


def require_ml_dtypes() -> None:
    """Check that ml_dtypes is installed, before this process joins any world.

    Raises:
        ImportError: it is not; PyTorch's bfloat16 and float8 could not be told to NumPy.
    """
    if importlib.util.find_spec("ml_dtypes") is None:
        raise ImportError(
            "the backend 'allhands' of torch.distributed needs ml_dtypes, which is not installed: "
            "pip install 'allhands[torch]'",
            name="ml_dtypes",
        )


class Rendezvous:
    """What PyTorch calls with an `ah://` URL, and keeps for as long as the process."""

    def __init__(self) -> None:
        self._given: Given | None = None

    def __call__(
        self, url: str, timeout: timedelta | None = None, **_: Any
    ) -> "Iterator[tuple[Store, int, int]]":
        """Give a store, this process's rank and how many there are, once; see `rendezvous`."""
        require_ml_dtypes()
        from allhands.torch.rendezvous import Given

        if self._given is None:
            self._given = Given()
        store = self._given.join(url, timeout)
        yield store, store.world.group.rank, store.world.group.size


def meet_nobody(url: str, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Give what `init_method="fake://"` wants; see `fakes`."""
    from allhands.torch import fakes

    return fakes.rendezvous(url)


class Creator:
    """What PyTorch calls for a process group, and keeps for as long as the process.

    It keeps the TCPStore of the last default group alive: rank 0 hosts that, and the others, who
    leave a world before rank 0 does, may be on their way to the next one by then.
    """

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, opts: Any, pg_options: Any = None) -> "ProcessGroup":
        """Make a process group; see `places`."""
        require_ml_dtypes()
        from allhands.recorder import source
        from allhands.torch import operators, places, ways_round
        from allhands.torch.store import whole

        if pg_options is not None:
            raise ValueError("allhands takes no pg_options: pass None, and timeouts by timeout=")
        source.skip(os.path.dirname(torch.__file__))
        operators.install()
        ways_round.take()
        group = places.open_group(opts)
        store = whole(opts.store)
        if not opts.global_ranks_in_group:
            self._last = store if isinstance(store, dist.TCPStore) else None
        return group
