"""Rate limiters that threads, asyncio tasks and worker processes share, without a server.

    >>> from portcullis import TokenBucket
    >>> bucket = TokenBucket("10/s", burst=2)
    >>> [bucket.allow() for _ in range(3)]
    [True, True, False]

Limits are decided in Rust, each by one atomic word. Requests that wait do so in one fair queue,
whether they are tasks of asyncio or threads.
"""

import sys as _sys

from ._errors import AcquireTimeout, Rejected
from ._portcullis import (
    Acquire,
    AllOf,
    Concurrency,
    FixedWindow,
    Keyed,
    Lease,
    Limiter,
    SlidingWindow,
    TokenBucket,
    __version__,
)

__all__ = [
    "Acquire",
    "AcquireTimeout",
    "AllOf",
    "Concurrency",
    "FixedWindow",
    "Keyed",
    "Lease",
    "Limiter",
    "Rejected",
    "SlidingWindow",
    "TokenBucket",
    "__version__",
]

if _sys.platform == "linux":
    from ._portcullis import remove_shared, shared

    __all__ += ["remove_shared", "shared"]
