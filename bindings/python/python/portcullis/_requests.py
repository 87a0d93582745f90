"""What the middleware of ASGI and of WSGI have in common."""

import builtins
import math
from typing import Any, Iterable, List, Optional, Set, Tuple

from ._errors import InvalidRequest, Rejected

#: A header field.
Field = Tuple[str, str]

#: Exceptions of several tasks, from Python 3.11 on.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


class Answer:
    """A whole response, with its length."""

    def __init__(self, status: int, headers: List[Field], body: bytes) -> None:
        length = ("content-length", str(len(body)))
        self.status = status
        self.headers = [*headers, *missing([length], [name for name, _ in headers])]
        self.body = body


def _text(status: int, text: str, headers: Iterable[Field] = ()) -> Answer:
    return Answer(status, [*headers, ("content-type", "text/plain; charset=utf-8")], text.encode())


def answer_to_invalid(error: InvalidRequest) -> Answer:
    """Returns the answer to what is no request of HTTP."""
    return _text(400, f"{error}\n")


def answer_to_rejected(error: Rejected) -> Answer:
    """Returns the answer to a request whose handler was denied permits."""
    wait = error.retry_after
    if wait is None or not math.isfinite(wait):
        return _text(503, "Service Unavailable")
    seconds = max(1, math.ceil(wait))
    return _text(429, "Too Many Requests", [("retry-after", str(seconds))])


def rejection(error: BaseException) -> Optional[Rejected]:
    """Returns the rejection that an exception is, or that all of a group are."""
    if isinstance(error, Rejected):
        return error
    if isinstance(error, _GROUP):
        inner = [rejection(each) for each in error.exceptions]
        if inner and all(each is not None for each in inner):
            return inner[0]
    return None


def missing(fields: Iterable[Field], names: Iterable[str]) -> List[Field]:
    """Returns the fields that a response does not have yet. `names` are those it has."""
    there: Set[str] = {name.lower() for name in names}
    return [(name, value) for name, value in fields if name not in there]
