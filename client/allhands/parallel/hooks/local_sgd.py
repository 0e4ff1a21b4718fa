"""post_local_sgd: gradients averaged in small groups, parameters in all, rarely.

Lin, Stich, Patel and Jaggi 2020, "Don't Use Large Mini-Batches, Use Local SGD": at first gradients
are averaged over all ranks in every step; later each subgroup goes its own way, and an averager
brings the parameters together again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from allhands.api import calls, collectives
from allhands.api.default_world import AnyGroup
from allhands.collectives.arguments import AnyArray, check_target
from allhands.collectives.reduction import ReduceOp, check_mean
from allhands.futures import Future
from allhands.group.group import Group
from allhands.parallel.grad_bucket import GradBucket
from allhands.parallel.hooks.elementary import allreduce, noop


class PostLocalSGDState:
    """The state of `post_local_sgd`, for one reducer."""

    def __init__(
        self,
        group: Group | None = None,
        subgroup: Group | None = None,
        start_iteration: int = 100,
    ) -> None:
        """Take the groups to average gradients over.

        Args:
            group: over which they are averaged at first; None: that of the reducer.
            subgroup: over which they are averaged later, such as the ranks of one host; None:
                over none, each rank goes its own way.
            start_iteration: how many steps are the first ones.

        Raises:
            ValueError: a negative iteration.
        """
        if start_iteration < 0:
            raise ValueError(f"start_iteration must be at least 0, not {start_iteration}")
        self.group = group
        self.subgroup = subgroup
        self.start_iteration = start_iteration
        self.iteration = 0
        """How many steps there have been."""

    def state_dict(self) -> dict[str, Any]:
        """Return the progress, to be saved with the model."""
        return {"iteration": self.iteration}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.iteration = int(saved["iteration"])


def post_local_sgd(state: PostLocalSGDState, bucket: GradBucket) -> Future[Any]:
    """Average over all ranks in the first steps, later over the subgroup.

    From then on parameters differ between subgroups: a `PeriodicModelAverager` is called after
    each step of the optimizer.
    """
    is_early = state.iteration < state.start_iteration
    state.iteration += bucket.is_last()
    if is_early:
        return allreduce(state.group, bucket)
    if state.subgroup is None:
        return noop(None, bucket)
    return allreduce(state.subgroup, bucket)


class PeriodicModelAverager:
    """Averages parameters over all ranks in every so many steps."""

    def __init__(self, period: int, warmup_steps: int = 0, group: AnyGroup = None) -> None:
        """Take when and over which ranks to average.

        Args:
            period: average after the first step that counts, and then after every so many.
            warmup_steps: steps before those that count, whose gradients are averaged: the
                `start_iteration` of the hook.
            group: None: the world.

        Raises:
            ValueError: a period below 1, or negative steps.
        """
        if period < 1 or warmup_steps < 0:
            raise ValueError(
                f"period must be at least 1 and warmup_steps at least 0, not {period} and "
                f"{warmup_steps}"
            )
        self.period = period
        self.warmup_steps = warmup_steps
        self.group = group
        self.step = 0
        """How many steps there have been."""

    def average_parameters(self, parameters: Iterable[AnyArray]) -> bool:
        """Count a step; when due, overwrite the parameters with averages.

        Every rank calls it after each step of its optimizer, with parameters alike: C-contiguous
        arrays of floats. They travel together, in an all_reduce for each dtype.

        Returns:
            Whether they were averaged.
        """
        listed = list(parameters)
        flats = [check_target(one, f"parameters[{at}]") for at, one in enumerate(listed)]
        for flat in flats:
            check_mean(flat.dtype)
        since = self.step - self.warmup_steps
        self.step += 1
        if since < 0 or since % self.period:
            return False
        calls.refuse_while_coalescing(self.group, "averaging parameters")
        for dtype in dict.fromkeys(flat.dtype for flat in flats):
            alike = [flat for flat in flats if flat.dtype == dtype]
            joined = np.concatenate(alike)
            collectives.all_reduce(joined, ReduceOp.AVG, self.group, label="parameters")
            for flat, part in zip(
                alike, np.split(joined, np.cumsum([one.size for one in alike])[:-1]), strict=True
            ):
                flat[:] = part
        return True
