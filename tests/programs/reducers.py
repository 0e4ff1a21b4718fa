"""Ranks that average gradients in buckets."""

from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import tell


def average_in_buckets() -> None:
    ah.init_process_group()
    rank = ah.get_rank()
    parameters: list[npt.NDArray[Any]] = [np.zeros((300, 40), np.float32), np.zeros(40)]
    reducer = ah.Reducer(parameters, gradient_as_bucket_view=True)
    state = ah.hooks.Int8State()
    compressing = ah.Reducer(parameters[:1])
    compressing.register_comm_hook(state, ah.hooks.int8)
    averages = []
    for step in range(3):
        for place in (1, 0):
            reducer.view(place)[...] = (rank + 1) * (step + 1)
            reducer.mark_ready(place)
        averages.append([float(one.max()) for one in reducer.wait()])
        assert all(one.min() == one.max() for one in reducer.gradients)
    gradient = np.full((300, 40), rank + 1.0, np.float32)
    compressing.mark_ready(0, gradient)
    compressing.wait()
    tell("done", averages=averages, int8=float(gradient.max()))
    ah.destroy_process_group()
