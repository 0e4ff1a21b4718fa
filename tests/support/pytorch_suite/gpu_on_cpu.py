"""The CPU in place of GPUs, for tests with GPUs in name only."""

import contextlib
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode


class OnProcessor(TorchFunctionMode):  # type: ignore[misc]
    """A block in which tensors for a GPU are made on the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "to" and len(args) > 1:
            args = (args[0], *(_place(one, ordinal=True) for one in args[1:2]), *args[2:])
        named = {
            key: _place(one, ordinal=True) if key == "device" else one
            for key, one in (kwargs or {}).items()
        }
        return function(*args, **named)


def pretend(gpus: int) -> None:
    """Give this process so many GPUs, all of which are the processor."""
    cuda: Any = torch.cuda
    cuda.device_count = lambda: gpus
    cuda.current_device = lambda: 0
    for name in ("set_device", "synchronize", "manual_seed", "empty_cache"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.Stream = cuda.Event = cuda.current_stream = _Stream
    cuda.stream = cuda.device = lambda *_: contextlib.nullcontext()

    module: Any = torch.nn.Module
    module.cuda = lambda self, *_: self
    to = module.to
    module.to = lambda self, *args, **kwargs: to(
        self,
        *(_place(one, ordinal=at == 0) for at, one in enumerate(args)),
        **{key: _place(one, ordinal=key == "device") for key, one in kwargs.items()},
    )

    parallel: Any = DistributedDataParallel
    init = parallel.__init__

    def on_processor(self: Any, *args: Any, **named: Any) -> None:
        for one in ("device_ids", "output_device"):
            named.pop(one, None)  # DDP takes them for modules on GPUs alone
        init(self, *args, **named)

    parallel.__init__ = on_processor
    OnProcessor().__enter__()


class _Stream:
    """A stream or event with work always complete."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.stream_id = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _place(one: Any, *, ordinal: bool) -> Any:
    """Return the CPU for any name of a GPU; any further argument unchanged."""
    if ordinal and isinstance(one, int) and not isinstance(one, bool):
        return torch.device("cpu")
    if isinstance(one, str) and one.partition(":")[0] == "cuda":
        return torch.device("cpu")
    if isinstance(one, torch.device) and one.type == "cuda":
        return torch.device("cpu")
    return one
