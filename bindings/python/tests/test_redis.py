"""Policies whose limits are on a Redis server, which may be away."""

import asyncio
import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from servers import free_port

from portcullis import Policy, RedisStore

SERVER = os.environ.get("PORTCULLIS_REDIS", "")

pytestmark = pytest.mark.skipif(not SERVER, reason="redis-server is missing")

RULES = """
stores = ["redis"]

[[rules]]
name = "clients"
key = ["address"]
limits = ["20/h"]
store = "redis"
"""


def test_ci_has_a_server() -> None:
    assert SERVER or not os.environ.get("CI")


@contextlib.contextmanager
def redis(port: int, folder: Path) -> Iterator[None]:
    command = [SERVER, "--port", str(port), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen([*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.kill()
        server.wait(30)


def policy(port: int, **settings: Any) -> Policy:
    store = RedisStore(f"redis://127.0.0.1:{port}/", time_limit=2.0, **settings)
    return Policy.from_toml(RULES, stores={"redis": store})


def statuses(asked: Policy, number: int, address: str = "192.0.2.7") -> List[int]:
    return [asked.decide("GET", "/", address=address).status for _ in range(number)]


def until_answered(asked: Policy) -> None:
    """Waits until the server answers."""
    deadline = time.monotonic() + 30
    while statuses(asked, 1, "198.51.100.1") != [200]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_share_the_limits_of_a_server(tmp_path: Path) -> None:
    port = free_port()
    first, second = policy(port), policy(port)
    other = policy(port, prefix="other:")
    with redis(port, tmp_path):
        until_answered(first)
        until_answered(second)
        children = []
        for asked in (first, second) * 2:
            child = os.fork()
            if child == 0:
                os._exit(statuses(asked, 8).count(200))
            children.append(child)
        granted = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sum(granted) == 20
        assert statuses(first, 1) == [429]
        until_answered(other)
        assert statuses(other, 1) == [200]


def test_tasks_ask_a_server_at_once(tmp_path: Path) -> None:
    port = free_port()
    asked = policy(port)

    async def one() -> int:
        with await asked.judge("GET", "/", address="192.0.2.7") as decision:
            return decision.status

    async def main() -> List[int]:
        return await asyncio.gather(*(one() for _ in range(100)))

    with redis(port, tmp_path):
        until_answered(asked)
        assert sorted(asyncio.run(main())) == [200] * 20 + [429] * 80


@pytest.mark.parametrize(
    "when_down, expected",
    [("deny", [503] * 12), ("allow", [200] * 12), ("1/2", [200] * 10 + [429] * 2)],
)
def test_an_outage_is_as_the_settings_say(
    when_down: str, expected: List[int], tmp_path: Path
) -> None:
    port = free_port()
    asked = policy(port, when_down=when_down)
    assert statuses(asked, 12) == expected
    with redis(port, tmp_path):
        deadline = time.monotonic() + 30
        # The limits of the server are full.
        while statuses(asked, 1, "198.51.100.9") != [200] or statuses(asked, 1) != [200]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_settings_of_a_store_are_judged() -> None:
    secret = "redis://:secret@"
    for url in ("", "localhost", "http://127.0.0.1/", secret):
        with pytest.raises(ValueError, match="url: expected an address") as raised:
            RedisStore(url)
        assert "secret" not in str(raised.value)
    url = "redis://127.0.0.1:1/"
    for when_down in ("", "fail", "0/2", "3/2", "1/0", "a/b"):
        with pytest.raises(ValueError, match="when_down"):
            RedisStore(url, when_down=when_down)
    for limit in (0.0, -1.0, float("nan"), float("inf"), 1e-9):
        with pytest.raises(ValueError, match="time_limit"):
            RedisStore(url, time_limit=limit)
