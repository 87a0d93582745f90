"""A service of ASGI whose workers share a limit."""

import os
from typing import Any

import portcullis

LIMIT = portcullis.shared(os.environ["LIMIT_NAME"], portcullis.TokenBucket("30/minute"))
# Requests wait here for a place, in each worker.
PLACES = portcullis.Concurrency(2)


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    async with PLACES.acquire():
        status = 200 if LIMIT.allow() else 429
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})
