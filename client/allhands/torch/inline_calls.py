"""Inline calls: those of plain tensors go straight to the native core.

The core looks at what it is given, and declines what it does not know. That goes through the
methods of `c10d.collectives`, which say what is wrong with it, and so does each call that is to be
seen on its way: by a mode, a profiler, a hook or a block.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    _allow_inflight_collective_as_graph_input,
)

from allhands.collectives.arguments import AnyArray
from allhands.runtime import native_core
from allhands.torch import hook_streams
from allhands.torch.error_text import append_gloo_text
from allhands.torch.options import REDUCE_OPS
from allhands.torch.tensors import TensorViews
from allhands.torch.work import EndedWork, Work
from allhands.tracebacks import trim_traceback

if TYPE_CHECKING:
    from allhands._native import LinkCollectives, ShmComm

    DirectCore: TypeAlias = ShmComm | LinkCollectives

_find_op: Final = {
    hash(dist.ReduceOp(kind)): REDUCE_OPS[kind.value]
    for kind in dist.ReduceOp.RedOpType.__members__.values()
    if kind.value in REDUCE_OPS
}.get
"""Return an operation by the hash of PyTorch's, its number: quicker than to ask for the kind."""

_PLAIN_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_EXCHANGE: Final = torch.Tensor.__dlpack_c_exchange_api__
_ZERO: Final = timedelta(0)
_core, _ = native_core.find()
_count_modes: Final = torch._C._len_torch_dispatch_stack
_is_profiled: Final = torch.autograd._profiler_enabled

Group = TypeVar("Group")
Attempt = Callable[..., Work | None]


def add_inline_calls(cls: type[Group]) -> type[Group]:
    """Decorate a class of process groups so that plain calls go to the native core at once."""
    for name, attempt in _ATTEMPTS.items():
        setattr(cls, name, _wrap_method(getattr(cls, name), attempt))
    return cls


def _wrap_method(checked: Callable[..., Any], attempt: Attempt) -> Callable[..., Any]:
    get_slot = hook_streams.get_current_slot
    count = attempt.__code__.co_argcount - 2  # arguments, the options last

    @functools.wraps(checked)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        given = arguments
        if named and len(named) == 1 and "opts" in named:
            given = (*arguments, named["opts"])
        comm = (group := self.group).order.direct_calls
        if (
            comm is not None
            and len(given) == count
            # The call is to be seen on its way by nobody.
            and group.coalescer is None
            and get_slot() is None
            and not _count_modes()
            and not _is_profiled()
            and not _allow_inflight_collective_as_graph_input()
        ):
            try:
                if (work := attempt(self, comm, *given)) is not None:
                    return work
            except BaseException as error:
                append_gloo_text(error)  # where nobody waits for it later
                trim_traceback(error)
                raise
        return checked(self, *arguments, **named)

    return call


def _view(given: Any) -> AnyArray | None:
    """Return an array over a tensor, or the only one of a list; None: it wants a second look."""
    tensor = given[0] if type(given) is list and len(given) == 1 else given
    if type(tensor) not in _PLAIN_TYPES or tensor.is_neg():
        return None
    assert _core is not None, "there is a communicator"
    found: AnyArray | None = _core.view_dlpack(_EXCHANGE, tensor)
    return found


def _view_all(tensors: Any) -> list[AnyArray] | None:
    """Return arrays over the tensors of a list; None: one of them wants a second look."""
    if type(tensors) is not list:
        return None
    arrays = []
    for tensor in tensors:
        if type(tensor) is list or (array := _view(tensor)) is None:
            return None
        arrays.append(array)
    return arrays


def _view_only_list(lists: Any) -> list[AnyArray] | None:
    """Return arrays over the tensors of the only list of a list; None as of `_view_all`."""
    return _view_all(lists[0]) if type(lists) is list and len(lists) == 1 else None


def _read_timeout(opts: Any) -> float | None:
    """Return the seconds that a call may take; None: what the group says."""
    timeout = opts.timeout
    return timeout.total_seconds() if timeout > _ZERO else None


def _end(group: Any, comm: "DirectCore", result: Any) -> EndedWork:
    work: EndedWork = EndedWork()
    last = comm.last_call()
    assert last is not None, "it has just ended"
    work.call = last, group, result
    return work


def _make(
    group: Any,
    comm: "DirectCore",
    name: str,
    arguments: tuple[object, ...],
    opts: Any,
    tensors: Sequence[Any],
    result: Any,
) -> Work | None:
    """Make a call of the core, or begin it, on arrays over these tensors; None: it declines."""
    timeout = _read_timeout(opts)
    if not opts.asyncOp:
        done = getattr(comm, name)(*arguments, timeout, None)
        return _end(group, comm, result) if done else None
    for one in tensors:
        if one.requires_grad:  # its memory may become another while the call goes on
            return None
    begun = getattr(comm, f"start_{name}")(*arguments, timeout, None, result)
    return None if begun is None else Work(begun, TensorViews(), result)


def _all_reduce(group: Any, comm: "DirectCore", tensors: Any, opts: Any) -> Work | None:
    if type(opts) is not AllreduceOptions or (x := _view(tensors)) is None:
        return None
    if (op := _find_op(hash(opts.reduceOp))) is None:
        return None
    return _make(group, comm, "all_reduce", (x, op), opts, tensors, tensors)


