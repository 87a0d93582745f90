"""Limits for services of ASGI: Starlette, FastAPI, Quart, Litestar and others."""

from typing import Any, Awaitable, Callable, Dict, List, MutableMapping, Optional, Tuple
from urllib.parse import quote

from ._errors import InvalidRequest
from ._portcullis import Decision, Policy
from ._requests import Answer, answer_to_invalid, answer_to_rejected, missing, rejection

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REPLY = "websocket.http.response"


class RateLimitMiddleware:
    """Asks a policy about each request and each WebSocket, and answers those that it denies.

    An allowed request gets the header fields that state its limits, and holds the permits of limits
    at once until its response has ended. A WebSocket holds them until it is closed. A `Rejected`
    that the service raises, before its response has begun, is answered with 429 and `Retry-After`,
    or with 503 if no time helps. A WebSocket that is open then is closed with code 1013.

    `cost`, `properties` and `tier` are functions of the scope: the number of permits, and what
    rules ask for besides the request.
    """

    def __init__(
        self,
        app: App,
        policy: Policy,
        *,
        cost: Optional[Callable[[Scope], int]] = None,
        properties: Optional[Callable[[Scope], Dict[str, str]]] = None,
        tier: Optional[Callable[[Scope], Optional[str]]] = None,
    ) -> None:
        self._app = app
        self._policy = policy
        self._cost = cost
        self._properties = properties
        self._tier = tier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            decision = await self._policy.judge(**self._request(scope))
        except InvalidRequest as error:
            await exchange.answer(answer_to_invalid(error))
            return
        with decision:
            if not decision.allowed:
                await exchange.answer(Answer(decision.status, decision.headers, decision.body))
                return
            exchange.allow(decision)
            try:
                await self._app(scope, exchange.receive, exchange.send)
            except BaseException as error:
                rejected = rejection(error)
                if rejected is None or (exchange.has_begun and not exchange.is_open):
                    raise
                if exchange.is_open:
                    await exchange.send({"type": "websocket.close", "code": 1013})
                else:
                    await exchange.answer(answer_to_rejected(rejected))

    def _request(self, scope: Scope) -> Dict[str, Any]:
        client = scope.get("client")
        request = {
            "method": scope.get("method", "GET"),
            "path": _path(scope),
            "address": client[0] if client else None,
            "headers": scope["headers"],
        }
        if self._cost is not None:
            request["cost"] = self._cost(scope)
        if self._properties is not None:
            request["properties"] = self._properties(scope)
        if self._tier is not None:
            request["tier"] = self._tier(scope)
        return request


def _path(scope: Scope) -> str:
    """Returns the path by which the service chooses a handler, encoded.

    That is the decoded path without the prefix at which the service is mounted.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        path = path[len(root) :]
    return quote(path, errors="surrogatepass") or "/"


class _Exchange:
    """One request and its response, or one WebSocket.

    It notes what was received and sent, because a WebSocket can be rejected in several ways.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._is_socket = scope["type"] == "websocket"
        self._has_replies = _REPLY in (scope.get("extensions") or {})
        self._is_head = scope.get("method") == "HEAD"
        self._receive = receive
        self._send = send
        self._decision: Optional[Decision] = None
        self._is_connected = False
        self._has_trailers = False
        #: Whether a response has begun, or the WebSocket is open or closed.
        self.has_begun = False
        #: Whether the WebSocket is open.
        self.is_open = False

    def allow(self, decision: Decision) -> None:
        """Makes `send` add what the decision states, and close it at the end."""
        self._decision = decision

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.connect":
            self._is_connected = True
        if message["type"] == "websocket.disconnect":
            self.is_open = False
            if self._decision is not None:
                self._decision.close()
        return message

    async def send(self, message: Message) -> None:
        if self._decision is not None and self._begins(message):
            self.has_begun = True
            message = {**message, "headers": _with_fields(message, self._decision)}
        if message["type"] in ("websocket.accept", "websocket.close"):
            self.has_begun = True
            self.is_open = message["type"] == "websocket.accept"
        try:
            await self._send(message)
        finally:
            if self._decision is not None and self._ends(message):
                self._decision.close()

    def _begins(self, message: Message) -> bool:
        kind = message["type"]
        if kind == "http.response.start":
            self._has_trailers = bool(message.get("trailers"))
        return kind in ("http.response.start", "websocket.accept", f"{_REPLY}.start")

    def _ends(self, message: Message) -> bool:
        kind = message["type"]
        has_more = bool(message.get("more_body"))
        if kind in ("http.response.body", "http.response.zerocopysend"):
            return not has_more and not self._has_trailers
        if kind == "http.response.trailers":
            return not message.get("more_trailers")
        if kind == f"{_REPLY}.body":
            return not has_more
        return kind in ("http.response.pathsend", "websocket.close")

    async def answer(self, answer: Answer) -> None:
        """Sends a whole response instead of the service."""
        if self._is_socket and not self._is_connected:
            # A WebSocket can be rejected after this message.
            await self.receive()
        prefix = _REPLY if self._is_socket else "http.response"
        if self._is_socket and not self._has_replies:
            # The server answers 403.
            await self._send({"type": "websocket.close", "code": 1008})
            return
        status = {"status": answer.status, "headers": _encoded(answer.headers)}
        await self._send({"type": f"{prefix}.start", **status})
        body = b"" if self._is_head else answer.body
        await self._send({"type": f"{prefix}.body", "body": body})


def _encoded(fields: List[Tuple[str, str]]) -> List[Tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def _with_fields(message: Message, decision: Decision) -> List[Any]:
    """Returns the header fields of a response, with those of a decision."""
    own = [tuple(field) for field in message.get("headers") or ()]
    names = [bytes(name).decode("latin-1") for name, _ in own]
    return [*own, *_encoded(missing(decision.headers, names))]
