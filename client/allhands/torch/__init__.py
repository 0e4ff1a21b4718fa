"""PyTorch on allhands: `torch.distributed.init_process_group("allhands")`.

Importing it registers the backend, for "allhands" and for "cpu:allhands"; where the package is
installed, `import torch` does so by itself. Unmodified programs run: what stands on c10d, such as
DistributedDataParallel, is PyTorch's own, over groups of this package.

    failure, recover, shrink_group    going on after a loss, see `recovery`
    Store                             a store of this package as PyTorch knows one, see `store`
    round_robin                       several groups of the same ranks as one
    split_group                       a group cut into several, see `splitting`
    answer_to                         groups of this package where "gloo" is asked for
    dump_flight_recorder              for PyTorch's tools, see `flight_recorder`
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from allhands.torch.flight_recorder import dump_flight_recorder as dump_flight_recorder
    from allhands.torch.gloo_name import answer_to as answer_to
    from allhands.torch.recovery import failure as failure
    from allhands.torch.recovery import recover as recover
    from allhands.torch.recovery import shrink_group as shrink_group
    from allhands.torch.rendezvous.store import Store as Store
    from allhands.torch.round_robin_group import round_robin as round_robin
    from allhands.torch.splitting import split_group as split_group

_WHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "answer_to": "gloo_name",
        "dump_flight_recorder": "flight_recorder",
        "failure": "recovery",
        "recover": "recovery",
        "round_robin": "round_robin_group",
        "shrink_group": "recovery",
        "split_group": "splitting",
        "Store": "rendezvous.store",
    }
)
"""Names by the modules that have them: `import torch` is to stay quick, and imports this."""


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


def register() -> None:
    """Make the backend, `ah://` and `fake://` known to torch.distributed. Idempotent."""
    # `import torch` calls this, also the one in the next line, while this module is being imported.
    import torch  # noqa: F401

    importlib.import_module(f"{__name__}.backend").register()


register()
