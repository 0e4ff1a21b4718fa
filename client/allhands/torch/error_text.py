"""Error texts with the words that PyTorch programs search for."""

from datetime import timedelta

from allhands.errors import CollectiveTimeout, PeerFailed
from allhands.verdicts import append_clause


def append_gloo_text(
    error: BaseException, operation: str = "", limit: timedelta | None = None
) -> BaseException:
    """Return the error with Gloo's text appended. Idempotent.

    `operation` is that of the work that has failed; `limit` is given where a wait for it has ended
    and the work has not.
    """
    said = _word_as_gloo(error, operation, limit)
    if said and said not in str(error):
        # Programs search for Gloo's words behind a space, also where they have a line of their own.
        error.args = (append_clause(str(error), f"as Gloo says: {said}"), *error.args[1:])
    return error


def _word_as_gloo(error: BaseException, operation: str, limit: timedelta | None) -> str:
    if isinstance(error, PeerFailed):
        return "Connection closed by peer"
    if not isinstance(error, CollectiveTimeout):
        return ""
    is_message = operation in ("send", "recv")
    if limit is not None and not is_message:
        return "Operation timed out!"
    seconds = error.timeout if limit is None else limit.total_seconds()
    if seconds is None:
        return ""
    waited = f"Timed out waiting {seconds * 1000:g}ms"
    return f"{waited} for {operation} operation to complete" if is_message else waited
