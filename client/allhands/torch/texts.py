"""Texts of failures, with the words by which programs for PyTorch look for them."""

from allhands.errors import CollectiveTimeout


def worded(error: BaseException) -> BaseException:
    """Return an error with what PyTorch would have said at the end of its text. Idempotent."""
    if isinstance(error, CollectiveTimeout) and error.timeout is not None:
        said = f"; Timed out waiting {error.timeout * 1000:g}ms"
        if said not in str(error):
            error.args = (f"{error}{said}", *error.args[1:])
    return error
