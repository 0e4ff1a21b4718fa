"""Residuals: values left out by compression, sent later (error feedback).

Without it, compression that always errs the same way never learns what it leaves out; with it,
gradient descent converges as without compression (Karimireddy et al. 2019, "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes").
"""

from collections.abc import Mapping

import numpy as np

from allhands.collectives.arguments import AnyArray

Owner = tuple[int, ...]
"""The parameters of a bucket, by place. A bucket that is filled anew has residuals of its own."""


class Residuals:
    """Values this rank has left out of each bucket so far."""

    def __init__(self) -> None:
        self._left_out: dict[Owner, AnyArray] = {}

    def add_to(self, owner: Owner, values: AnyArray) -> AnyArray:
        """Return 1-D values plus earlier residuals, to be compressed."""
        kept = self._left_out.get(owner)
        return values.copy() if kept is None else values + kept

    def keep(self, owner: Owner, left_out: AnyArray) -> None:
        """Replace the residuals of a bucket.

        What is infinite, or no number, is forgotten: one such gradient would stay forever.
        """
        left_out[~np.isfinite(left_out)] = 0
        self._left_out[owner] = left_out

    def state_dict(self) -> dict[Owner, AnyArray]:
        """Return this rank's residuals by owner. The arrays are the live ones: only read them."""
        return dict(self._left_out)

    def load_state_dict(self, saved: Mapping[Owner, AnyArray]) -> None:
        """Restore the result of `state_dict`."""
        self._left_out = {tuple(owner): kept for owner, kept in saved.items()}


def widen(values: AnyArray) -> AnyArray:
    """Return values in a dtype to compute with: float32 or wider."""
    return values.astype(np.result_type(values.dtype, np.float32), copy=False)
