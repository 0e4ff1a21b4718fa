"""Adapter of c10d's calls for tensors and PyTorch's options."""

from typing import Any, Final

import torch
import torch.distributed as dist

from allhands.c10d.options import AnyOptions
from allhands.engine.work.work import Work as NativeWork
from allhands.torch.options import make_options, to_reduce_op
from allhands.torch.tensors import TensorViews
from allhands.torch.work import StagedWorks, Work

_REDUCE_OPS: Final = (dist.ReduceOp, dist.ReduceOp.RedOpType)


class TensorAdapter:
    """A `BufferAdapter` for the calls of one process group; safe from any thread."""

    make_options = staticmethod(make_options)
    open_views = TensorViews

    def __init__(self) -> None:
        self.staged_works = StagedWorks()
        """Works whose tensors wait for the content of their copies."""

    def is_buffer(self, value: object) -> bool:
        return isinstance(value, torch.Tensor)

    def make_rooted_options(
        self, kind: type[AnyOptions], opts: Any, root: Any, timeout: Any, op: Any = None
    ) -> AnyOptions:
        if isinstance(opts, int):
            opts, root = None, opts
        given = {} if root is None else {"rootRank": root}
        if op is not None:
            given["reduceOp"] = to_reduce_op(op)
        return make_options(kind, opts, timeout, **given)

    def make_reduction_options(
        self, kind: type[AnyOptions], opts: Any, op: Any, timeout: Any
    ) -> AnyOptions:
        if isinstance(opts, _REDUCE_OPS):
            opts, op = None, opts if op is None else op
        if op is None:
            return make_options(kind, opts, timeout)
        return make_options(kind, opts, timeout, reduceOp=to_reduce_op(op))

    def to_work(self, work: NativeWork, views: TensorViews, result: Any) -> Work:
        made = Work(work, views, result)
        if views.needs_copy_back:
            self.staged_works.add(made)
        return made
