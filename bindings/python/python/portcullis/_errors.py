"""The exceptions of requests."""

from typing import Optional


class Rejected(Exception):
    """A request was not granted: too many requests wait, or the limiter is closed.

    `reason` says why. `retry_after` is the number of seconds after which a retry can succeed, or
    None if that does not depend on time.
    """

    reason: str
    retry_after: Optional[float]

    def __init__(self, reason: str, retry_after: Optional[float] = None) -> None:
        super().__init__(reason, retry_after)
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        if self.retry_after is None:
            return self.reason
        return f"{self.reason}; retry after {self.retry_after:.3f} s"


class AcquireTimeout(Rejected, TimeoutError):
    """The permits do not come within the timeout. Raised as soon as that is known."""


class InvalidRequest(ValueError):
    """What is to be decided is no request of HTTP: it has no limit, and its answer is 400."""
