"""Measures a call of each limiter, beside its peers where they are installed.

    python tests/bench.py

Prints a table of nanoseconds for a call: the least of several runs, without the loop around it.
Install the peers with: pip install limits pyrate-limiter aiolimiter token_bucket throttled-py
"""

import asyncio
import importlib.util
import timeit
from typing import Any, Callable, Dict, List, Tuple

import portcullis

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
    return rows


def main() -> None:
    print("| | ns |\n|---|---|")
    for name, call, function in ours() + peers():
        print(f"| {name} | {least(call, {'call': function}):.0f} |")
    for name, nanos in asyncio.run(waits()):
        print(f"| {name} | {nanos:.0f} |")


if __name__ == "__main__":
    main()
