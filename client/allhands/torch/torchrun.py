"""Entry point of torchrun's `--rdzv-backend=allhands`."""

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """Return the factory of rendezvous handlers; loads nothing yet."""
    return _create


def _create(parameters: Any) -> Any:
    from allhands.torch.rendezvous.elastic import make_handler

    return make_handler(parameters)
