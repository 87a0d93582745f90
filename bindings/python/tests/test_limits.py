"""Limits that do not wait."""

import enum
import gc
import math
import resource
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Callable, List

import pytest

import portcullis
from portcullis import AllOf, Concurrency, FixedWindow, Keyed, Lease, SlidingWindow, TokenBucket


def granted(limit: Any, tries: int) -> int:
    return sum(limit.allow() for _ in range(tries))


def test_a_bucket_grants_its_burst_and_then_by_time() -> None:
    # The burst is large: while this process does not run, permits are not lost.
    bucket = TokenBucket("10000/s", burst=10_000)
    begin = time.monotonic()
    count = granted(bucket, 10_000)
    while time.monotonic() - begin < 0.1:
        count += bucket.allow()
    # This process may not have run at the end.
    while bucket.allow():
        count += 1
    passed = time.monotonic() - begin
    assert 10_000 + 10_000 * 0.1 - 2 <= count <= 10_000 + 10_000 * passed + 1


def test_a_bucket_has_the_number_of_its_rate_as_burst() -> None:
    assert granted(TokenBucket("7/h"), 20) == 7


@pytest.mark.parametrize(
    "limit, capacity",
    [
        (TokenBucket("10/h", burst=3), 3),
        (FixedWindow("10/h"), 10),
        (SlidingWindow("10/h"), 10),
        (SlidingWindow("10/h", segments=1), 10),
        (AllOf(TokenBucket("10/h"), FixedWindow("4/day")), 4),
    ],
)
def test_limits_grant_what_they_have(limit: portcullis.Limiter, capacity: int) -> None:
    assert limit.available() == capacity
    assert limit.retry_after() == 0.0
    assert granted(limit, 50) == capacity
    assert limit.available() == 0
    assert 0 < limit.retry_after() <= 86_400
    assert limit.try_acquire() is None
    with pytest.raises(ValueError, match=f"{capacity + 1} permits .* at most {capacity}"):
        limit.allow(capacity + 1)
    with pytest.raises(ValueError, match="more than the limit ever has"):
        limit.try_acquire(100)
    assert limit.retry_after(100) == math.inf


def test_a_request_for_nothing_asks_and_takes_nothing() -> None:
    bucket = TokenBucket("1/h")
    assert bucket.allow(0) and bucket.allow(0) and bucket.allow(1)
    assert not bucket.allow(0)


def test_permits_of_a_concurrency_are_held() -> None:
    places = Concurrency(2)
    first, second = places.try_acquire(), places.try_acquire()
    assert first is not None and second is not None
    assert places.try_acquire() is None
    assert places.retry_after() == math.inf
    first.release()
    first.release()
    assert first.permits == 0
    with places.acquire() as third:
        assert third.permits == 1
        assert places.available() == 0
    assert places.available() == 1
    second.release()
    assert places.available() == 2
    with pytest.raises(TypeError, match="must be held"):
        places.allow()
    with pytest.raises(TypeError, match="must be held"):
        AllOf(TokenBucket("1/s"), Concurrency(1)).allow()


def test_a_lease_that_is_dropped_releases_and_warns() -> None:
    places = Concurrency(1)
    with pytest.warns(ResourceWarning, match="a Lease was dropped"):
        assert places.try_acquire()
    assert places.available() == 1
    bucket = TokenBucket("5/h")
    assert bucket.try_acquire()
    assert bucket.available() == 4, "permits that return by time need not be held"


def test_a_lease_is_released_by_an_exception() -> None:
    places = Concurrency(1)
    with pytest.raises(KeyError):
        with places.acquire():
            raise KeyError
    assert places.available() == 1
    lease = places.try_acquire()
    assert lease is not None
    with pytest.raises(KeyError):
        with lease:
            raise KeyError
    assert places.available() == 1


def test_a_destructor_leaves_an_exception_under_way_as_it_is() -> None:
    def fails() -> None:
        lease = Concurrency(1).try_acquire()
        assert lease is not None
        raise KeyError("as it was")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(KeyError, match="as it was"):
            fails()


def test_permits_that_were_not_needed_are_refunded() -> None:
    bucket = TokenBucket("10/h")
    lease = bucket.try_acquire(7)
    assert lease is not None and lease.refund() == 7 and lease.permits == 0
    assert lease.refund() == 0
    assert bucket.available() == 10


def test_all_of_takes_from_all_or_from_none() -> None:
    limit = AllOf(TokenBucket("10/h"), Concurrency(2))
    one, two = limit.try_acquire(), limit.try_acquire()
    assert one is not None and two is not None
    for _ in range(20):
        assert limit.try_acquire() is None
    one.release()
    two.release()
    with limit.acquire(2):
        pass
    # Two and two were taken, and nothing by the denials.
    taken = 0
    while lease := limit.try_acquire():
        lease.release()
        taken += 1
    assert taken == 6


