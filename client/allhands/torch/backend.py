"""Registration of the backend with torch.distributed."""

import importlib.util
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from allhands.runtime.loading import pause_gc
from allhands.torch.names import FAKE, NAME, SCHEME

if TYPE_CHECKING:
    from allhands.torch.process_group import ProcessGroup
    from allhands.torch.rendezvous.init_method import JoinedStores
    from allhands.torch.rendezvous.store import Store


def register() -> None:
    """Make the backend, `ah://` and `fake://` known to torch.distributed. Idempotent."""
    if SCHEME not in _rendezvous_handlers:
        dist.register_rendezvous_handler(SCHEME, UrlRendezvous())
    if FAKE not in _rendezvous_handlers:
        dist.register_rendezvous_handler(FAKE, rendezvous_fake)
    if NAME.upper() not in dist.Backend._plugins:
        found = list_devices(torch.backends.cuda.is_built())
        dist.Backend.register_backend(NAME, ProcessGroupFactory(), extended_api=True, devices=found)
    if os.environ.get("ALLHANDS_TORCH_AS"):
        from allhands.torch.gloo_name import answer_as_asked  # with all that a group takes

        answer_as_asked(os.environ)


def list_devices(has_cuda: bool) -> list[str]:
    """Return the devices registered for the backend.

    PyTorch takes CUDA's where they are among them, as ShardedTensor does, without a look whether
    there are any. As a list: a string, or a tuple's default, it takes for other things.
    """
    return ["cpu", "cuda"] if has_cuda else ["cpu"]


def require_ml_dtypes() -> None:
    """Check that ml_dtypes is installed, before this process joins any world.

    Raises:
        ImportError: ml_dtypes is missing, so that NumPy has no bfloat16 and float8.
    """
    if importlib.util.find_spec("ml_dtypes") is None:
        raise ImportError(
            "the backend 'allhands' of torch.distributed needs ml_dtypes, which is not installed: "
            "pip install 'allhands[torch]'",
            name="ml_dtypes",
        )


class UrlRendezvous:
    """Rendezvous handler of `ah://` URLs; kept for the life of the process."""

    def __init__(self) -> None:
        self._stores: JoinedStores | None = None

    def __call__(
        self, url: str, timeout: timedelta | None = None, **_: Any
    ) -> "Iterator[tuple[Store, int, int]]":
        """Give a store, this process's rank and how many there are, once; see `rendezvous`."""
        require_ml_dtypes()
        from allhands.torch.rendezvous.init_method import JoinedStores

        if self._stores is None:
            self._stores = JoinedStores()
        store = self._stores.join(url, timeout)
        yield store, store.world.group.rank, store.world.group.size


def rendezvous_fake(url: str, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Rendezvous handler of `init_method="fake://"`; see `fake`."""
    from allhands.torch.rendezvous import fake

    return fake.open_fake_rendezvous(url)


class ProcessGroupFactory:
    """Factory of process groups; kept by PyTorch for the life of the process.

    It keeps the TCPStore of the last default group alive: rank 0 hosts that, and the others, who
    leave a world before rank 0 does, may be on their way to the next one by then.
    """

    def __init__(self) -> None:
        self._last_store: Any = None

    def __call__(self, opts: Any, pg_options: Any = None) -> "ProcessGroup":
        """Make a process group; see `worlds`."""
        require_ml_dtypes()
        with pause_gc():
            from allhands.recorder import source
            from allhands.torch import patches, worlds
            from allhands.torch.compile import operators
            from allhands.torch.options import refuse_options
            from allhands.torch.process_group import ProcessGroup
            from allhands.torch.rendezvous.store import unwrap_prefix

        refuse_options(pg_options)
        source.skip_folder(os.path.dirname(torch.__file__))
        # Not before: programs hide devices (CUDA_VISIBLE_DEVICES) until they make a group.
        dist.Backend.backend_capability[NAME] = list_devices(torch.cuda.device_count() > 0)
        operators.install(ProcessGroup)
        patches.install()
        group = worlds.open_group(opts)
        store = unwrap_prefix(opts.store)
        if not opts.global_ranks_in_group:
            self._last_store = store if isinstance(store, dist.TCPStore) else None
        return group
