"""A service of WSGI whose workers share a limit."""

import os
from typing import Any, Callable, List

import portcullis

LIMIT = portcullis.shared(os.environ["LIMIT_NAME"], portcullis.TokenBucket("30/minute"))


def app(environ: Any, start_response: Callable[..., Any]) -> List[bytes]:
    worker = str(os.getpid()).encode()
    if LIMIT.allow():
        start_response("200 OK", [])
    else:
        wait = LIMIT.retry_after()
        start_response("429 Too Many Requests", [("Retry-After", str(int(wait) + 1))])
    return [worker]
