"""Plain calls that try the native core first, where there is one, without the interpreter.

The function remains: it has all that the core declines or cannot judge, and the calls of threads at
which a profiler or debugger looks.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from allhands.api.default_world import default
from allhands.runtime import native_core
from allhands.tracebacks import trim_core_error

F = TypeVar("F", bound=Callable[..., Any])
Way = Literal["direct_calls", "direct_p2p", "vector_calls"]
Returned = Literal["nothing", "rank", "result"]

_core, _ = native_core.find()
_TO_GROUP, _NOWHERE, _BEGINS = -1, -2, -3
_RETURNED: tuple[Returned, ...] = ("nothing", "rank", "result")
"""In the order in which the core numbers them."""


def tries_core(
    method: str,
    *names: str,
    way: Way = "direct_calls",
    returns: Returned = "nothing",
    starts: str | None = None,
) -> Callable[[F], F]:
    """Decorator of a plain call that tries a method of the native core before all else.

    The function tries it too, and has to: it is called in place of the method, or after it, with
    the same arguments. So the decorator changes only how long a call takes.

    Args:
        method: of what the group's order has as `way`. It declines with False, or where it
            returns a rank with a negative number.
        names: parameters that the method takes, in its order; then it takes `timeout` and `label`,
            if the function does. "root" is `src` or `dst`, by default 0. Other parameters, but for
            `group`, have to be what they are by default.
        starts: parameter whose argument is the result of the work of a call that is only begun, ""
            being None. The method for that is `start_` with the name of the other, takes the same
            arguments and the result, and declines with None. None: there is no such method.
    """

    def decorate(function: F) -> F:
        if _core is None:
            return function
        parameters = inspect.signature(function).parameters
        root = "src" if "src" in parameters else "dst"
        passed = [root if name == "root" else name for name in names]
        passed += [name for name in ("timeout", "label") if name in parameters]
        places = {"group": _TO_GROUP, **{name: place for place, name in enumerate(passed)}}
        if starts is not None:
            places["async_op"] = _BEGINS
        rows = [
            (name, places.get(name, _NOWHERE), one.default is one.empty, _read_default(one))
            for name, one in parameters.items()
            if one.kind is not one.VAR_KEYWORD
        ]
        unsaid = {name: value for name, _, _, value in rows}
        if "root" in names:
            unsaid[root] = 0
        call = _core.PlainCall(
            function=function,
            holder=default,
            on_error=trim_core_error,
            way=way,
            method=method,
            passed=tuple(unsaid[name] for name in passed),
            parameters=tuple(rows),
            positional=sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters.values()),
            root=[*parameters].index(root) if "root" in names else -1,
            result=_RETURNED.index(returns),
            start=None if starts is None else f"start_{method}",
            value=places[starts] if starts else -1,
        )
        return cast("F", functools.update_wrapper(call, function))

    return decorate


def _read_default(parameter: inspect.Parameter) -> Any:
    return None if parameter.default is parameter.empty else parameter.default