def test_each_key_has_a_limit() -> None:
    limits = Keyed(TokenBucket("3/h"), keys=100)
    keys: List[Any] = ["a", "b", b"a", 1, -1, -2, 2**61, 2**61 - 1, 0, "", b"", "1"]
    keys += [2**128 - 1, 2**127, -(2**128 - 1), "\udc80", "ä", "a\0b"]
    for key in keys:
        assert limits.available(key) == 3, key
        assert sum(limits.allow(key) for _ in range(9)) == 3, key
        assert limits.retry_after(key) > 0
    assert limits.available("another") == 3


def test_a_key_of_a_subclass_is_that_of_its_class() -> None:
    class Name(str):
        def __hash__(self) -> int:
            return 7

    class Colour(str, enum.Enum):
        RED = "red"

    class Number(enum.IntEnum):
        ONE = 1

    limits = Keyed(TokenBucket("1/h"))
    class Odd(str):
        pass

    same: Any
    key: Any
    for key, same in [("x", Name("x")), ("\udc80", Odd("\udc80")), ("red", Colour.RED), (1, Number.ONE), (0, False)]:
        assert limits.allow(key) and not limits.allow(same)


@pytest.mark.parametrize("key", [None, 1.5, ("a", 1), [], object()])
def test_other_keys_are_refused(key: Any) -> None:
    with pytest.raises(TypeError, match="a key is str, bytes or int, not"):
        Keyed(TokenBucket("1/h")).allow(key)


def test_a_key_that_is_a_number_has_128_bits() -> None:
    with pytest.raises(ValueError, match="at most 128 bits"):
        Keyed(TokenBucket("1/h")).allow(2**128)


def test_an_error_of_an_argument_is_passed_on() -> None:
    class Number:
        def __index__(self) -> int:
            raise KeyError("as it was")

    number: Any = Number()
    with pytest.raises(KeyError, match="as it was"):
        TokenBucket("1/h").allow(number)
    with pytest.raises(KeyError, match="as it was"):
        TokenBucket("1/h", burst=number)


@pytest.mark.parametrize(
    "rate", ["86399/d", "100003/d", "1000003/d", "1234567/d", "10000019/h", "7777777/15min", "3/s"]
)
def test_a_bucket_has_any_rate(rate: str) -> None:
    count = int(rate.split("/")[0])
    for bucket in [TokenBucket(rate), TokenBucket(rate, burst=2 * count)]:
        capacity = bucket.available()
        assert capacity in (count, 2 * count) and bucket.allow(capacity)
        assert 0 < bucket.retry_after(1) <= 86_400 / count + 0.001
    keyed = Keyed(TokenBucket(rate, burst=5))
    assert keyed.allow("a", 5)


def test_a_bucket_of_a_high_rate_is_full_when_it_was_idle() -> None:
    for start in range(8):
        bucket = TokenBucket("2147483647/s")
        assert bucket.available() == 2147483647 and bucket.allow(), start


def test_limits_of_limits_are_joined() -> None:
    limit = AllOf(AllOf(TokenBucket("1/s"), Concurrency(2)), FixedWindow("9/h"))
    assert repr(limit) == "AllOf(TokenBucket('1/s'), Concurrency(2), FixedWindow('9/h'))"
    for _ in range(3000):
        limit = AllOf(limit)
    with limit.acquire():
        pass


def test_a_table_that_does_not_fit_is_an_error() -> None:
    program = (
        "import resource, portcullis as p\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "table = p.Keyed(p.TokenBucket('1/s'), keys=100_000_000)\n"
        "try:\n"
        "    table.allow('a')\n"
        "except MemoryError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=30)
    assert run.returncode == 0 and b"a table of this size needs" in run.stdout


def test_a_key_without_room_is_denied() -> None:
    limits = Keyed(TokenBucket("2/h"), keys=10)
    granted = [sum(limits.allow(key) for _ in range(4)) for key in range(1000)]
    assert granted[:10] == [2] * 10 and set(granted) == {0, 2}


def test_a_key_has_several_limits() -> None:
    limits = Keyed(AllOf(TokenBucket("10/h"), FixedWindow("4/day"), Concurrency(1)))
    for _ in range(4):
        with limits.acquire("a"):
            assert limits.try_acquire("a") is None
    assert limits.try_acquire("a") is None
    with limits.acquire("b"):
        pass


def test_a_limit_gives_its_settings_only() -> None:
    bucket = TokenBucket("1/h")
    assert bucket.allow()
    assert AllOf(bucket).allow()
    assert Keyed(bucket).allow("a")
    assert not bucket.allow()


@pytest.mark.parametrize(
    "text, count, seconds",
    [
        ("5/s", 5, 1),
        ("5/m", 5, 60),
        ("5/minute", 5, 60),
        ("5 / minute", 5, 60),
        ("5 per minute", 5, 60),
        ("5 per 2 minutes", 5, 120),
        ("5/2minutes", 5, 120),
        ("5/15min", 5, 900),
        ("5 PER HOUR", 5, 3600),
        ("5/day", 5, 86400),
        ("5/500ms", 5, 0.5),
        (" 5/hrs ", 5, 3600),
    ],
)
def test_rates_are_read(text: str, count: int, seconds: float) -> None:
    bucket = TokenBucket(text)
    assert bucket.available() == count
    assert bucket.allow(count)
    assert seconds - 0.2 <= bucket.retry_after(count) <= seconds


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "expected a number per unit of time"),
        ("5", "expected a number per unit of time"),
        ("/s", "expected a number per unit of time"),
        ("5/", "the unit of time is not one of"),
        ("5/fortnight", "the unit of time is not one of"),
        ("0/s", "the numbers must be at least 1"),
        ("5/0s", "the numbers must be at least 1"),
        ("-5/s", "of digits only"),
        ("1.5/s", "of digits only"),
        ("99999999999/s", "larger than 4294967295"),
        ("5/s;10/h", "the unit of time is not one of"),
    ],
)
def test_other_rates_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        TokenBucket(text)
    assert text in str(error.value)


