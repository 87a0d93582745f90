"""Limits of functions."""

import functools
import inspect
import math
from typing import Any, Callable, Optional, TypeVar, Union, cast

from ._errors import Rejected
from ._portcullis import Acquire, Keyed, Lease, Limiter

_Function = TypeVar("_Function", bound=Callable[..., Any])


def limited(
    limit: Union[Limiter, Keyed],
    *,
    key: Optional[Callable[..., Union[str, bytes, int]]] = None,
    permits: int = 1,
    timeout: Optional[float] = 0.0,
) -> Callable[[_Function], _Function]:
    """Limits the calls of a function, or of a coroutine function.

    A call takes `permits`, and releases them when it returns. It waits for them at most `timeout`
    seconds: 0 does not wait, None waits for any time. Without permits it raises `Rejected`, which
    the middleware answers with 429. For a `Keyed`, `key` is a function of the same arguments.
    """
    _check(limit, key, permits, timeout)
    calls = _Calls(limit, key, permits, timeout)

    def decorate(function: _Function) -> _Function:
        _check_function(function)
        if _is_coroutine_function(function):

            @functools.wraps(function)
            async def waits(*args: Any, **kwargs: Any) -> Any:
                with await calls.lease_of_task(args, kwargs):
                    return await function(*args, **kwargs)

            return cast(_Function, waits)

        @functools.wraps(function)
        def blocks(*args: Any, **kwargs: Any) -> Any:
            with calls.lease_of_thread(args, kwargs):
                return _ended(function(*args, **kwargs))

        return cast(_Function, blocks)

    return decorate


class _Calls:
    """What calls of a function ask of its limit."""

    def __init__(
        self, limit: Any, key: Optional[Callable[..., Any]], permits: int, timeout: Optional[float]
    ) -> None:
        self._limit = limit
        self._key = key
        self._permits = permits
        self._timeout = timeout

    def _acquire(self, args: Any, kwargs: Any) -> "Union[Lease, Acquire]":
        """Returns the permits, or a request for them that is to wait."""
        first = () if self._key is None else (self._key(*args, **kwargs),)
        if self._timeout != 0:
            acquire: Acquire = self._limit.acquire(*first, self._permits, self._timeout)
            return acquire
        lease: Optional[Lease] = self._limit.try_acquire(*first, self._permits)
        if lease is None:
            wait = self._limit.retry_after(*first, self._permits)
            raise Rejected("too many calls", wait if math.isfinite(wait) else None)
        return lease

    def lease_of_thread(self, args: Any, kwargs: Any) -> Lease:
        asked = self._acquire(args, kwargs)
        return asked if isinstance(asked, Lease) else asked.block()

    async def lease_of_task(self, args: Any, kwargs: Any) -> Lease:
        asked = self._acquire(args, kwargs)
        return asked if isinstance(asked, Lease) else await asked


def _check(limit: object, key: object, permits: int, timeout: Optional[float]) -> None:
    if not isinstance(limit, (Limiter, Keyed)):
        kind = type(limit).__name__
        raise TypeError(f"limited takes a limit, such as a TokenBucket or a Keyed, not {kind}")
    if isinstance(limit, Keyed) != (key is not None):
        raise TypeError("a Keyed needs a key, which other limits do not have")
    if permits < 1:
        raise ValueError("permits must be at least 1")
    if timeout is not None and not timeout >= 0:
        raise ValueError("timeout must be a number of seconds, not negative")


def _check_function(function: Any) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise TypeError(f"limited goes below @{kind}: it decorates the function itself")
    if inspect.isclass(function) or not callable(function):
        raise TypeError("limited decorates a function, or a coroutine function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(_RUNS_LATER)


_RUNS_LATER = (
    "limited takes no generator: it runs after its function has returned, so take the permits in it"
)


def _is_coroutine_function(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    is_one = inspect.iscoroutinefunction
    return is_one(function) or is_one(getattr(type(function), "__call__", None))


def _ended(result: Any) -> Any:
    """Returns the result of a function, if nothing of it is still to run."""
    runs_later = inspect.isawaitable(result) or inspect.isgenerator(result)
    if not runs_later and not inspect.isasyncgen(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(
        "this function returns what runs after it has returned: decorate what is awaited or "
        "iterated over, or take the permits in it"
    )
