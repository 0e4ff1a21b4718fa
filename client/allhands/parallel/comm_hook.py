"""Checks of communication hooks, when registered and when answered."""

import concurrent.futures
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_origin

import numpy as np

from allhands.data.sparse_array import SparseArray
from allhands.parallel.grad_bucket import GradBucket, Gradient

CommHook: TypeAlias = Callable[[Any, GradBucket], "concurrent.futures.Future[Any]"]
"""Gets the state it was registered with and a bucket; answers with the future of its average."""


def check_hook(hook: object) -> None:
    """Refuse a hook with an unfit signature.

    Raises:
        TypeError: it cannot be called.
        ValueError: it does not take a state and a bucket, or its annotations say something else.
    """
    if not callable(hook):
        raise TypeError("Communication hook must be callable.")
    try:
        signature = inspect.signature(hook, eval_str=True)
    except NameError:  # annotations that have a meaning to type checkers only
        signature = inspect.signature(hook)
    try:
        bound = signature.bind(None, None)
    except TypeError:
        raise ValueError(
            f"Communication hook: it is called as hook(state, bucket), not as {signature}"
        ) from None
    bucket = signature.parameters[[*bound.arguments][-1]].annotation
    if bucket not in (inspect.Parameter.empty, GradBucket, Any, object, "GradBucket"):
        raise ValueError(
            f"Communication hook: bucket annotation should be ah.GradBucket. It is {bucket!r}"
        )
    if not _is_future(signature.return_annotation):
        raise ValueError(
            "Communication hook: return annotation should be Future[numpy.ndarray]. "
            f"It is {signature.return_annotation!r}"
        )


def check_future(future: object) -> "concurrent.futures.Future[Any]":
    """Return the answer of a hook if a future.

    Raises:
        RuntimeError: it is something else.
    """
    if not isinstance(future, concurrent.futures.Future):
        raise RuntimeError(f"callback must return a Future object, but got {type(future).__name__}")
    return future


def check_average(average: object, buffer: Gradient) -> Any:
    """Return the result of a hook's future, in the form of the bucket's buffer.

    It may be a list of one array; one that is not sparse may have any shape.

    Raises:
        RuntimeError: no array, or of another dtype or number of elements than the buffer.
    """
    if isinstance(average, list | tuple) and len(average) == 1:
        average = average[0]
    match buffer, average:
        case SparseArray(), SparseArray():
            is_like = (average.dtype, average.shape) == (buffer.dtype, buffer.shape)
        case np.ndarray(), np.ndarray():
            is_like = (average.dtype, average.size) == (buffer.dtype, buffer.size)
            average = average.reshape(buffer.shape) if is_like else average
        case _:
            raise RuntimeError(
                f"the future of a communication hook gives a {type(buffer).__name__}, as the "
                "buffer "
                f"of its bucket is, not {type(average).__name__}"
            )
    if not is_like:
        raise RuntimeError(
            f"the future of a communication hook gives {buffer.dtype} of shape {buffer.shape}, as "
            "the "
            f"buffer of its bucket has, not {average.dtype} of {average.shape}"
        )
    return average


def _is_future(annotation: Any) -> bool:
    if annotation in (inspect.Parameter.empty, Any, object):
        return True
    if isinstance(annotation, str):
        return "Future" in annotation
    found = get_origin(annotation) or annotation
    return isinstance(found, type) and issubclass(found, concurrent.futures.Future)
