"""Forks, and limits that processes share."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List

import pytest

import portcullis
from portcullis import AllOf, Concurrency, FixedWindow, Keyed, SlidingWindow, TokenBucket


def in_child(child: Callable[[], None]) -> int:
    """Runs a function in a forked process, and returns its status: 0 if it did not fail."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            child()
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_a_forked_process_has_a_limit_of_its_own() -> None:
    used, unused = TokenBucket("10/h"), TokenBucket("10/h")
    assert used.allow(4)

    def child() -> None:
        assert used.available() == 6 and unused.available() == 10
        assert used.allow(6) and not used.allow()
        assert unused.acquire(10).block().permits == 10

        def grandchild() -> None:
            assert used.available() == 0

        assert in_child(grandchild) == 0

    assert in_child(child) == 0
    assert used.available() == 6 and unused.available() == 10


def test_a_forked_process_does_not_wait_behind_tasks_of_its_parent() -> None:
    async def main() -> None:
        places = Concurrency(2)
        lease = await places.acquire(2)
        waits = [asyncio.ensure_future(_acquire(places)) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert places.waiting() == 3

        def child() -> None:
            assert places.waiting() == 0
            lease.release()
            bucket = TokenBucket("100/s", burst=1)
            for _ in range(3):
                bucket.acquire().block()

            async def main() -> None:
                async with places.acquire(2, timeout=5):
                    pass

            # The loop of the parent runs in this thread: asyncio notices the fork.
            thread = threading.Thread(target=lambda: results.append(asyncio.run(main())))
            results: List[Any] = []
            thread.start()
            thread.join(10)
            assert results == [None]

        assert in_child(child) == 0
        assert places.waiting() == 3
        lease.release()
        for wait in waits:
            (await wait).release()
        assert places.available() == 2

    asyncio.run(main())


async def _acquire(limit: Any) -> Any:
    return await limit.acquire()


def test_a_fork_while_threads_take_and_wait() -> None:
    bucket, stop = TokenBucket("2000/s", burst=1), threading.Event()

    def take() -> None:
        while not stop.is_set():
            bucket.acquire().block()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):

            def child() -> None:
                for _ in range(5):
                    bucket.acquire(timeout=10).block()

            assert in_child(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_processes_share_a_bucket(name: str) -> None:
    bucket = portcullis.shared(name, TokenBucket("1000/h"))
    program = (
        "import sys, portcullis\n"
        "bucket = portcullis.shared(sys.argv[1], portcullis.TokenBucket('1000/h'))\n"
        "print(sum(bucket.allow() for _ in range(600)))\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    counts = [int(child.communicate(timeout=60)[0]) for child in children]
    assert sum(counts) == 1000
    assert not bucket.allow()
    del bucket


def test_a_forked_process_shares_what_its_parent_opened(name: str) -> None:
    window = portcullis.shared(name + "-window", FixedWindow("90/day"))
    bucket = AllOf(portcullis.shared(name, TokenBucket("100/h")), window)
    keyed = portcullis.shared(name + "-keys", Keyed(FixedWindow("50/day"), keys=100))
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            taken = sum(bucket.allow() for _ in range(100))
            taken += sum(keyed.allow("ä key") for _ in range(100))
            os._exit(taken)
        pids.append(pid)
    taken = sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
    assert taken == 90 + 50
    assert not bucket.allow() and not keyed.allow("ä key") and keyed.allow("another")
    assert not window.allow(), "one limit, alone and as a part"
    assert window.available() == 0
    del bucket, keyed, window
    gc.collect()
    portcullis.remove_shared(name + "-window")
    portcullis.remove_shared(name + "-keys")


def test_places_of_a_dead_process_return(name: str) -> None:
    places = portcullis.shared(name, Concurrency(2))
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = places.try_acquire(2)
        os.write(go, b"1" if held else b"0")
        time.sleep(60)
        os._exit(0)
    assert os.read(ready, 1) == b"1"
    assert places.try_acquire() is None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 10
    while places.available() < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with places.acquire(2, timeout=10):
        assert places.available() == 0
    assert places.available() == 2


def test_tasks_of_several_processes_wait_for_one_limit(name: str) -> None:
    program = (
        "import asyncio, sys, portcullis\n"
        "places = portcullis.shared(sys.argv[1], portcullis.Concurrency(2))\n"
        "async def one():\n"
        "    async with places.acquire():\n"
        "        await asyncio.sleep(0.005)\n"
        "async def main():\n"
        "    await asyncio.gather(*(one() for _ in range(50)))\n"
        "asyncio.run(asyncio.wait_for(main(), 60))\n"
        "print(places.waiting())\n"
    )
    begin = time.monotonic()
    children = [
        subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [child.communicate(timeout=60)[0] for child in children] == [b"0\n"] * 2
    assert time.monotonic() - begin >= 100 * 0.005 / 2


def test_a_name_has_one_limit(name: str) -> None:
    bucket = portcullis.shared(name, TokenBucket("10/s"))
    with pytest.raises(ValueError, match="settings"):
        portcullis.shared(name, TokenBucket("20/s"))
    with pytest.raises(ValueError, match="settings"):
        portcullis.shared(name, FixedWindow("10/s"))
    with pytest.raises(OSError):
        portcullis.remove_shared(name)
    del bucket
    gc.collect()
    portcullis.remove_shared(name)
    with pytest.raises(FileNotFoundError):
        portcullis.remove_shared(name)
    portcullis.shared(name, FixedWindow("10/s"))


@pytest.mark.parametrize(
    "limit, problem",
    [
        (SlidingWindow("10/s"), "processes can share a TokenBucket, a FixedWindow"),
        (AllOf(TokenBucket("1/s"), Concurrency(1)), "share each limit under a name of its own"),
        (Keyed(Concurrency(1)), "processes can share a TokenBucket or a FixedWindow for each"),
        ("10/s", "shared takes a limit"),
    ],
)
def test_what_cannot_be_shared_is_refused(name: str, limit: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        portcullis.shared(name, limit)


def test_a_shared_limit_says_so(name: str) -> None:
    bucket = portcullis.shared(name, TokenBucket("5/s"))
    assert repr(bucket) == f"shared('{name}', TokenBucket('5/s'))"
    assert repr(AllOf(bucket)) == f"AllOf({bucket!r})"
    with pytest.raises(TypeError, match="processes can share a TokenBucket"):
        portcullis.shared("another", bucket)
    with pytest.raises(TypeError, match="a limit for each key is a TokenBucket"):
        Keyed(bucket)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "x" * 300])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        portcullis.shared(name, TokenBucket("1/s"))
