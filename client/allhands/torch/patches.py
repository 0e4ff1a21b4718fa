"""Patches of PyTorch for groups of this package: features closed to Python backends.

Each one stands in for a function of PyTorch's, which it calls itself: whatever is over another
backend goes there as it came.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from allhands.torch import hook_streams, recovery, splitting
from allhands.torch.names import NAME, list_backends
from allhands.torch.options import refuse_options
from allhands.torch.process_group import ProcessGroup
from allhands.torch.work import Work

_MARK = "__allhands_way_round__"


def install() -> None:
    """Install all patches. Idempotent."""
    _patch(dist.Reducer, "_set_forward_pass_work_handle", _keep_forward_work)
    _patch(DistributedDataParallel, "register_comm_hook", _order_hook_calls)
    _patch(DistributedDataParallel, "_register_builtin_comm_hook", _use_python_hook)
    for owner in (dist, distributed_c10d):
        _patch(owner, "monitored_barrier", _route_monitored_barrier)
        _patch(owner, "split_group", _route_split_group)
        _patch(owner, "shrink_group", _route_shrink_group)
    _patch(distributed_c10d, "_set_pg_timeout", _route_set_timeout)


def _patch(module: Any, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> None:
    original = getattr(module, name)
    if not hasattr(original, _MARK):
        instead = functools.wraps(original)(wrap(original))
        setattr(instead, _MARK, True)
        setattr(module, name, instead)


def _keep_forward_work(original: Any) -> Callable[..., Any]:
    """Keep the Python half of a reducer's work alive: C++ holds only the other half."""
    kept: weakref.WeakKeyDictionary[Any, Work] = weakref.WeakKeyDictionary()

    def wrapper(reducer: Any, work: Any, *more: Any) -> None:
        if isinstance(work, Work):
            kept[reducer] = work
        original(reducer, work, *more)

    return wrapper


def _order_hook_calls(original: Any) -> Callable[..., Any]:
    """Run a hook's calls in streams and slots: no other order is defined.

    Neither Gloo's threads nor ours run the callbacks of several buckets one at a time, or in the
    same order on all ranks. PyTorch's hooks for bfloat16, which DDP refuses without NCCL, work over
    us, and those that quantise, which index what NCCL gathers.
    """

    def wrapper(module: Any, state: Any, hook: Any) -> None:
        group = module.process_group
        if callable(hook) and isinstance(group, ProcessGroup):
            name = group.hook_streams.make_name("hook")
            hook = _wrap_hook(hook, name, hook_streams.HookSlots(group.world.callbacks))
        original(module, state, hook)

    return wrapper


def _wrap_hook(hook: Any, name: str, slots: hook_streams.HookSlots) -> Any:
    # PyTorch does not import its hooks either, before a program does.
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, quantization_hooks

    makes_one_call = hook in (
        default_hooks.allreduce_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.bf16_compress_hook,
    )

    gathers_whole = hook in (
        quantization_hooks.quantization_pertensor_hook,
        quantization_hooks.quantization_perchannel_hook,
    )

    @functools.wraps(hook)
    def wrapper(state: Any, bucket: Any) -> Any:
        if makes_one_call:
            return hook(state, bucket)
        turn = slots.open_slot(hook_streams.HookStream(f"{name}.{bucket.index()}", gathers_whole))
        with turn.enter():
            return hook(state, bucket)

    wrapper.__name__ = "hook"  # by which DDP knows those that it refuses
    return wrapper


def _use_python_hook(original: Any) -> Callable[..., Any]:
    """Replace the C++ hook by the Python one: C++ wants futures of a closed type."""

    def wrapper(module: Any, kind: Any) -> None:
        is_half = kind == dist.BuiltinCommHookType.FP16_COMPRESS
        if is_half and isinstance(module.process_group, ProcessGroup):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            module.logger._set_comm_hook_name(str(kind))
            hook = default_hooks.fp16_compress_hook
            dist._register_comm_hook(module.reducer, module.process_group, hook)
        else:
            original(module, kind)

    return wrapper


def _route_monitored_barrier(original: Any) -> Callable[..., Any]:
    """Allow monitored_barrier on groups of this package; PyTorch allows only Gloo."""

    def wrapper(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        found = distributed_c10d._get_default_group() if group is None else group
        if not isinstance(found, ProcessGroup):
            return original(group, timeout, wait_all_ranks)
        return found.monitored_barrier(timeout, wait_all_ranks)

    return wrapper


def _route_split_group(original: Any) -> Callable[..., Any]:
    """Split groups of this package, which PyTorch does with accelerators of its own alone.

    As in PyTorch's, the ranks of each part are put in their order.
    """

    def wrapper(
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: str | None = None,
    ) -> Any:
        parent = distributed_c10d._get_default_group() if parent_pg is None else parent_pg
        if not isinstance(parent, ProcessGroup):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        refuse_options(pg_options)
        listed = list_backends(distributed_c10d._world.pg_map[parent][0])
        if not list_backends(backend or NAME) <= {NAME, *listed}:
            raise ValueError(
                f"Backend mismatch: the parent group is of backend {NAME!r}, and so are its parts; "
                f"requested is {backend!r}"
            )
        parts = None if split_ranks is None else [sorted(part) for part in split_ranks]
        return splitting.split_group(parent, parts, timeout, group_desc)

    return wrapper


def _route_shrink_group(original: Any) -> Callable[..., Any]:
    """Shrink groups of this package, where PyTorch makes a group of its own class."""

    def wrapper(
        ranks_to_exclude: Any,
        group: Any = None,
        shrink_flags: int = distributed_c10d.SHRINK_DEFAULT,
        pg_options: Any = None,
    ) -> Any:
        found = distributed_c10d._get_default_group() if group is None else group
        if not isinstance(found, ProcessGroup):
            return original(ranks_to_exclude, group, shrink_flags, pg_options)
        refuse_options(pg_options)
        distributed_c10d._validate_shrink_inputs(ranks_to_exclude, shrink_flags)
        aborts = shrink_flags == distributed_c10d.SHRINK_ABORT
        return recovery.shrink_group(ranks_to_exclude, group, aborts=aborts)

    return wrapper


def _route_set_timeout(original: Any) -> Callable[..., Any]:
    """Set the timeout of a group of this package, which PyTorch would leave as it is."""

    def wrapper(timeout: Any, group: Any = None) -> None:
        found = distributed_c10d._get_default_group() if group is None else group
        if isinstance(found, ProcessGroup):
            found.set_timeout(timeout)
        else:
            original(timeout, group)

    return wrapper
