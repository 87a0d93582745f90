"""Policies: rules from text and files, and what they decide."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

import portcullis
from portcullis import InvalidRequest, Policy

LOGINS = """
[[rules]]
name = "logins"
methods = ["POST"]
paths = ["/login"]
key = ["address"]
limits = ["2/h"]
"""

PLACE = """
[[rules]]
name = "place"
limits = [{ at_once = 1 }]
"""

QUEUE = """
[[rules]]
name = "queue"
limits = [{ at_once = 1, queue = 100 }]
"""


def statuses(policy: Policy, number: int, *request: str, **rest: Any) -> List[int]:
    return [policy.decide(*request, **rest).status for _ in range(number)]


LOGIN = ("POST", "/login")
CLIENT: Dict[str, Any] = {"address": "192.0.2.7"}


def test_a_rule_limits_the_requests_that_it_matches() -> None:
    policy = Policy.from_toml(LOGINS)
    assert statuses(policy, 3, *LOGIN, **CLIENT) == [200, 200, 429]
    assert statuses(policy, 1, *LOGIN, address="192.0.2.8") == [200]
    assert statuses(policy, 9, "GET", "/login", **CLIENT) == [200] * 9


def test_a_denial_is_a_whole_answer() -> None:
    policy = Policy.from_toml(LOGINS)
    allowed = policy.decide(*LOGIN, cost=2, **CLIENT)
    assert (allowed.allowed, allowed.status, allowed.body) == (True, 200, b"")
    assert dict(allowed.headers)["ratelimit"] == '"logins";r=0;t=3600'
    denied = policy.decide(*LOGIN, **CLIENT)
    assert (denied.allowed, denied.status) == (False, 429)
    headers = dict(denied.headers)
    assert 1790 <= int(headers["retry-after"]) <= 1800
    assert headers["content-type"].startswith("text/plain")
    assert denied.body == b"Too Many Requests"
    assert repr(denied) == "<Decision: denied, status 429>"


def test_the_header_fields_are_those_of_the_settings() -> None:
    names = {
        "draft-11": {"ratelimit", "ratelimit-policy"},
        "draft-7": {"ratelimit", "ratelimit-policy"},
        "draft-6": {
            "ratelimit-limit",
            "ratelimit-remaining",
            "ratelimit-reset",
            "ratelimit-policy",
        },
        "x": {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"},
    }
    for fields, expected in names.items():
        decision = Policy.from_toml(LOGINS, fields=fields).decide(*LOGIN, **CLIENT)
        assert {name for name, _ in decision.headers} == expected, fields
    assert Policy.from_toml(LOGINS, fields=None).decide(*LOGIN, **CLIENT).headers == []


@pytest.mark.parametrize(
    "method, path",
    [
        ("post", "/login"),
        ("POST", "//login"),
        ("POST", "/%6Cogin?next=%0A"),
    ],
)
def test_a_spelling_is_not_a_way_around_a_rule(method: str, path: str) -> None:
    policy = Policy.from_toml(LOGINS)
    assert statuses(policy, 3, method, path, **CLIENT) == [200, 200, 429]


def test_a_path_that_servers_read_in_several_ways_is_denied() -> None:
    policy = Policy.from_toml(LOGINS)
    assert statuses(policy, 1, "POST", "/a/../login", **CLIENT) == [400]


@pytest.mark.parametrize(
    "method, path, message",
    [
        ("POST", "/login%0A", "control character"),
        ("POST", "/login%0a", "control character"),
        ("POST", "/login\n", "control character"),
        ("POST", "/%00", "control character"),
        ("POST", "/%7f", "control character"),
        ("POST", "login", "does not begin with '/'"),
        ("POST", "http://example.com/login", "does not begin with '/'"),
        ("POST", "/" + "a" * 70_000, "too long"),
        ("PO ST", "/", "method"),
        ("", "/", "method"),
    ],
)
def test_what_is_no_request_has_no_limit(method: str, path: str, message: str) -> None:
    policy = Policy.from_toml(LOGINS)
    with pytest.raises(InvalidRequest, match=message) as raised:
        policy.decide(method, path, **CLIENT)
    assert len(str(raised.value)) < 100
    assert isinstance(raised.value, ValueError)


def test_header_fields_are_pairs_of_text_or_bytes() -> None:
    rule = '[[rules]]\nname = "keys"\nkey = ["header:x-key"]\nlimits = ["1/h"]'
    policy = Policy.from_toml(rule)
    forms: List[Any] = [
        [("X-Key", "a")],
        [(b"x-key", b"a")],
        [["x-key", "a"]],
        {"X-KEY": "a"},
        (pair for pair in [("x-key", "a")]),
    ]
    assert [policy.decide("GET", "/", headers=form).status for form in forms] == [200] + [429] * 4
    wrong: List[Any] = [["ab"], [b"ab"], [("a",)], [("a", "b", "c")], [1], [("a", 1)], 1]
    for headers in wrong:
        with pytest.raises(TypeError):
            policy.decide("GET", "/", headers=headers)
    many = [(f"x-{number}", "") for number in range(40_000)]
    invalid: List[Any] = [[("a b", "c")], [("a", "b\n")], [("a", "\u20ac")], many]
    for headers in invalid:
        with pytest.raises(InvalidRequest):
            policy.decide("GET", "/", headers=headers)


def test_properties_tier_host_and_cost_are_those_of_the_call() -> None:
    rules = """
    [[rules]]
    name = "gold"
    tiers = ["gold"]
    key = ["property:user"]
    limits = ["10/h"]

    [[rules]]
    name = "shop"
    hosts = ["shop.example"]
    limits = ["1/h"]
    """
    policy = Policy.from_toml(rules)
    gold: Dict[str, Any] = {"tier": "gold", "properties": {"user": "alice"}}
    assert policy.decide("GET", "/", cost=10, **gold).allowed
    assert not policy.decide("GET", "/", **gold).allowed
    assert policy.decide("GET", "/", tier="gold", properties={"user": "bob"}).allowed
    assert statuses(policy, 2, "GET", "/", host="shop.example") == [200, 429]
    assert statuses(policy, 2, "GET", "/", headers=[("Host", "shop.example")]) == [429, 429]
    assert statuses(policy, 2, "GET", "/", host="other.example") == [200, 200]
    for cost in (-1, 2**32):
        with pytest.raises(ValueError, match="cost"):
            policy.decide("GET", "/", cost=cost)


def test_proxies_that_are_trusted_name_the_client() -> None:
    def client(peer: Any, named: str, **settings: Any) -> bool:
        policy = Policy.from_toml(LOGINS, **settings)
        field = settings.get("forwarded", "x-forwarded-for")
        policy.decide(*LOGIN, cost=2, address="192.0.2.7")
        headers = [(field, named)]
        return not policy.decide(*LOGIN, address=peer, headers=headers).allowed

    assert client("10.0.0.1", "192.0.2.7", trusted=["10.0.0.0/8"])
    assert client("10.0.0.1", "198.51.100.1, 192.0.2.7", trusted=["10.0.0.1"])
    assert not client("10.0.0.1", "192.0.2.7, 198.51.100.1", trusted=["10.0.0.1"])
    assert not client("10.0.0.1", "192.0.2.7")
    assert not client("10.0.0.1", "192.0.2.7", trusted=["10.1.0.0/16"])
    assert client(None, "192.0.2.7", trusted=["unix"])
    assert not client("127.0.0.1", "192.0.2.7", trusted=["unix"])
    assert client("::1", "for=192.0.2.7", trusted=["::1"], forwarded="forwarded")
    assert client("::1", "192.0.2.7", trusted=["::1"], forwarded="cf-connecting-ip")


def test_an_address_that_is_none_counts_as_missing() -> None:
    policy = Policy.from_toml(LOGINS)
    for address in (None, "", "testclient"):
        assert policy.decide(*LOGIN, address=address).status == 500
    assert statuses(policy, 3, *LOGIN, address="fe80::1%eth0") == [200, 200, 429]


def test_permits_at_once_are_held_until_the_decision_is_closed() -> None:
    policy = Policy.from_toml(PLACE)
    with policy.decide("GET", "/") as decision:
        assert decision.allowed
        assert policy.decide("GET", "/").status == 429
    assert decision.allowed
    again = policy.decide("GET", "/")
    assert again.allowed
    again.close()
    again.close()
    dropped = policy.decide("GET", "/")
    assert dropped.allowed
    del dropped
    assert policy.decide("GET", "/").allowed


def test_requests_wait_in_the_queue_of_a_rule() -> None:
    policy = Policy.from_toml(QUEUE, timeout=30.0)
    order: List[int] = []

    async def request(number: int) -> None:
        with await policy.judge("GET", "/") as decision:
            assert decision.allowed
            order.append(number)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(request(number) for number in range(50)))
        held = await policy.judge("GET", "/")
        waits = asyncio.ensure_future(policy.judge("GET", "/"))
        await asyncio.sleep(0.01)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        held.close()
        with await policy.judge("GET", "/") as decision:
            assert decision.allowed

    asyncio.run(main())
    assert order == list(range(50))


def test_a_thread_waits_without_the_interpreter() -> None:
    policy = Policy.from_toml(QUEUE)
    held = policy.decide("GET", "/")
    done: List[bool] = []
    thread = threading.Thread(target=lambda: done.append(policy.decide("GET", "/").allowed))
    thread.start()
    time.sleep(0.05)
    assert done == []
    held.close()
    thread.join(10)
    assert done == [True]


def test_a_timeout_bounds_the_wait() -> None:
    policy = Policy.from_toml(QUEUE, timeout=0.02)
    with policy.decide("GET", "/"):
        assert policy.decide("GET", "/").status == 429


def test_a_wait_that_would_block_an_event_loop_is_an_error() -> None:
    policy = Policy.from_toml(QUEUE)

    async def main() -> None:
        with policy.decide("GET", "/") as decision:
            assert decision.allowed
            with pytest.raises(RuntimeError, match="await policy.judge"):
                policy.decide("GET", "/")
        with await policy.judge("GET", "/") as decision:
            assert decision.allowed

    asyncio.run(main())


def test_a_decision_that_is_never_awaited_takes_nothing_and_warns() -> None:
    policy = Policy.from_toml(LOGINS)
    with pytest.warns(RuntimeWarning, match=r"judge\(\) was never awaited"):
        policy.judge(*LOGIN, cost=2, **CLIENT)
    assert policy.decide(*LOGIN, cost=2, **CLIENT).allowed


def test_errors_of_rules_are_told_with_their_lines() -> None:
    with pytest.raises(ValueError, match="policy:1:9") as raised:
        Policy.from_toml("rules = 1")
    with pytest.raises(ValueError) as raised:
        Policy.from_toml('[[rules]]\nnam = "a"\n\n[[rules]]\nname = "b"\nlimits = ["5"]\n')
    assert len(str(raised.value).splitlines()) >= 2
    with pytest.raises(ValueError, match="policy:"):
        Policy.from_json("{")
    for argument, value, error in [
        ("fields", "draft-12", ValueError),
        ("trusted", ["nonsense"], ValueError),
        ("trusted", "127.0.0.1", TypeError),
        ("forwarded", "a b", ValueError),
        ("timeout", -1.0, ValueError),
        ("timeout", float("nan"), ValueError),
        ("stores", {"a": 1}, TypeError),
    ]:
        rest: Dict[str, Any] = {argument: value}
        with pytest.raises(error, match=argument):
            Policy.from_toml(LOGINS, **rest)


def test_a_file_is_read_again_and_keeps_what_was_taken(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(LOGINS)
    policy = Policy.from_file(path)
    assert statuses(policy, 3, *LOGIN, **CLIENT) == [200, 200, 429]
    path.write_text(LOGINS.replace("2/h", "3/h"))
    policy.reload()
    assert statuses(policy, 2, *LOGIN, **CLIENT) == [200, 429]
    path.write_text("rules = 1")
    with pytest.raises(ValueError, match="policy.toml:1:9"):
        policy.reload()
    assert statuses(policy, 1, *LOGIN, **CLIENT) == [429]
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="UTF-8"):
        policy.reload()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        policy.reload()
    with pytest.raises(TypeError):
        policy.reload(LOGINS)
    with pytest.raises(ValueError, match=".toml or .json"):
        Policy.from_file(tmp_path / "policy.yaml")
    text = Policy.from_json('{"rules": [{"name": "all", "limits": ["1/h"]}]}')
    assert statuses(text, 2, "GET", "/") == [200, 429]
    text.reload('{"rules": []}')
    assert statuses(text, 2, "GET", "/") == [200, 200]
    with pytest.raises(TypeError):
        text.reload()


def test_a_process_that_is_forked_has_limits_of_its_own(tmp_path: Path) -> None:
    policy = Policy.from_toml(LOGINS)
    policy.reload(LOGINS.replace("2/h", "3/h"))
    place = Policy.from_toml(QUEUE)
    held = place.decide("GET", "/")
    statuses(policy, 1, *LOGIN, **CLIENT)
    child = os.fork()
    if child == 0:
        own = statuses(policy, 4, *LOGIN, **CLIENT) == [200, 200, 200, 429]
        held.close()
        with place.decide("GET", "/") as first:
            os._exit(0 if own and first.allowed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert statuses(policy, 3, *LOGIN, **CLIENT) == [200, 200, 429]
    held.close()


STORED = """
stores = ["host"]

