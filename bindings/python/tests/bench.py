"""Measures a call of each limiter, beside its peers where they are installed.

    python tests/bench.py

Prints a table of nanoseconds for a call: the least of several runs, without the loop around it.
Install the peers with: pip install limits pyrate-limiter aiolimiter token_bucket throttled-py
"""

import asyncio
import functools
import importlib.util
import timeit
from typing import Any, Callable, Dict, List, Tuple

import portcullis
from portcullis.asgi import RateLimitMiddleware

NUMBER = 200_000
REPEATS = 9
MANY = 1_000_000_000

Row = Tuple[str, str, Callable[..., Any]]


def least(call: str, names: Dict[str, Any], number: int = NUMBER) -> float:
    """Returns the nanoseconds of a call."""

    def runs(statement: str) -> float:
        return min(timeit.repeat(statement, globals=names, number=number, repeat=REPEATS))

    return (runs(call) - runs("pass")) / number * 1e9


def ours() -> List[Tuple[str, str, Any]]:
    bucket = portcullis.TokenBucket(f"{MANY}/s")
    empty = portcullis.TokenBucket("1/day")
    empty.allow()
    keyed = portcullis.Keyed(portcullis.TokenBucket(f"{MANY}/s", burst=MANY // 1000), keys=1000)
    places = portcullis.Concurrency(5)
    rows: List[Tuple[str, str, Any]] = [
        ("TokenBucket, allowed", "call()", bucket.allow),
        ("TokenBucket, denied", "call()", empty.allow),
        ("TokenBucket, a lease", "call()", bucket.try_acquire),
        ("Concurrency, taken and released", "call().release()", places.try_acquire),
        ("Keyed, by text", "call('client-1234')", keyed.allow),
    ]
    rules = '[[rules]]\nname = "a"\nkey = ["address"]\nlimits = ["1000000/s"]'
    policy = portcullis.Policy.from_toml(rules)
    decide = "call('GET', '/items', address='192.0.2.7', headers=[('host', 'example.com')])"
    rows.append(("Policy.decide", decide, policy.decide))
    if hasattr(portcullis, "shared"):
        shared = portcullis.shared("bench", portcullis.TokenBucket(f"{MANY}/s"))
        rows.append(("shared TokenBucket", "call()", shared.allow))
    return rows


def peers() -> List[Tuple[str, str, Any]]:
    rows: List[Tuple[str, str, Any]] = []
    there = importlib.util.find_spec
    if there("token_bucket"):
        import token_bucket

        limiter = token_bucket.Limiter(MANY, MANY, token_bucket.MemoryStorage())
        rows.append(("token_bucket, by text", "call('client-1234')", limiter.consume))
    if there("limits"):
        import limits

        item = limits.RateLimitItemPerSecond(MANY)
        for name in ["FixedWindowRateLimiter", "MovingWindowRateLimiter"]:
            strategy = getattr(limits.strategies, name)(limits.storage.MemoryStorage())
            # A moving window stores each request of the second.
            rows.append((f"limits, {name}", "call('client-1234')", partial(strategy.hit, item)))
    if there("pyrate_limiter"):
        import pyrate_limiter

        try:
            limiter = pyrate_limiter.Limiter(pyrate_limiter.Rate(MANY, 1000))
            rows.append(("pyrate-limiter", "call('client-1234')", limiter.try_acquire))
        except Exception as error:
            print("pyrate-limiter:", error)
    if there("throttled"):
        import throttled

        for using in ["fixed_window", "token_bucket"]:
            quota = throttled.rate_limiter.per_sec(MANY, burst=MANY)
            limiter = throttled.Throttled(using=using, quota=quota)
            rows.append((f"throttled-py, {using}", "call('client-1234')", limiter.limit))
    return rows


def partial(function: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    return lambda *rest: function(*first, *rest)


async def waits() -> List[Tuple[str, float]]:
    """Returns the nanoseconds of an acquisition that need not wait, in a task."""
    rows = []

    async def measure(name: str, acquire: Callable[[], Any], number: int = 20_000) -> None:
        loop = asyncio.get_running_loop()
        best = float("inf")
        for _ in range(REPEATS):
            begin = loop.time()
            for _ in range(number):
                async with acquire():
                    pass
            best = min(best, (loop.time() - begin) / number * 1e9)
        rows.append((name, best))

    bucket = portcullis.TokenBucket(f"{MANY}/s")
    await measure("TokenBucket, async with", bucket.acquire)
    await measure("Concurrency, async with", portcullis.Concurrency(5).acquire)
    semaphore = asyncio.Semaphore(5)
    await measure("asyncio.Semaphore", lambda: semaphore)
    if importlib.util.find_spec("aiolimiter"):
        import aiolimiter

        limiter = aiolimiter.AsyncLimiter(MANY, 1)
        await measure("aiolimiter", lambda: limiter)
    policy = portcullis.Policy.from_toml('[[rules]]\nname = "a"\nlimits = ["1000000/s"]')
    for name, app in [("ASGI alone", answers), ("ASGI", RateLimitMiddleware(answers, policy))]:
        await measure(name, functools.partial(Request, app))
    rows.append(("a hand-over", await hand_over(portcullis.Concurrency(1).acquire)))
    one = asyncio.Semaphore(1)
    rows.append(("a hand-over, asyncio.Semaphore", await hand_over(lambda: one)))
    return rows


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


class Request:
    """A request to a service of ASGI, as a context."""

    SCOPE = {"type": "http", "method": "GET", "path": "/items", "client": ("192.0.2.7", 1)}

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __aenter__(self) -> None:
        scope = {**self.SCOPE, "headers": [(b"host", b"example.com")]}
        await self._app(scope, self._nothing, self._nothing)

    async def __aexit__(self, *_: Any) -> None:
        pass

    async def _nothing(self, *_: Any) -> Any:
        pass


async def hand_over(acquire: Callable[[], Any], number: int = 20_000) -> float:
    """Returns the nanoseconds from one task that waits to the next."""
    tasks = 100

    async def one() -> None:
        for _ in range(number // tasks):
            async with acquire():
                await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    best = float("inf")
    for _ in range(REPEATS):
        begin = loop.time()
        await asyncio.gather(*(one() for _ in range(tasks)))
        best = min(best, (loop.time() - begin) / number * 1e9)
    return best


def main() -> None:
    print("| | ns |\n|---|---|")
    for name, call, function in ours() + peers():
        print(f"| {name} | {least(call, {'call': function}):.0f} |")
    for name, nanos in asyncio.run(waits()):
        print(f"| {name} | {nanos:.0f} |")


if __name__ == "__main__":
    main()
