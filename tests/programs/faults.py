"""What a program finds wrong on its rank, which its test wants to be nothing."""

import numpy as np


class Faults(list[list[str]]):
    """Faults of one rank, each as texts: where it was, and what it is."""

    def note(self, wrong: object, *where: object) -> None:
        """Note something wrong, unless it is false or empty."""
        if wrong:
            self.append([str(one) for one in (*where, wrong)])

    def compare(self, got: object, wanted: object, *where: object) -> None:
        """Note where it was that what came is not what had to come, bit for bit."""
        if not np.array_equal(got, wanted):  # type: ignore[arg-type]
            self.append([str(one) for one in where])
