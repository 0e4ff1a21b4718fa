"""Calls return what their types say; `make lint-types` has mypy read the program as well."""

import pytest

from allhands.testing import run_threads
from programs import typed_calls


@pytest.mark.filterwarnings("ignore:all_reduce does nothing here")
def test_calls_return_what_their_types_say() -> None:
    run_threads(2)(typed_calls.check_types)
