"""Faults found by a program on a rank; the test expects none."""

import numpy as np


class Faults(list[list[str]]):
    """Faults of one rank, as texts: the place and the difference."""

    def note(self, wrong: object, *where: object) -> None:
        """Record a fault, unless `wrong` is false or empty."""
        if wrong:
            self.append([str(one) for one in (*where, wrong)])

    def compare(self, got: object, wanted: object, *where: object) -> None:
        """Record a fault if a result differs from the expected array in any bit."""
        if not np.array_equal(got, wanted):  # type: ignore[arg-type]
            self.append([str(one) for one in where])
