"""Translation of PyTorch's options of a call."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import torch.distributed as dist

from allhands.c10d.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    AnyOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    Options,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from allhands.collectives.reduction import ReduceOp

REDUCE_OPS: Final[Mapping[int, ReduceOp]] = MappingProxyType(
    {
        dist.ReduceOp.SUM.value: ReduceOp.SUM,
        dist.ReduceOp.AVG.value: ReduceOp.AVG,
        dist.ReduceOp.PRODUCT.value: ReduceOp.PRODUCT,
        dist.ReduceOp.MIN.value: ReduceOp.MIN,
        dist.ReduceOp.MAX.value: ReduceOp.MAX,
        dist.ReduceOp.BAND.value: ReduceOp.BAND,
        dist.ReduceOp.BOR.value: ReduceOp.BOR,
        dist.ReduceOp.BXOR.value: ReduceOp.BXOR,
    }
)
"""Operations by the number of PyTorch's."""
_ZERO: Final = timedelta(0)

_TRANSLATED: Final[Mapping[type[Options], tuple[str, ...]]] = MappingProxyType(
    {
        kind: tuple({"reduceOp", "rootRank", "rootTensor"} & {one.name for one in fields(kind)})
        for kind in (
            AllgatherOptions,
            AllreduceCoalescedOptions,
            AllreduceOptions,
            AllToAllOptions,
            BarrierOptions,
            BroadcastOptions,
            GatherOptions,
            ReduceOptions,
            ReduceScatterOptions,
            ScatterOptions,
        )
    }
)
"""Fields of each kind of options that PyTorch's options of a call may have too."""


def refuse_options(pg_options: object) -> None:
    """Refuse options of another backend.

    Raises:
        ValueError: there are some.
    """
    if pg_options is not None:
        raise ValueError(
            f"allhands takes no pg_options, not {type(pg_options).__name__}: pass None. Timeouts "
            "go by timeout=; there are no lists of devices: a process listens on one address, "
            "which ALLHANDS_INTERFACE, ALLHANDS_ADVERTISE and ALLHANDS_PORT_RANGE choose"
        )


def to_reduce_op(op: Any) -> ReduceOp:
    """Translate a `ReduceOp` of PyTorch."""
    kind = getattr(op, "op", op)  # without it, it is a kind itself
    if (
        found := REDUCE_OPS.get(getattr(kind, "value", kind))
    ) is not None:  # a graph has the number
        return found
    _, factor = op.__getstate__()  # the way that PyTorch pickles it; there is no other to ask
    return ReduceOp.premul_sum(factor)


def to_limit(timeout: timedelta | None) -> timedelta | None:
    """Return how long a call may take; None: as the group says, which PyTorch has two ways for."""
    return timeout if timeout is not None and timeout > _ZERO else None


def make_options(
    kind: type[AnyOptions], opts: Any, timeout: timedelta | None = None, **overrides: Any
) -> AnyOptions:
    """Convert PyTorch's options of one call, or None; `overrides` take precedence."""
    if opts is None:
        return kind(to_limit(timeout), **overrides)
    for name in _TRANSLATED[kind]:
        if name not in overrides and (value := getattr(opts, name, None)) is not None:
            overrides[name] = to_reduce_op(value) if name == "reduceOp" else value
    return kind(to_limit(opts.timeout), opts.asyncOp, **overrides)
