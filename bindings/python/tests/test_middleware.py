"""The middleware of ASGI and WSGI: by hand, and under the servers that run it."""

import asyncio
import contextlib
import io
import socket
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple
from wsgiref.handlers import SimpleHandler

import pytest
from servers import ask, gunicorn, uvicorn

from portcullis import Policy, Rejected
from portcullis import asgi as of_asgi
from portcullis import wsgi as of_wsgi

RULES = """
[[rules]]
name = "logins"
methods = ["POST"]
paths = ["/login"]
key = ["address"]
limits = ["2/h"]

[[rules]]
name = "place"
paths = ["/place"]
limits = [{ at_once = 1 }]

[[rules]]
name = "gold"
tiers = ["gold"]
key = ["property:user"]
limits = ["10/h"]

[[rules]]
name = "all"
limits = ["1000/h"]
"""


def policy(**settings: Any) -> Policy:
    return Policy.from_toml(RULES, **settings)


def has_place(asked: Policy) -> bool:
    with asked.decide("GET", "/place") as decision:
        return decision.allowed


# --- ASGI ---


def scope(path: str = "/", method: str = "GET", **rest: Any) -> Dict[str, Any]:
    base = {"type": "http", "method": method, "path": path, "raw_path": b"/other"}
    return {**base, "headers": [], "client": ("192.0.2.7", 5000), **rest}


class Connection:
    """A client of an ASGI service."""

    def __init__(self, received: Iterable[Dict[str, Any]] = ()) -> None:
        self.received = list(received)
        self.sent: List[Any] = []

    async def receive(self) -> Dict[str, Any]:
        assert self.received, "the server has nothing more, and would never return"
        return self.received.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, app: Any, asked: Dict[str, Any]) -> "Connection":
        await app(asked, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> Dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}


async def hello(asked: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [[b"a", b"b"]]})
    await send({"type": "http.response.body", "body": b"hello"})


def statuses(app: Any, number: int, asked: Dict[str, Any]) -> List[int]:
    async def main() -> List[int]:
        return [(await Connection().ask(app, dict(asked))).status for _ in range(number)]

    return asyncio.run(main())


def test_asgi_limits_and_states_limits() -> None:
    app = of_asgi.RateLimitMiddleware(hello, policy())
    login = scope("/login", "POST")
    assert statuses(app, 2, login) == [200, 200]
    denied = asyncio.run(Connection().ask(app, login))
    assert denied.status == 429
    assert 1790 <= int(denied.headers["retry-after"]) <= 1800
    assert denied.headers["content-length"] == str(len(denied.sent[1]["body"]))
    assert "ratelimit" in denied.headers
    allowed = asyncio.run(Connection().ask(app, scope()))
    assert allowed.headers["a"] == "b" and allowed.headers["ratelimit"].startswith('"all"')
    head = asyncio.run(Connection().ask(app, scope("/login", "POST")))
    assert head.sent[1]["body"]
    of_head = of_asgi.RateLimitMiddleware(hello, Policy.from_toml(RULES.replace("POST", "HEAD")))
    assert statuses(of_head, 3, scope("/login", "HEAD")) == [200, 200, 429]
    head = asyncio.run(Connection().ask(of_head, scope("/login", "HEAD")))
    assert head.sent[1]["body"] == b"" and int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(
    "path, root, expected",
    [
        ("/login", "", 429),
        ("//login", "", 400),
        ("/api/login", "/api", 429),
        ("/login", "/api", 429),
        ("/apilogin", "/api", 200),
        ("/api/login", "", 200),
        ("/api/login", "/ap", 200),
        ("/login?a", "", 200),
        ("/login#a", "", 200),
        ("/%6Cogin", "", 200),
        ("/login\n", "", 400),
        ("/login\x00", "", 400),
        ("/\udcff", "", 200),
        ("", "", 200),
        ("/api", "/api", 200),
    ],
)
def test_asgi_judges_the_path_that_chooses_the_handler(path: str, root: str, expected: int) -> None:
    asked = policy()
    asked.decide("POST", "/login", cost=2, address="192.0.2.7")
    app = of_asgi.RateLimitMiddleware(hello, asked)
    assert statuses(app, 1, scope(path, "post", root_path=root)) == [expected]


def test_asgi_passes_what_is_no_request() -> None:
    seen: List[str] = []

    async def app(asked: Any, receive: Any, send: Any) -> None:
        seen.append(asked["type"])

    limited = of_asgi.RateLimitMiddleware(app, policy())
    asyncio.run(Connection().ask(limited, {"type": "lifespan"}))
    assert seen == ["lifespan"]


