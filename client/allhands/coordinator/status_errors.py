"""Translation of a coordinator's gRPC status to the errors of allhands."""

from collections.abc import Callable, Mapping

from allhands.coordinator.call_failed import NamedCode, RpcFailure, StatusCode
from allhands.errors import (
    AllhandsError,
    CoordinatorUnavailable,
    JoinRefused,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    Refused,
    StoreTimeout,
    Unauthenticated,
)
from allhands.escapes import escape_lines

_Code = StatusCode

_ERRORS: Mapping[StatusCode, tuple[Callable[[str], Exception], str]] = {
    _Code.DEADLINE_EXCEEDED: (StoreTimeout, "timeout: {said}"),
    _Code.UNAVAILABLE: (
        CoordinatorUnavailable,
        "the coordinator at {target} is not available ({said}); start one with `allhands serve`, "
        "or check its address and whether it speaks TLS (ALLHANDS_TLS_CA)",
    ),
    _Code.CANCELLED: (
        CoordinatorUnavailable,
        "the call to the coordinator at {target} was cut off ({said})",
    ),
    _Code.INTERNAL: (  # of gRPC here: the coordinator ended the call while a message was written
        CoordinatorUnavailable,
        "the call to the coordinator at {target} was cut off ({said})",
    ),
    _Code.UNAUTHENTICATED: (
        Unauthenticated,
        "the coordinator at {target} wants its token ({said}): set ALLHANDS_TOKEN",
    ),
    _Code.PERMISSION_DENIED: (
        PermissionDenied,
        "the coordinator at {target} does not allow this: {said}",
    ),
    _Code.NOT_FOUND: (NotFound, "{said}"),
    _Code.INVALID_ARGUMENT: (ValueError, "{said}"),
    _Code.OUT_OF_RANGE: (ValueError, "{said}"),
}
_OTHER = (AllhandsError, "the coordinator at {target} failed with {code.name}: {said}")
_DISAGREEMENTS = {_Code.ALREADY_EXISTS, _Code.FAILED_PRECONDITION, _Code.ABORTED}


def translate_error(
    error: RpcFailure,
    action: str,
    *,
    target: str,
    refused: type[AllhandsError] = Refused,
    reason: str = "",
) -> Exception:
    """Return the allhands exception of a failed call; raise it `from` the gRPC error.

    The arguments are those of `translate_status`.
    """
    code = StatusCode[error.code().name]
    retry_after = None
    if code is _Code.RESOURCE_EXHAUSTED or issubclass(refused, JoinRefused):
        from allhands.coordinator.kv.calls import find_retry_after  # for few calls only

        retry_after = find_retry_after(error)
    return translate_status(
        code,
        error.details() or "",
        action,
        target=target,
        refused=refused,
        reason=reason,
        retry_after=retry_after,
    )


def translate_status(
    code: NamedCode,
    details: str,
    action: str,
    *,
    target: str,
    refused: type[AllhandsError] = Refused,
    reason: str = "",
    retry_after: float | None = None,
) -> Exception:
    """Return the allhands exception of a gRPC status.

    Args:
        action: description of the call, as in "wait for keys 'a', 'b' of job 'j'".
        target: the coordinator's `host:port`.
        refused: class for calls that contradict another rank's; a join passes `JoinRefused`, which
            then covers INVALID_ARGUMENT (a rank outside the world) too.
        reason: the problem found by a probe of an unreachable coordinator.
        retry_after: seconds after which the call can be made again, if they are known; of a join
            with them the coordinator itself has said no.
    """
    status = StatusCode[code.name]
    said = f"{action}: {escape_lines(details)}"  # of whoever answers there
    if status in (_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED) and reason:
        return CoordinatorUnavailable(f"{reason} ({said})")
    if status is _Code.RESOURCE_EXHAUSTED:
        return LimitExceeded(said, retry_after=retry_after)
    if retry_after is not None and issubclass(refused, JoinRefused):
        return refused(said, retry_after=retry_after)
    if status in _DISAGREEMENTS or (
        status is _Code.INVALID_ARGUMENT and issubclass(refused, JoinRefused)
    ):
        return refused(said)
    kind, text = _ERRORS.get(status, _OTHER)
    return kind(text.format(said=said, target=target, code=status))