def _broadcast(group: Any, comm: "DirectCore", tensors: Any, opts: Any) -> Work | None:
    if type(opts) is not BroadcastOptions or opts.rootTensor != 0:
        return None
    if (x := _view(tensors)) is None:
        return None
    return _make(group, comm, "broadcast", (x, opts.rootRank), opts, tensors, tensors)


def _reduce(group: Any, comm: "DirectCore", tensors: Any, opts: Any) -> Work | None:
    if type(opts) is not ReduceOptions or opts.rootTensor != 0:
        return None
    if (x := _view(tensors)) is None or (op := _find_op(hash(opts.reduceOp))) is None:
        return None
    return _make(group, comm, "reduce", (x, opts.rootRank, op), opts, tensors, tensors)


def _all_gather_single(
    group: Any, comm: "DirectCore", output: Any, x: Any, opts: Any
) -> Work | None:
    if type(opts) is not AllgatherOptions:
        return None
    if (filled := _view(output)) is None or (read := _view(x)) is None:
        return None
    arguments = filled, read
    return _make(group, comm, "all_gather_into_tensor", arguments, opts, (output, x), [output])


def _reduce_scatter_single(
    group: Any, comm: "DirectCore", output: Any, x: Any, opts: Any
) -> Work | None:
    if type(opts) is not ReduceScatterOptions:
        return None
    if (filled := _view(output)) is None or (read := _view(x)) is None:
        return None
    if (op := _find_op(hash(opts.reduceOp))) is None:
        return None
    arguments = filled, read, op
    return _make(group, comm, "reduce_scatter_tensor", arguments, opts, (output, x), [output])


def _all_to_all_single(
    group: Any, comm: "DirectCore", output: Any, x: Any, recv: Any, send: Any, opts: Any
) -> Work | None:
    if type(opts) is not AllToAllOptions or recv != [] or send != []:
        return None
    if (filled := _view(output)) is None or (read := _view(x)) is None:
        return None
    return _make(group, comm, "all_to_all_single", (filled, read), opts, (output, x), [output])


def _gather(group: Any, comm: "DirectCore", outputs: Any, inputs: Any, opts: Any) -> Work | None:
    if type(opts) is not GatherOptions or type(outputs) is not list or type(inputs) is not list:
        return None
    filled = _view_only_list(outputs) if outputs else ()
    if filled is None or (read := _view(inputs)) is None:
        return None
    result = outputs[0] if outputs else []
    arguments = read, filled, opts.rootRank
    return _make(group, comm, "gather", arguments, opts, [*inputs, *result], result)


def _scatter(group: Any, comm: "DirectCore", outputs: Any, inputs: Any, opts: Any) -> Work | None:
    if type(opts) is not ScatterOptions or type(outputs) is not list or type(inputs) is not list:
        return None
    read = _view_only_list(inputs) if inputs else ()
    if read is None or (filled := _view(outputs)) is None:
        return None
    tensors = [*outputs, *inputs[0]] if inputs else outputs
    return _make(group, comm, "scatter", (filled, read, opts.rootRank), opts, tensors, outputs)


def _all_gather(
    group: Any, comm: "DirectCore", outputs: Any, inputs: Any, opts: Any
) -> Work | None:
    if type(opts) is not AllgatherOptions or type(inputs) is not list:
        return None
    if (filled := _view_only_list(outputs)) is None or (read := _view(inputs)) is None:
        return None
    tensors = [*outputs[0], *inputs]
    return _make(group, comm, "all_gather", (filled, read), opts, tensors, outputs[0])


def _reduce_scatter(
    group: Any, comm: "DirectCore", outputs: Any, inputs: Any, opts: Any
) -> Work | None:
    if type(opts) is not ReduceScatterOptions or type(outputs) is not list:
        return None
    if (read := _view_only_list(inputs)) is None or (filled := _view(outputs)) is None:
        return None
    if (op := _find_op(hash(opts.reduceOp))) is None:
        return None
    tensors = [*outputs, *inputs[0]]
    return _make(group, comm, "reduce_scatter", (filled, read, op), opts, tensors, outputs)


def _all_to_all(
    group: Any, comm: "DirectCore", outputs: Any, inputs: Any, opts: Any
) -> Work | None:
    if type(opts) is not AllToAllOptions:
        return None
    if (filled := _view_all(outputs)) is None or (read := _view_all(inputs)) is None:
        return None
    tensors = [*outputs, *inputs]
    return _make(group, comm, "all_to_all", (filled, read), opts, tensors, outputs)


def _barrier(group: Any, comm: "DirectCore", opts: Any) -> Work | None:
    if type(opts) is not BarrierOptions or len(group.adapter.staged_works):
        return None
    return _make(group, comm, "barrier", (), opts, (), None)


_ATTEMPTS: Final[Mapping[str, Attempt]] = MappingProxyType(
    {
        "allreduce": _all_reduce,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "barrier": _barrier,
        "gather": _gather,
        "scatter": _scatter,
        "allgather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "alltoall": _all_to_all,
        "all_to_all_single": _all_to_all_single,
        "all_gather_single": _all_gather_single,
        "reduce_scatter_single": _reduce_scatter_single,
    }
)
"""Inline calls by the methods of process groups: the call, or None where the core declines it."""
