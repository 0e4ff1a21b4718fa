"""Several tests in one run of ranks: separate outcomes, a single joining.

    in_shared_world = SharedWorld(4)

    @in_shared_world
    def test_sum(rank): ...

They run in the order in which they stand, on every rank, when the first of them is asked for. After
one that failed none goes on: the ranks may be out of step.
"""

import functools
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.torch.ranks import RanksFailed, run_ranks

Test = Callable[[int], None]


class SharedWorld:
    """Tests that share ranks; the options are `run_ranks`'s.

    Warnings are errors but for those that begin as the pattern `unheard` says.
    """

    def __init__(self, size: int, unheard: str = "nothing", **options: Any) -> None:
        self._size = size
        self._unheard = unheard
        self._options = options
        self._tests: dict[str, Test] = {}
        self._passed: Counter[str] | None = None
        self._failure: RanksFailed | None = None

    def __call__(self, test: Test) -> Callable[[], None]:
        name = test.__name__
        self._tests[name] = test

        # Not what `functools.wraps` makes: pytest would ask for a fixture named rank.
        def run() -> None:
            if self._passed is None:
                self._passed = self._run()
            if self._passed[name] != self._size:
                assert self._failure is not None
                raise self._failure

        run.__name__, run.__doc__, run.__module__ = name, test.__doc__, test.__module__
        return run

    def _run(self) -> Counter[str]:
        """Return on how many ranks each test has passed."""
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "told"
            told.touch()
            try:
                run_ranks(self._size, functools.partial(self._all, told), **self._options)
            except RanksFailed as failure:
                self._failure = failure
            return Counter(told.read_text().split())

    def _all(self, told: Path, rank: int) -> None:
        with warnings.catch_warnings():
            # Newer names for what programs call as they always have, and as PyTorch itself does.
            warnings.filterwarnings("ignore", ".*deprecated")
            warnings.filterwarnings("ignore", self._unheard)
            for name, test in self._tests.items():
                try:
                    test(rank)
                except BaseException as error:
                    error.add_note(f"in {name}")
                    raise
                with told.open("ab", buffering=0) as file:
                    os.write(file.fileno(), f"{name}\n".encode())
