"""What torchrun finds by `--rdzv-backend=allhands`, as an entry point."""

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """Return what makes a rendezvous handler from torchrun's parameters; loads nothing yet."""
    return _create


def _create(parameters: Any) -> Any:
    from allhands.torch.rendezvous.elastic import make_handler

    return make_handler(parameters)
