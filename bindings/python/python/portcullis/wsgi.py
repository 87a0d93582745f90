"""Limits for services of WSGI: Flask, Django, Pyramid and others."""

import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sized, Tuple
from urllib.parse import quote

from ._errors import InvalidRequest
from ._portcullis import Decision, Policy
from ._requests import Answer, Field, answer_to_invalid, answer_to_rejected, missing, rejection

Environ = Dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_REASONS = {
    400: "Bad Request",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class RateLimitMiddleware:
    """Asks a policy about each request, and answers those that it denies.

    An allowed request gets the header fields that state its limits, and holds the permits of limits
    at once until its response has ended. A `Rejected` that the service raises, before a byte of its
    response was passed on, is answered with 429 and `Retry-After`, or with 503 if no time helps.
    The server sends a `wsgi.file_wrapper` of the service block by block.

    `cost`, `properties` and `tier` are functions of the environ: the number of permits, and what
    rules ask for besides the request.
    """

    def __init__(
        self,
        app: App,
        policy: Policy,
        *,
        cost: Optional[Callable[[Environ], int]] = None,
        properties: Optional[Callable[[Environ], Dict[str, str]]] = None,
        tier: Optional[Callable[[Environ], Optional[str]]] = None,
    ) -> None:
        self._app = app
        self._policy = policy
        self._cost = cost
        self._properties = properties
        self._tier = tier

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            decision = self._policy.decide(**self._request(environ))
        except InvalidRequest as error:
            return _answered(answer_to_invalid(error), environ, start_response)
        if not decision.allowed:
            with decision:
                answer = Answer(decision.status, decision.headers, decision.body)
            return _answered(answer, environ, start_response)
        response = _Response(environ, start_response, decision)
        try:
            response.begin(self._app)
        except BaseException:
            response.close()
            raise
        length = response.length
        return response if length is None else _Sized(response, length)

    def _request(self, environ: Environ) -> Dict[str, Any]:
        request = {
            "method": environ["REQUEST_METHOD"],
            "path": _path(environ),
            "host": environ.get("HTTP_HOST") or environ.get("SERVER_NAME", ""),
            "address": environ.get("REMOTE_ADDR"),
            "headers": _fields(environ),
        }
        if self._cost is not None:
            request["cost"] = self._cost(environ)
        if self._properties is not None:
            request["properties"] = self._properties(environ)
        if self._tier is not None:
            request["tier"] = self._tier(environ)
        return request


def _path(environ: Environ) -> str:
    """Returns the path by which the service chooses a handler, encoded.

    That is `PATH_INFO` alone. A client may be able to choose `SCRIPT_NAME`.
    """
    path: str = environ.get("PATH_INFO", "")
    try:
        return quote(path.encode("latin-1")) or "/"
    except UnicodeEncodeError:
        return quote(path, errors="surrogatepass") or "/"


def _fields(environ: Environ) -> List[Field]:
    """Returns the header fields of a request."""
    fields = [
        (name[5:].replace("_", "-"), value)
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        value = environ.get(name)
        if value:
            fields.append((name.replace("_", "-"), value))
    return fields


def _answered(
    answer: Answer, environ: Environ, start_response: StartResponse, exc_info: Any = None
) -> List[bytes]:
    """Sends a whole response instead of the service."""
    status = f"{answer.status} {_REASONS.get(answer.status, 'Rejected')}"
    if exc_info is None:
        start_response(status, answer.headers)
    else:
        start_response(status, answer.headers, exc_info)
    return [b"" if environ["REQUEST_METHOD"].upper() == "HEAD" else answer.body]


class _Response:
    """The response of the service to one request.

    `close` ends the response of the service, and then the decision, each once.
    """

    def __init__(
        self, environ: Environ, start_response: StartResponse, decision: Decision
    ) -> None:
        self._environ = environ
        self._start_response = start_response
        self._decision = decision
        self._body: Iterable[bytes] = ()
        self._chunks: Iterator[bytes] = iter(())
        #: The number of chunks, if the service tells it.
        self.length: Optional[int] = None

    def begin(self, app: App) -> None:
        """Calls the service."""
        try:
            self._body = app(self._environ, self._start)
            self._chunks = iter(self._body)
            if isinstance(self._body, Sized):
                self.length = len(self._body)
        except BaseException as error:
            self._reject(error)

    def _reject(self, error: BaseException) -> None:
        """Answers instead of the service, or raises its exception.

        If a byte of its response was sent, the server raises it.
        """
        rejected = rejection(error)
        if rejected is None:
            raise error
        answer = answer_to_rejected(rejected)
        self._close_body()
        exc_info = sys.exc_info()
        try:
            chunks = _answered(answer, self._environ, self._start_response, exc_info)
        finally:
            # A frame that is in a traceback it holds is never freed.
            del exc_info
        self._chunks = iter(chunks)

    def _start(
        self, status: str, headers: List[Field], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        stated = missing(self._decision.headers, [name for name, _ in headers])
        arguments: Tuple[Any, ...] = (status, [*headers, *stated])
        if exc_info is not None:
            arguments = (*arguments, exc_info)
        return self._start_response(*arguments)

    def __iter__(self) -> "_Response":
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except StopIteration:
            raise
        except BaseException as error:
            self._reject(error)
            return next(self._chunks)

    def _close_body(self) -> None:
        body, self._body = self._body, ()
        close = getattr(body, "close", None)
        if close is not None:
            close()

    def close(self) -> None:
        try:
            self._close_body()
        finally:
            self._decision.close()


class _Sized:
    """A response of which the number of chunks is known.

    Servers state the length of a response that is one chunk.
    """

    def __init__(self, response: _Response, length: int) -> None:
        self._response = response
        self._length = length

    def __iter__(self) -> Iterator[bytes]:
        return self._response

    def __len__(self) -> int:
        return self._length

    def close(self) -> None:
        self._response.close()
