"""Limits of functions."""

import asyncio
import functools
from typing import Any, AsyncIterator, Awaitable, Iterator, List

import pytest

from portcullis import AcquireTimeout, Concurrency, Keyed, Rejected, TokenBucket, limited


def test_a_function_is_limited() -> None:
    @limited(TokenBucket("2/h"))
    def twice(number: int) -> int:
        """Returns the double."""
        return 2 * number

    assert [twice(1), twice(number=2)] == [2, 4]
    assert (twice.__name__, twice.__doc__) == ("twice", "Returns the double.")
    with pytest.raises(Rejected, match="too many calls") as raised:
        twice(3)
    assert raised.value.retry_after == pytest.approx(1800, abs=1)


def test_a_key_is_that_of_the_arguments() -> None:
    @limited(Keyed(TokenBucket("3/h")), key=lambda user, **_: user, permits=2)
    def call(user: str, *, size: int) -> str:
        return user * size

    assert [call("a", size=2), call("b", size=1)] == ["aa", "b"]
    with pytest.raises(Rejected) as raised:
        call("a", size=1)
    # One of two permits is there.
    assert raised.value.retry_after == pytest.approx(1200, abs=1)


def test_permits_are_held_while_a_function_runs() -> None:
    places = Concurrency(1)
    seen: List[int] = []

    @limited(places)
    def call() -> None:
        seen.append(places.available())
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            call()
    assert (seen, places.available()) == ([0, 0], 1)

    @limited(places)
    def outer() -> None:
        with pytest.raises(Rejected) as raised:
            call()
        # No time helps.
        assert raised.value.retry_after is None

    outer()


def test_a_coroutine_function_waits_in_order() -> None:
    places = Concurrency(1)
    order: List[int] = []

    @limited(places, timeout=None)
    async def call(number: int) -> None:
        assert places.available() == 0
        await asyncio.sleep(0)
        order.append(number)

    @limited(places)
    async def at_once() -> int:
        return 1

    async def main() -> None:
        await asyncio.gather(*(call(number) for number in range(20)))
        assert await at_once() == 1
        async with places.acquire():
            with pytest.raises(Rejected):
                await at_once()
        assert places.available() == 1

    asyncio.run(main())
    assert order == list(range(20))


def test_a_wait_has_a_timeout() -> None:
    @limited(TokenBucket("1/h"), timeout=0.01)
    def call() -> None:
        pass

    call()
    with pytest.raises(AcquireTimeout):
        call()

    @limited(TokenBucket("100/s", burst=1), timeout=5.0)
    def soon() -> None:
        pass

    for _ in range(3):
        soon()


class _Callable:
    async def __call__(self) -> int:
        await asyncio.sleep(0)
        return _PLACES.available()


_PLACES = Concurrency(1)


def test_an_object_that_is_called_as_a_coroutine_function_is_one() -> None:
    async def call(number: int) -> int:
        await asyncio.sleep(0)
        return _PLACES.available() + number

    async def main() -> None:
        assert await limited(_PLACES)(_Callable())() == 0
        assert await limited(_PLACES)(functools.partial(call, 5))() == 5
        assert await limited(_PLACES)(functools.partial(_Callable()))() == 0
        assert _PLACES.available() == 1

    asyncio.run(main())


def test_what_runs_after_the_call_is_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    class Some:
        @classmethod
        def of_class(cls) -> None:
            pass

    refused: List[Any] = [generator, later, Some, 1, staticmethod(generator)]
    refused.append(vars(Some)["of_class"])
    for wrong in refused:
        with pytest.raises(TypeError):
            limited(_PLACES)(wrong)

    async def coroutine() -> int:
        return 1

    def returns_coroutine() -> Awaitable[int]:
        return coroutine()

    for wrong in (returns_coroutine, lambda: generator(), lambda: later()):
        with pytest.raises(TypeError, match="after it has returned"):
            limited(_PLACES)(wrong)()
    assert _PLACES.available() == 1


def test_wrong_settings_are_refused() -> None:
    bucket: Any = TokenBucket("1/h")
    keyed: Any = Keyed(bucket)
    wrong: Any = 1
    for limit, key in [(wrong, None), (keyed, None), (bucket, str)]:
        with pytest.raises(TypeError):
            limited(limit, key=key)
    for timeout in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            limited(bucket, timeout=timeout)
    with pytest.raises(ValueError, match="permits"):
        limited(bucket, permits=0)
