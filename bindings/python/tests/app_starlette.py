"""A service of Starlette whose requests a policy limits."""

import contextlib
import os
from pathlib import Path
from typing import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from portcullis import Concurrency, Policy, TokenBucket, limited
from portcullis.asgi import RateLimitMiddleware

POLICY = Policy.from_file(Path(__file__).with_name("rules.toml"), trusted=["127.0.0.1"])


async def hello(request: Request) -> Response:
    return PlainTextResponse(str(os.getpid()))


async def login(request: Request) -> Response:
    return PlainTextResponse("logged in")


@limited(TokenBucket("1/h"))
async def rare(request: Request) -> Response:
    return PlainTextResponse("rare")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("open")
    await websocket.receive_text()
    await websocket.close()


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with Concurrency(1).acquire():
        yield


app = Starlette(
    routes=[
        Route("/", hello),
        Route("/login", login, methods=["POST"]),
        Route("/place", hello),
        Route("/rare", rare),
        WebSocketRoute("/socket", socket),
    ],
    middleware=[Middleware(RateLimitMiddleware, policy=POLICY)],
    lifespan=lifespan,
)
