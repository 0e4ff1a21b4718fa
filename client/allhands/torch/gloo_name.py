"""The name "gloo" for groups of this package: programs and libraries that ask for it run unchanged.

PyTorch makes Gloo's groups from that name before it looks at backends that others register, so the
function that makes a group is told another name, and the group is listed under the first one.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d

from allhands.torch.names import NAME, list_backends
from allhands.torch.process_group import ProcessGroup

VARIABLE: Final = "ALLHANDS_TORCH_AS"
GLOO: Final = "gloo"
_MARK = "__allhands_answers_to_gloo__"


def answer_to(name: str) -> None:
    """Make groups of this package where "gloo" is asked for, from now on. Idempotent.

    `init_process_group("gloo")`, `"cpu:gloo"`, no backend on a host without accelerator, and
    `new_group(backend="gloo")` then make them; `get_backend()` says "gloo". ALLHANDS_TORCH_AS=gloo
    does the same for a whole job.

    Raises:
        ValueError: the name is not "gloo", which is the only one that can be taken.
        RuntimeError: the default group is another backend's already.
    """
    if name.lower() != GLOO:
        raise ValueError(f"allhands can answer to {GLOO!r} alone, not to {name!r}")
    if dist.is_initialized() and not isinstance(
        distributed_c10d._get_default_group(), ProcessGroup
    ):
        raise RuntimeError(
            f"the default group is made, over {dist.get_backend()!r}: call "
            "allhands.torch.answer_to('gloo') before init_process_group"
        )
    make = distributed_c10d._new_process_group_helper
    if not hasattr(make, _MARK):
        instead = _translate_calls(make)
        setattr(instead, _MARK, True)
        distributed_c10d._new_process_group_helper = instead
    dist.Backend.default_device_backend_map["cpu"] = NAME


def answer_as_asked(environ: Mapping[str, str]) -> None:
    """Answer to the name in ALLHANDS_TORCH_AS, if there is one.

    Raises:
        ValueError: as `answer_to`.
    """
    if asked := environ.get(VARIABLE):
        if asked.lower() != GLOO:
            raise ValueError(f"{VARIABLE} is {asked!r}: allhands can answer to {GLOO!r} alone")
        answer_to(asked)


def translate(backend: str) -> str:
    """Return a backend of PyTorch's with this package in the place of Gloo.

    Raises:
        ValueError: Gloo is for some devices only; a group of this package is for all of them.
    """
    names = list_backends(backend)
    if GLOO not in names:
        return backend
    if names != {GLOO}:
        raise ValueError(
            f"backend {backend!r}: allhands answers to gloo, and PyTorch makes a group of such a "
            "backend for all devices or none; make one group with 'gloo' and another with "
            f"{', '.join(sorted(names - {GLOO}))!r}, or unset {VARIABLE}"
        )
    devices = [part.rpartition(":") for part in backend.split(",")]
    return ",".join(f"{device}{colon}{NAME}" for device, colon, _ in devices)


def _translate_calls(make: Callable[..., Any]) -> Callable[..., Any]:
    """Translate the backend for PyTorch's function that makes a group, and list it as asked for."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        asked = call.arguments["backend"]
        call.arguments["backend"] = dist.Backend(translate(asked))
        made = make(*call.args, **call.kwargs)
        group = made[0]
        if isinstance(group, ProcessGroup) and GLOO in list_backends(asked):
            world = distributed_c10d._world
            world.pg_map[group] = (asked, world.pg_map[group][1])
            world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(asked))
        return made

    return wrapper
