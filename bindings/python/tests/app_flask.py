"""A service of Flask whose requests a policy limits."""

import os
from pathlib import Path

from flask import Flask

from portcullis import Policy, TokenBucket, limited
from portcullis.wsgi import RateLimitMiddleware

POLICY = Policy.from_file(Path(__file__).with_name("rules.toml"), trusted=["127.0.0.1"])

service = Flask(__name__)


@service.get("/")
@service.get("/place")
def hello() -> str:
    return str(os.getpid())


@service.post("/login")
def login() -> str:
    return "logged in"


class Rare:
    """A handler that raises `Rejected`, which Flask passes on in a middleware of its own."""

    def __init__(self) -> None:
        self.call = limited(TokenBucket("1/h"))(self.rare)

    @staticmethod
    def rare() -> str:
        return "rare"


service.add_url_rule("/rare", "rare", Rare().call)
service.config["PROPAGATE_EXCEPTIONS"] = True
app = RateLimitMiddleware(service, POLICY)
