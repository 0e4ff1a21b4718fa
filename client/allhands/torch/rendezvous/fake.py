"""Fake worlds: any rank of any size in one process, where every call ends at once.

    dist.init_process_group("allhands", init_method="fake://", rank=6, world_size=7)

or with `store=FakeStore()` of PyTorch's testing modules. Shapes, groups and refusals are those of a
real world; the numbers are what this rank would get if all ranks brought what it brings.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist

from allhands import config
from allhands.api.fake import FakeWorld
from allhands.torch.rendezvous.store import unwrap_prefix

_MARK: Final = "allhands/fake"
_FAKE_STORES: Final = "torch.testing._internal.distributed.fake_pg"


def open_fake_rendezvous(url: str) -> Iterator[tuple[Any, int, int]]:
    """Yield a store of this process alone, with the rank and size that PyTorch put into the URL.

    Raises:
        ValueError: they are not there, or no numbers.
    """
    asked = parse_qs(urlsplit(url).query)
    try:
        rank, size = (int(asked[name][-1]) for name in ("rank", "world_size"))
    except (KeyError, ValueError):
        raise ValueError(
            f"fake:// needs rank and world_size, any rank of any world: {url!r}"
        ) from None
    store = dist.HashStore()
    store.set(_MARK, "1")
    yield store, rank, size


def join_fake_world(store: Any, rank: int, size: int, timeout: float) -> FakeWorld | None:
    """Return a fake world if the store is a fake store; None for real stores."""
    store = unwrap_prefix(store)
    is_marked = isinstance(store, dist.HashStore) and store.check([_MARK])
    if not (is_marked or _is_fake(store)):
        return None
    settled = config.resolve_config({}, rank=rank, world_size=size, timeout=timeout, backend="fake")
    return FakeWorld.join(settled)


def _is_fake(store: Any) -> bool:
    """Return whether a store is PyTorch's fake store, without loading its module."""
    module = sys.modules.get(_FAKE_STORES)
    return module is not None and isinstance(store, module.FakeStore)
