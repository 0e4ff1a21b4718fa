"""The backend's place in torch.distributed: what makes process groups of that name."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

if TYPE_CHECKING:
    from allhands.torch.process_group import ProcessGroup

NAME = "allhands"
FAKE = "fake"
DEVICES = ("cpu", "cuda")


def register() -> None:
    """Make the backend known to torch.distributed. Idempotent."""
    if NAME.upper() not in dist.Backend._plugins:
        # Devices as a list: PyTorch takes a string, and a tuple's default, for other things.
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=list(DEVICES))
    if FAKE not in _rendezvous_handlers:
        dist.register_rendezvous_handler(FAKE, meet_nobody)


def meet_nobody(url: str, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Give what `init_method="fake://"` wants; see `fakes`."""
    from allhands.torch import fakes

    return fakes.rendezvous(url)


def create(opts: Any, pg_options: Any = None) -> "ProcessGroup":
    """Make a process group as torch.distributed asks for one; see `places`."""
    from allhands.torch import operators, places

    if pg_options is not None:
        raise ValueError("allhands takes no pg_options: pass None, and timeouts by timeout=")
    operators.install()
    return places.open_group(opts)