def test_asgi_asks_functions_of_the_scope() -> None:
    app = of_asgi.RateLimitMiddleware(
        hello,
        policy(),
        cost=lambda asked: 5 if asked["path"] == "/dear" else 1,
        properties=lambda asked: {"user": "alice"},
        tier=lambda asked: "gold",
    )
    assert statuses(app, 3, scope("/dear")) == [200, 200, 429]
    assert statuses(app, 1, scope("/", client=None)) == [429]


def test_asgi_keeps_the_fields_of_the_service() -> None:
    async def own(asked: Any, receive: Any, send: Any) -> None:
        headers = [(b"RateLimit", b"mine")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    app = of_asgi.RateLimitMiddleware(own, policy())
    sent = asyncio.run(Connection().ask(app, scope())).sent[0]["headers"]
    assert [value for name, value in sent if name.lower() == b"ratelimit"] == [b"mine"]


LAST: List[List[Dict[str, Any]]] = [
    [{"type": "http.response.body", "body": b"a"}],
    [{"type": "http.response.pathsend", "path": "/a"}],
    [{"type": "http.response.zerocopysend", "file": 1}],
]


@pytest.mark.parametrize("last", LAST)
def test_asgi_holds_permits_until_the_response_has_ended(last: List[Dict[str, Any]]) -> None:
    asked = policy()
    seen: List[bool] = []

    async def app(request: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        seen.append(has_place(asked))
        for message in last:
            await send(message)
        # What runs in the background does not hold them.
        seen.append(has_place(asked))

    limited = of_asgi.RateLimitMiddleware(app, asked)
    asyncio.run(Connection().ask(limited, scope("/place")))
    assert seen == [False, True]


def test_asgi_holds_permits_until_the_trailers() -> None:
    asked = policy()
    seen: List[bool] = []

    async def app(request: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "trailers": True})
        await send({"type": "http.response.body", "body": b"a"})
        seen.append(has_place(asked))
        await send({"type": "http.response.trailers", "headers": [], "more_trailers": True})
        seen.append(has_place(asked))
        await send({"type": "http.response.trailers", "headers": []})
        seen.append(has_place(asked))

    asyncio.run(Connection().ask(of_asgi.RateLimitMiddleware(app, asked), scope("/place")))
    assert seen == [False, False, True]


def test_asgi_releases_permits_of_a_request_that_fails_or_is_cancelled() -> None:
    asked = policy()

    async def fails(request: Any, receive: Any, send: Any) -> None:
        raise KeyError

    async def hangs(request: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(KeyError):
            await Connection().ask(of_asgi.RateLimitMiddleware(fails, asked), scope("/place"))
        assert has_place(asked)
        app = of_asgi.RateLimitMiddleware(hangs, asked)
        task = asyncio.ensure_future(Connection().ask(app, scope("/place")))
        await asyncio.sleep(0.01)
        assert not has_place(asked)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert has_place(asked)

    asyncio.run(main())


def raising(error: BaseException) -> Callable[..., Any]:
    async def app(request: Any, receive: Any, send: Any) -> None:
        raise error

    return app


def test_asgi_answers_what_the_service_rejects() -> None:
    def answer(error: BaseException) -> Connection:
        app = of_asgi.RateLimitMiddleware(raising(error), policy())
        return asyncio.run(Connection().ask(app, scope()))

    denied = answer(Rejected("too many", 1.2))
    assert (denied.status, denied.headers["retry-after"]) == (429, "2")
    assert answer(Rejected("too many", 0.0)).headers["retry-after"] == "1"
    for wait in (None, float("inf")):
        closed = answer(Rejected("closed", wait))
        assert closed.status == 503 and "retry-after" not in closed.headers
    if sys.version_info >= (3, 11):
        inner = ExceptionGroup("b", [Rejected("too many", 3.0)])
        grouped = answer(ExceptionGroup("a", [Rejected("too many", 3.0), inner]))
        assert (grouped.status, grouped.headers["retry-after"]) == (429, "3")
        with pytest.raises(ExceptionGroup):
            answer(ExceptionGroup("a", [Rejected("too many", 3.0), KeyError()]))


def test_asgi_leaves_a_response_that_has_begun() -> None:
    async def late(request: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise Rejected("too many", 1.0)

    app = of_asgi.RateLimitMiddleware(late, policy())
    with pytest.raises(Rejected):
        asyncio.run(Connection().ask(app, scope()))


def websocket(path: str, **rest: Any) -> Dict[str, Any]:
    asked = scope(path, type="websocket", **rest)
    del asked["method"]
    return asked


def test_asgi_changes_nothing_of_the_service() -> None:
    message: Dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}

    async def app(request: Any, receive: Any, send: Any) -> None:
        assert request is asked
        await send(message)

    asked = scope()
    before = dict(asked)
    sent = asyncio.run(Connection().ask(of_asgi.RateLimitMiddleware(app, policy()), asked))
    assert "ratelimit" in sent.headers
    assert (asked, message["headers"]) == (before, [])


CONNECT = {"type": "websocket.connect"}
DISCONNECT: Dict[str, Any] = {"type": "websocket.disconnect", "code": 1001}
EXTENSION: Dict[str, Any] = {"extensions": {"websocket.http.response": {}}}


def test_asgi_rejects_websockets() -> None:
    asked = policy()

    async def accepts(request: Any, receive: Any, send: Any) -> None:
        assert await receive() == CONNECT
        await send({"type": "websocket.accept"})
        assert not has_place(asked)
        await send({"type": "websocket.close"})
        assert has_place(asked)

    app = of_asgi.RateLimitMiddleware(accepts, asked)
    opened = asyncio.run(Connection([CONNECT]).ask(app, websocket("/place")))
    assert [message["type"] for message in opened.sent] == ["websocket.accept", "websocket.close"]
    assert "ratelimit" in opened.headers
    with asked.decide("GET", "/place"):
        closed = asyncio.run(Connection([CONNECT]).ask(app, websocket("/place")))
        assert closed.sent == [{"type": "websocket.close", "code": 1008}]
        replied = asyncio.run(Connection([CONNECT]).ask(app, websocket("/place", **EXTENSION)))
        kinds = [message["type"] for message in replied.sent]
        assert kinds == ["websocket.http.response.start", "websocket.http.response.body"]
        assert replied.status == 429
    invalid = asyncio.run(Connection([CONNECT]).ask(app, websocket("/a\n", **EXTENSION)))
    assert invalid.status == 400


@pytest.mark.parametrize("receives", [False, True])
def test_asgi_answers_a_websocket_that_the_service_rejects(receives: bool) -> None:
    async def app(request: Any, receive: Any, send: Any) -> None:
        if receives:
            await receive()
        raise Rejected("too many", 1.0)

    limited = of_asgi.RateLimitMiddleware(app, policy())
    closed = asyncio.run(Connection([CONNECT]).ask(limited, websocket("/")))
    assert closed.sent == [{"type": "websocket.close", "code": 1008}]
    replied = asyncio.run(Connection([CONNECT]).ask(limited, websocket("/", **EXTENSION)))
    assert replied.status == 429


def test_asgi_closes_a_websocket_whose_service_rejects_late() -> None:
    asked = policy()

    async def accepts(request: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        if request["path"] == "/left":
            await receive()
        raise Rejected("too many", 1.0)

    app = of_asgi.RateLimitMiddleware(accepts, asked)
    closed = asyncio.run(Connection([CONNECT]).ask(app, websocket("/place")))
    assert closed.sent[1:] == [{"type": "websocket.close", "code": 1013}]
    assert has_place(asked)
    with pytest.raises(Rejected):
        asyncio.run(Connection([CONNECT, DISCONNECT]).ask(app, websocket("/left")))

    async def closes(request: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.close"})
        raise Rejected("too many", 1.0)

    with pytest.raises(Rejected):
        asyncio.run(Connection().ask(of_asgi.RateLimitMiddleware(closes, asked), websocket("/")))


def test_asgi_releases_permits_of_a_websocket_that_its_client_or_service_ends() -> None:
    asked = policy()
    seen: List[bool] = []

    async def replies(request: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
        seen.append(has_place(asked))
        await send({"type": "websocket.http.response.body", "body": b"a", "more_body": True})
        seen.append(has_place(asked))
        await send({"type": "websocket.http.response.body"})
        seen.append(has_place(asked))

    app = of_asgi.RateLimitMiddleware(replies, asked)
    replied = asyncio.run(Connection().ask(app, websocket("/place", **EXTENSION)))
    assert seen == [False, False, True] and "ratelimit" in replied.headers

    async def lingers(request: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        seen.append(has_place(asked))
        await receive()
        seen.append(has_place(asked))

    app = of_asgi.RateLimitMiddleware(lingers, asked)
    asyncio.run(Connection([CONNECT, DISCONNECT]).ask(app, websocket("/place")))
    assert seen[3:] == [False, True]


# --- WSGI ---


class Started:
    """What a server of WSGI gets."""

    def __init__(self) -> None:
        self.status = ""
        self.headers: Dict[str, str] = {}
        self.written = b""
        self.starts = 0

    def start_response(
        self, status: str, headers: List[Tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        assert self.starts == 0 or exc_info is not None
        if exc_info is not None and self.written:
            raise exc_info[1]
        self.starts += 1
        self.status, self.headers = status, {name.lower(): value for name, value in headers}
        return self.write

    def write(self, data: bytes) -> None:
        self.written += data

    def ask(self, app: Any, environ: Dict[str, Any]) -> "Started":
        """As a server does."""
        chunks = app(environ, self.start_response)
        try:
            for chunk in chunks:
                self.written += chunk
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        return self

    @property
    def code(self) -> int:
        return int(self.status.split()[0])


def environ(path: str = "/", method: str = "GET", **rest: Any) -> Dict[str, Any]:
    base = {"PATH_INFO": path, "SCRIPT_NAME": "", "REQUEST_METHOD": method}
    return {**base, "REMOTE_ADDR": "192.0.2.7", "SERVER_NAME": "localhost", **rest}


def plain(asked: Any, start_response: Any) -> List[bytes]:
    start_response("200 OK", [("A", "b")])
    return [b"hel", b"lo"]


def codes(app: Any, number: int, asked: Dict[str, Any]) -> List[int]:
    return [Started().ask(app, dict(asked)).code for _ in range(number)]


def test_wsgi_limits_and_states_limits() -> None:
    app = of_wsgi.RateLimitMiddleware(plain, policy())
    login = environ("/login", "POST")
    assert codes(app, 2, login) == [200, 200]
    denied = Started().ask(app, login)
    assert denied.status == "429 Too Many Requests"
    assert 1790 <= int(denied.headers["retry-after"]) <= 1800
    assert denied.headers["content-length"] == str(len(denied.written))
    allowed = Started().ask(app, environ())
    assert (allowed.code, allowed.written) == (200, b"hello")
    assert allowed.headers["a"] == "b" and allowed.headers["ratelimit"].startswith('"all"')
    of_head = of_wsgi.RateLimitMiddleware(plain, Policy.from_toml(RULES.replace("POST", "HEAD")))
    assert codes(of_head, 2, environ("/login", "HEAD")) == [200, 200]
    head = Started().ask(of_head, environ("/login", "HEAD"))
    assert head.written == b"" and int(head.headers["content-length"]) > 0


@pytest.mark.parametrize(
    "path, script, expected",
    [
        ("/login", "", 429),
        ("/login", "/api", 429),
        ("//login", "", 400),
        ("/login?a", "", 200),
        ("/%6Cogin", "", 200),
        ("/login\n", "", 400),
        ("/\xff", "", 200),
        ("/\u20ac", "", 200),
        ("", "/login", 200),
    ],
)
def test_wsgi_judges_the_path_that_chooses_the_handler(
    path: str, script: str, expected: int
) -> None:
    asked = policy()
    asked.decide("POST", "/login", cost=2, address="192.0.2.7")
    app = of_wsgi.RateLimitMiddleware(plain, asked)
    assert codes(app, 1, environ(path, "post", SCRIPT_NAME=script)) == [expected]


def test_wsgi_reads_the_fields_of_a_request() -> None:
    rules = '[[rules]]\nname = "a"\nkey = ["header:x-key", "header:content-type", "host"]\n'
    asked = Policy.from_toml(f'{rules}limits = ["1/h"]')
    app = of_wsgi.RateLimitMiddleware(plain, asked)
    first = environ(HTTP_X_KEY="a", CONTENT_TYPE="b", HTTP_HOST="c")
    assert codes(app, 2, first) == [200, 429]
    for name in ("HTTP_X_KEY", "CONTENT_TYPE", "HTTP_HOST"):
        assert codes(app, 1, {**first, name: "other"}) == [200], name


def test_wsgi_reads_a_path_as_the_bytes_that_were_sent() -> None:
    # A server passes on each byte as one character.
    path = "/caf\xe9".encode().decode("latin-1")
    asked = Policy.from_toml('[[rules]]\nname = "a"\npaths = ["/caf\xe9"]\nlimits = ["1/h"]')
    app = of_wsgi.RateLimitMiddleware(plain, asked)
    assert codes(app, 2, environ(path)) == [200, 429]


def test_wsgi_reads_what_fields_do_not_say() -> None:
    rules = '[[rules]]\nname = "a"\nhosts = ["localhost"]\nkey = ["header:content-type"]\n'
    asked = Policy.from_toml(f'{rules}on_missing = "skip"\nlimits = ["1/h"]')
    app = of_wsgi.RateLimitMiddleware(plain, asked)
    # An empty type is none.
    assert codes(app, 2, environ(CONTENT_TYPE="")) == [200, 200]
    assert codes(app, 2, environ(CONTENT_TYPE="a")) == [200, 429]
    assert codes(app, 1, environ(CONTENT_TYPE="a", HTTP_HOST="other")) == [200]


def test_wsgi_asks_functions_of_the_environ() -> None:
    app = of_wsgi.RateLimitMiddleware(
        plain,
        policy(),
        cost=lambda asked: 5,
        properties=lambda asked: {"user": asked["PATH_INFO"]},
        tier=lambda asked: "gold",
    )
    assert codes(app, 3, environ("/alice")) == [200, 200, 429]
    assert codes(app, 1, environ("/bob", REMOTE_ADDR="")) == [200]


def test_wsgi_keeps_the_fields_of_the_service() -> None:
    def own(asked: Any, start_response: Any) -> List[bytes]:
        start_response("200 OK", [("RateLimit", "mine")])
        return []

    app = of_wsgi.RateLimitMiddleware(own, policy())
    assert Started().ask(app, environ()).headers["ratelimit"] == "mine"


class Body:
    """A body that notes when it is closed."""

    def __init__(self, error: Optional[BaseException] = None) -> None:
        self.closed = 0
        self.error = error

    def __iter__(self) -> Iterator[bytes]:
        yield b"a"
        yield b"b"

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def test_wsgi_holds_permits_until_the_response_is_closed() -> None:
    asked = policy()
    for error in (None, KeyError()):
        body = Body(error)

        def app(request: Any, start_response: Any, body: Body = body) -> Body:
            start_response("200 OK", [])
            return body

        response: Any = of_wsgi.RateLimitMiddleware(app, asked)(
            environ("/place"), Started().start_response
        )
        assert list(response) == [b"a", b"b"] and not has_place(asked)
        expected = pytest.raises(KeyError) if error else contextlib.nullcontext()
        with expected:
            response.close()
        assert has_place(asked)
        response.close()
        assert body.closed == 1

    class Rejecting(Body):
        def __iter__(self) -> Iterator[bytes]:
            yield b""
            raise Rejected("too many", 1.0)

    body = Rejecting()

    def rejects(request: Any, start_response: Any) -> Body:
        return body

    response = of_wsgi.RateLimitMiddleware(rejects, asked)(
        environ("/place"), Started().start_response
    )
    # The answer is not that of the service, whose body is closed before it.
    assert b"".join(response) == b"Too Many Requests" and body.closed == 1
    response.close()
    assert body.closed == 1

    def fails(request: Any, start_response: Any) -> Any:
        raise KeyError

    with pytest.raises(KeyError):
        Started().ask(of_wsgi.RateLimitMiddleware(fails, asked), environ("/place"))
    assert has_place(asked)


def generator(*before: bytes, starts: bool = True) -> Callable[..., Iterator[bytes]]:
    def app(request: Any, start_response: Any) -> Iterator[bytes]:
        if starts:
            start_response("200 OK", [])
        yield from before
        raise Rejected("too many", 1.2)

    return app


def test_wsgi_answers_what_the_service_rejects() -> None:
    def at_once(request: Any, start_response: Any) -> Any:
        raise Rejected("too many", 1.2)

    for app in (at_once, generator(), generator(b""), generator(starts=False)):
        answer = Started().ask(of_wsgi.RateLimitMiddleware(app, policy()), environ())
        assert (answer.code, answer.headers["retry-after"]) == (429, "2")
        assert answer.written == b"Too Many Requests"

    def closed(request: Any, start_response: Any) -> Any:
        raise Rejected("closed")

    answer = Started().ask(of_wsgi.RateLimitMiddleware(closed, policy()), environ())
    assert answer.status == "503 Service Unavailable"


def test_wsgi_leaves_a_response_that_has_begun() -> None:
    def writes(request: Any, start_response: Any) -> Any:
        start_response("200 OK", [])(b"a")
        raise Rejected("too many", 1.0)

    asked = policy()
    for app in (generator(b"a"), writes):
        with pytest.raises(Rejected):
            Started().ask(of_wsgi.RateLimitMiddleware(app, asked), environ("/place"))
        assert has_place(asked)


def test_wsgi_tells_the_number_of_chunks_that_the_service_tells() -> None:
    def app(request: Any, start_response: Any) -> List[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    counted = policy()
    limited = of_wsgi.RateLimitMiddleware(app, counted)
    sent = io.BytesIO()
    asked = environ(SERVER_PROTOCOL="HTTP/1.0")
    handler = SimpleHandler(io.BytesIO(), sent, io.StringIO(), asked)
    handler.run(limited)
    assert b"Content-Length: 5\r\n" in sent.getvalue()
    response: Any = limited(environ("/place"), Started().start_response)
    assert (len(response), has_place(counted)) == (1, False)
    response.close()
    assert has_place(counted)
    of_generator: Any = of_wsgi.RateLimitMiddleware(generator(b"a"), policy())
    assert not hasattr(of_generator(environ(), Started().start_response), "__len__")


def test_wsgi_passes_on_exc_info() -> None:
    def app(request: Any, start_response: Any) -> List[bytes]:
        start_response("200 OK", [])
        try:
            raise KeyError
        except KeyError:
            start_response("500 Oops", [], sys.exc_info())
        return [b"oops"]

    answer = Started().ask(of_wsgi.RateLimitMiddleware(app, policy()), environ())
    assert answer.status == "500 Oops"


def test_wsgi_sends_files() -> None:
    class Wrapper:
        def __init__(self, file: io.BytesIO) -> None:
            self.file = file

        def __iter__(self) -> Iterator[bytes]:
            return iter(lambda: self.file.read(2), b"")

    def app(request: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return request["wsgi.file_wrapper"](io.BytesIO(b"hello"))

    asked = {**environ(), "wsgi.file_wrapper": Wrapper}
    assert Started().ask(of_wsgi.RateLimitMiddleware(app, policy()), asked).written == b"hello"


# --- Servers ---


def raw(port: int, head: str) -> int:
    """Sends a request as it is, and returns the status."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(f"{head}\r\nHost: a\r\nConnection: close\r\n\r\n".encode("latin-1"))
        reply = b""
        while not reply.endswith(b"\n") and b"\r\n" not in reply:
            part = connection.recv(4096)
            if not part:
                break
            reply += part
    return int(reply.split()[1])


def starlette(*options: str) -> Any:
    return uvicorn("app_starlette:app", list(options))


def flask() -> Any:
    return gunicorn("app_flask:app", ["--permit-unconventional-http-method"])


@pytest.mark.parametrize("start", [starlette, flask])
def test_a_service_is_limited(start: Callable[[], Any]) -> None:
    with start() as port:
        answers = [ask(port, "/login", "POST") for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert 1790 <= int(answers[2][1]["retry-after"]) <= 1800
        assert answers[0][1]["ratelimit"].startswith('"logins";r=1')
        # What the service reads as the same, and what it does not.
        assert raw(port, "POST /%6Cogin HTTP/1.1") == 429
        for path in ("//login", "/login%0A", "/login%00"):
            assert raw(port, f"POST {path} HTTP/1.1") == 400
        assert raw(port, "post /login HTTP/1.1") in (400, 429)
        # A proxy that is trusted.
        other = {"X-Forwarded-For": "198.51.100.1"}
        assert ask(port, "/login", "POST", other)[0] == 200
        # A place is free after each request.
        assert [ask(port, "/place")[0] for _ in range(5)] == [200] * 5
        assert [ask(port, "/rare")[0] for _ in range(2)] == [200, 429]


def test_a_prefix_of_the_server_is_no_way_around_a_rule() -> None:
    with starlette("--root-path", "/api") as port:
        assert [ask(port, "/login", "POST")[0] for _ in range(3)] == [200, 200, 429]


def test_a_websocket_holds_its_permits() -> None:
    key = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZQ=="

    def opened(port: int) -> Tuple[socket.socket, bytes]:
        connection = socket.create_connection(("127.0.0.1", port), 10)
        head = f"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n{key}\r\n\r\n"
        connection.sendall(head.encode())
        return connection, connection.recv(4096).split()[1]

    with starlette("--ws", "wsproto") as port:
        first, status = opened(port)
        assert status == b"101"
        second, denied = opened(port)
        assert denied == b"429"
        second.close()
        first.close()
        for _ in range(100):
            third, status = opened(port)
            third.close()
            if status == b"101":
                break
        assert status == b"101"
