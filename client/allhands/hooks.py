"""Communication hooks of a `Reducer`: averaging each bucket of gradients.

    state = ah.hooks.PowerSGDState(rank=4)
    reducer.register_comm_hook(state, ah.hooks.power_sgd)

What a hook leaves out of gradients it keeps in its state, and sends later.
"""

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
    "Int8State",
    "PeriodicModelAverager",
    "PostLocalSGDState",
    "PowerSGDState",
    "TopKState",
    "allreduce",
    "bf16_compress",
    "fp16_compress",
    "int8",
    "noop",
    "post_local_sgd",
    "power_sgd",
    "top_k",
]