[[rules]]
name = "stored"
key = ["address"]
limits = ["20/h"]
store = "host"
"""


def stored(name: str) -> Tuple[Policy, Policy]:
    def one() -> Policy:
        return Policy.from_toml(STORED, stores={"host": portcullis.SharedStore(name)})

    return one(), one()


def test_policies_share_a_store_of_the_host(name: str) -> None:
    first, second = stored(name)
    decisions = [policy.decide("GET", "/", **CLIENT) for policy in [first, second] * 15]
    assert [decision.allowed for decision in decisions] == [True] * 20 + [False] * 10
    assert 170 <= int(dict(decisions[-1].headers)["retry-after"]) <= 180


def test_processes_share_a_store_of_the_host(name: str) -> None:
    policy, _ = stored(name)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os._exit(statuses(policy, 10, "GET", "/", **CLIENT).count(200))
        children.append(child)
    granted = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sum(granted) == 20
    assert not policy.decide("GET", "/", **CLIENT).allowed


def test_stores_are_judged_when_a_policy_is_made(name: str) -> None:
    with pytest.raises(ValueError, match="host"):
        Policy.from_toml(STORED)
    for ids in (0, -1, 10**9):
        with pytest.raises(ValueError, match="ids"):
            portcullis.SharedStore(name, ids=ids)
    with pytest.raises(ValueError):
        portcullis.SharedStore("a/b")
