"""Rate limiters that threads, asyncio tasks and worker processes share, without a server.

    >>> from portcullis import TokenBucket
    >>> bucket = TokenBucket("10/s", burst=2)
    >>> [bucket.allow() for _ in range(3)]
    [True, True, False]

Limits are decided in Rust, each by one atomic word. Requests that wait do so in one fair queue,
whether they are tasks of asyncio or threads.
"""

import sys as _sys

from ._errors import AcquireTimeout, InvalidRequest, Rejected
from ._limited import limited
from ._portcullis import (
    Acquire,
    AllOf,
    Concurrency,
    Decision,
    FixedWindow,
    Keyed,
    Lease,
    Limiter,
    Policy,
    RedisStore,
    SlidingWindow,
    TokenBucket,
    __version__,
)

__all__ = [
    "Acquire",
    "AcquireTimeout",
    "AllOf",
    "Concurrency",
    "Decision",
    "FixedWindow",
    "InvalidRequest",
    "Keyed",
    "Lease",
    "Limiter",
    "Policy",
    "RedisStore",
    "Rejected",
    "SlidingWindow",
    "TokenBucket",
    "__version__",
    "limited",
]

if _sys.platform == "linux":
    from ._portcullis import SharedStore, remove_shared, shared

    __all__ += ["SharedStore", "remove_shared", "shared"]
