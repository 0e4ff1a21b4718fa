"""Errors behind an error of a public call."""

import grpc
import pytest

from allhands.errors import Unauthenticated
from allhands.tracebacks import trim_traceback


def raise_from(cause: Exception) -> Unauthenticated:
    try:
        try:
            raise cause
        except type(cause) as error:
            raise Unauthenticated("the coordinator wants its token") from error
    except Unauthenticated as error:
        return error


def test_errors_of_grpc_are_not_shown_before_the_error_that_has_their_text() -> None:
    error = raise_from(grpc.FutureTimeoutError())
    trim_traceback(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_other_causes_stay() -> None:
    cause = OSError("no such file")
    error = raise_from(cause)
    trim_traceback(error)
    assert error.__cause__ is cause


def test_errors_of_grpc_are_kept_where_full_tracebacks_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALLHANDS_TRACEBACKS", "full")
    error = raise_from(grpc.FutureTimeoutError())
    trim_traceback(error)
    assert isinstance(error.__cause__, grpc.FutureTimeoutError)
