"""Hooks: communication hooks of a `Reducer`, and ready call hooks.

    state = ah.hooks.PowerSGDState(rank=4)
    reducer.register_comm_hook(state, ah.hooks.power_sgd)

A communication hook averages each bucket of gradients; what it leaves out it keeps in its state,
and sends later. Call hooks see every call of this rank, as those of `ah.on_call` do:

    with ah.hooks.check_finite():
        ah.all_reduce(x)
"""

from allhands.api.call_hooks import check_finite, trace_calls
from allhands.group.call_hooks import CallHookHandle
from allhands.group.call_info import Argument, CallInfo
from allhands.group.finite_check import NotFinite
from allhands.parallel.hooks.elementary import allreduce, bf16_compress, fp16_compress, noop
from allhands.parallel.hooks.largest import TopKState, top_k
from allhands.parallel.hooks.local_sgd import (
    PeriodicModelAverager,
    PostLocalSGDState,
    post_local_sgd,
)
from allhands.parallel.hooks.power_sgd import PowerSGDState, power_sgd
from allhands.parallel.hooks.quantised import Int8State, int8

__all__ = [
    "Argument",
    "CallHookHandle",
    "CallInfo",
    "Int8State",
    "NotFinite",
    "PeriodicModelAverager",
    "PostLocalSGDState",
    "PowerSGDState",
    "TopKState",
    "allreduce",
    "bf16_compress",
    "check_finite",
    "fp16_compress",
    "int8",
    "noop",
    "post_local_sgd",
    "power_sgd",
    "top_k",
    "trace_calls",
]
