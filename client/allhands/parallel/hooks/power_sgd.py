"""power_sgd: gradients as products of two narrow matrices.

Vogels, Karimireddy and Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", algorithms 1 and 2: one step of subspace iteration, which goes on from
that of the gradient before, with error feedback. The factors of a sum are sums as well, so both
travel in an all_reduce, and what is left out of the sum is what the ranks have left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.futures import Future
from allhands.group.group import Group
from allhands.parallel.grad_bucket import GradBucket
from allhands.parallel.hooks.calls import BucketCollectives
from allhands.parallel.hooks.elementary import allreduce, is_compressible
from allhands.parallel.hooks.residuals import Owner, Residuals, widen
from allhands.parallel.lazy_future import LazyFuture
from allhands_proto.quick_dataclass import dataclass


class PowerSGDState:
    """The state of `power_sgd`, for one reducer; made alike on all ranks."""

    def __init__(
        self,
        group: Group | None = None,
        rank: int = 2,
        start_iteration: int = 10,
        min_compression_rate: float = 2.0,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ) -> None:
        """Take how to compress.

        Args:
            group: to average over; None: that of the reducer.
            rank: columns of the factors, "r" in the paper: more send more and leave out less.
            start_iteration: so many steps are averaged as they are, while gradients change fast.
            min_compression_rate: a matrix that would not become so many times smaller is sent as
                it is, as vectors are.
            use_error_feedback: add what was left out to the next gradient.
            warm_start: begin with the factors of the step before, else with random ones each time.
            seed: of the random factors.

        Raises:
            ValueError: a rank below 1, a negative iteration, or a rate that is not positive.
        """
        if rank < 1 or start_iteration < 0 or not min_compression_rate > 0:
            raise ValueError(
                "rank must be at least 1, start_iteration at least 0 and min_compression_rate "
                f"positive, not {rank}, {start_iteration} and {min_compression_rate}"
            )
        self.group = group
        self.rank = rank
        self.start_iteration = start_iteration
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.seed = seed
        self.iteration = 0
        """How many steps there have been."""
        self.residuals = Residuals()
        self._factors: dict[Owner, list[AnyArray]] = {}

    def columns(self, shape: tuple[int, int]) -> int:
        """Return the number of columns of a matrix's factors."""
        return min(self.rank, *shape)

    def is_worth_it(self, shape: tuple[int, int]) -> bool:
        """Say whether a matrix is sent as factors."""
        return sum(shape) * self.columns(shape) * self.min_compression_rate < shape[0] * shape[1]

    def right_factors(self, owner: Owner, matrices: Iterable[AnyArray]) -> list[AnyArray]:
        """Return the initial right factor of each matrix, same on all ranks."""
        if owner in self._factors:
            return self._factors[owner]
        random = np.random.default_rng([self.seed, self.iteration, *owner])
        return [
            random.normal(size=(one.shape[1], self.columns(one.shape))).astype(one.dtype)
            for one in matrices
        ]

    def keep(self, owner: Owner, factors: list[AnyArray]) -> None:
        """Keep factors as the start of the next step."""
        # Factors that are no numbers would stay so.
        if self.warm_start and all(np.isfinite(one).all() for one in factors):
            self._factors[owner] = factors
        else:
            self._factors.pop(owner, None)

    def state_dict(self) -> dict[str, Any]:
        """Return progress and values left out on this rank, to be saved."""
        return {
            "iteration": self.iteration,
            "residuals": self.residuals.state_dict(),
            "factors": dict(self._factors),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict` on this rank."""
        self.iteration = int(saved["iteration"])
        self.residuals.load_state_dict(saved["residuals"])
        self._factors = {tuple(owner): [*kept] for owner, kept in saved["factors"].items()}


@dataclass(frozen=True, slots=True)
class _BucketParts:
    """Parts of a bucket: sent as factors, or sent whole."""

    matrices: list[tuple[slice, tuple[int, int]]]
    """Span and shape of each."""
    others: list[slice]

    def select_matrices(self, flat: AnyArray) -> list[AnyArray]:
        return [flat[span].reshape(shape) for span, shape in self.matrices]


def power_sgd(state: PowerSGDState, bucket: GradBucket) -> Future[Any]:
    """Average matrices by factors in two all_reduces; the rest with the first.

    A gradient of more than two dimensions is a matrix with the rows of the first. What is no float,
    or sparse, travels as it is. Ranks whose NumPy multiplies matrices alike get the same bits.
    """
    buffer, owner = bucket.buffer(), bucket.indices()
    is_early = state.iteration < state.start_iteration
    cut = (
        _split_bucket(state, bucket.gradients())
        if is_compressible(bucket, "f")
        else _BucketParts([], [])
    )
    if is_early or not cut.matrices:
        state.iteration += bucket.is_last()
        return allreduce(state.group, bucket)
    calls = BucketCollectives(state.group, bucket)
    values = widen(buffer)
    if state.use_error_feedback:
        values = state.residuals.add_to(owner, values)
    matrices = cut.select_matrices(values)
    rights = state.right_factors(owner, matrices)
    state.iteration += bucket.is_last()
    sent = [
        *(one @ right for one, right in zip(matrices, rights, strict=True)),
        *(values[span] for span in cut.others),
    ]
    first = _concatenate(sent)
    work = calls.all_reduce(first, ReduceOp.AVG)

    def finish() -> Any:
        work.wait()
        averages = _split(first, sent)
        lefts = [np.linalg.qr(one)[0] for one in averages[: len(matrices)]]
        own = [one.T @ left for one, left in zip(matrices, lefts, strict=True)]
        second = _concatenate(own)
        calls.all_reduce(second, ReduceOp.AVG).wait()
        factors = _split(second, own)
        state.keep(owner, factors)
        result, left_out = np.empty_like(values), np.zeros_like(values)
        for target, left, factor in zip(cut.select_matrices(result), lefts, factors, strict=True):
            np.matmul(left, factor.T, out=target)
        for span, average in zip(cut.others, averages[len(matrices) :], strict=True):
            result[span] = average
        if state.use_error_feedback:
            rests = cut.select_matrices(left_out)
            for rest, one, left, mine in zip(rests, matrices, lefts, own, strict=True):
                np.subtract(one, left @ mine.T, out=rest)
            state.residuals.keep(owner, left_out)
        np.copyto(buffer, result, casting="unsafe")
        return buffer

    return LazyFuture(finish)


def _split_bucket(state: PowerSGDState, gradients: Sequence[AnyArray]) -> _BucketParts:
    cut, start = _BucketParts([], []), 0
    for one in gradients:
        span, start = slice(start, start + one.size), start + one.size
        shape = (one.shape[0], one.size // one.shape[0]) if one.ndim > 1 and one.size else (0, 0)
        if one.ndim > 1 and state.is_worth_it(shape):
            cut.matrices.append((span, shape))
        else:
            cut.others.append(span)
    return cut


def _concatenate(arrays: Sequence[AnyArray]) -> AnyArray:
    return np.concatenate([one.reshape(-1) for one in arrays])


def _split(flat: AnyArray, like: Sequence[AnyArray]) -> list[AnyArray]:
    """Return the parts of a flat array, shaped like the arrays of a list."""
    stops = np.cumsum([one.size for one in like])[:-1]
    return [part.reshape(one.shape) for part, one in zip(np.split(flat, stops), like, strict=True)]
