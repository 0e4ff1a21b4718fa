"""A check for an unchanged process after a test, so that no order of tests matters."""

import operator
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def check_process_state() -> Iterator[None]:
    """Check for an unchanged working directory, environment, module path and modules.

    Modules may be added, as imports do; none may be replaced or taken away.
    """
    directory, environment, paths = os.getcwd(), _environment(), sys.path.copy()
    modules = sys.modules.copy()
    yield
    assert os.getcwd() == directory, "the test left another working directory"
    if (after := _environment()) != environment:
        changed = {name for name, _ in environment.items() ^ after.items()}
        raise AssertionError(f"the test left variables changed: {sorted(changed)}")
    assert sys.path == paths, "the test left other paths of modules"
    if not all(map(operator.is_, modules.values(), map(sys.modules.get, modules))):
        changed = {name for name, module in modules.items() if sys.modules.get(name) is not module}
        raise AssertionError(f"the test left modules replaced: {sorted(changed)}")


def _environment() -> dict[str, str]:
    found = dict(os.environ)
    found.pop("PYTEST_CURRENT_TEST", None)
    return found