# What a type checker would refuse.
untyped: Any = portcullis


@pytest.mark.parametrize(
    "make, error, problem",
    [
        (lambda: TokenBucket("5/s", burst=0), ValueError, "burst must be from 1 to 4294967295"),
        (lambda: TokenBucket("5/s", burst=2**40), ValueError, "burst must be from 1"),
        (lambda: TokenBucket("5/s", burst=-1), ValueError, "burst must be from 1"),
        (lambda: TokenBucket("5/s", burst=2**80), ValueError, "burst must be from 1"),
        (lambda: untyped.TokenBucket("5/s", burst="1"), TypeError, "burst must be an int, not str"),
        (lambda: TokenBucket("5/s", max_waiting=-1), ValueError, "max_waiting must be from 0"),
        (lambda: SlidingWindow("5/s", segments=0), ValueError, "segments must be from 1 to 8"),
        (lambda: SlidingWindow("5/s", segments=9), ValueError, "segments must be from 1 to 8"),
        (lambda: Concurrency(0), ValueError, "limit must be from 1 to 1073741823"),
        (lambda: AllOf(), ValueError, "AllOf takes 1 to 8 limits"),
        (lambda: AllOf(*[Concurrency(1)] * 9), ValueError, "AllOf takes 1 to 8 limits"),
        (lambda: untyped.AllOf("5/s"), TypeError, "AllOf takes limits, .* not str"),
        (lambda: Keyed(TokenBucket("5/s"), keys=0), ValueError, "keys must be from 1"),
        (lambda: Keyed(TokenBucket("5/s"), keys=10**12), ValueError, "keys must be from 1"),
        (lambda: Keyed(SlidingWindow("5/s")), TypeError, "a limit for each key is a TokenBucket"),
        (lambda: untyped.Keyed("5/s"), TypeError, "Keyed takes a limit, .* not str"),
        (lambda: untyped.Limiter(), TypeError, "cannot create 'portcullis.Limiter' instances|No constructor"),
        (lambda: TokenBucket("5/s").allow(-1), ValueError, "permits must be from 0 to 4294967295"),
        (lambda: untyped.TokenBucket("5/s").allow("1"), TypeError, "permits must be an int, not str"),
        (lambda: TokenBucket("5/s").acquire(timeout=-1), ValueError, "timeout must be"),
        (lambda: TokenBucket("5/s").acquire(timeout=math.nan), ValueError, "timeout must be"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], Any], error: Any, problem: str) -> None:
    with pytest.raises(error, match=problem):
        make()


def test_a_closed_limit_says_so() -> None:
    bucket = TokenBucket("5/s")
    bucket.close()
    with pytest.raises(RuntimeError, match="the limiter is closed"):
        bucket.allow()
    with pytest.raises(portcullis.Rejected, match="the limiter is closed") as error:
        bucket.acquire().block()
    assert error.value.retry_after is None


def test_limits_are_shown_as_they_are_written() -> None:
    for text in [
        "TokenBucket('10/s')",
        "TokenBucket('10/s', burst=2)",
        "FixedWindow('10 per minute')",
        "SlidingWindow('10/s', segments=4)",
        "Concurrency(3)",
        "AllOf(TokenBucket('10/s'), Concurrency(3))",
        "Keyed(TokenBucket('10/s'), keys=100)",
    ]:
        assert repr(eval(text, vars(portcullis))) == text


def test_threads_get_what_one_would() -> None:
    bucket, keyed = TokenBucket("1000/h"), Keyed(FixedWindow("1000/h"))
    counts: List[int] = []

    def take() -> None:
        counts.append(sum(bucket.allow() + keyed.allow("a") for _ in range(1000)))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 2000


def test_a_million_calls_leave_nothing_behind() -> None:
    bucket, places = TokenBucket("1/h"), Concurrency(3)
    keyed = Keyed(TokenBucket("1/h"), keys=1000)
    key = "a key"

    def calls(count: int) -> None:
        for number in range(count):
            bucket.allow()
            bucket.try_acquire()
            keyed.allow(key)
            keyed.allow(str(number))
            with places.acquire():
                pass
            lease = places.try_acquire()
            assert type(lease) is Lease
            lease.release()

    calls(10_000)
    gc.collect()
    before = sys.getrefcount(key), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    objects = len(gc.get_objects())
    calls(200_000)
    gc.collect()
    after = sys.getrefcount(key), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after[0] == before[0]
    assert after[1] - before[1] < 2000, "KiB"
    assert len(gc.get_objects()) <= objects + 100
