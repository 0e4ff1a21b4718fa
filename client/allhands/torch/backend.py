"""The backend's place in torch.distributed: what makes process groups of that name."""

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from allhands.torch.process_group import ProcessGroup

NAME = "allhands"
DEVICES = ("cpu", "cuda")


def register() -> None:
    """Make the backend known to torch.distributed. Idempotent."""
    if NAME.upper() not in dist.Backend._plugins:
        # Devices as a list: PyTorch takes a string, and a tuple's default, for other things.
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=list(DEVICES))


def create(opts: Any, pg_options: Any = None) -> "ProcessGroup":
    """Make a process group as torch.distributed asks for one; see `places`."""
    from allhands.torch import operators, places, ways_round

    if pg_options is not None:
        raise ValueError("allhands takes no pg_options: pass None, and timeouts by timeout=")
    operators.install()
    ways_round.take()
    return places.open_group(opts)
