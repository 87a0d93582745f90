import os
from types import TracebackType
from typing import (
    Any,
    Awaitable,
    Dict,
    Generator,
    Iterable,
    List,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
    final,
    overload,
)

from typing_extensions import disjoint_base

__version__: str

_Key = Union[str, bytes, int]

@final
class Lease:
    @property
    def permits(self) -> int: ...
    def release(self) -> None: ...
    def refund(self) -> int: ...
    def __enter__(self) -> Lease: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...

@final
class Acquire(Awaitable[Lease]):
    def block(self) -> Lease: ...
    def __await__(self) -> Generator[Any, Any, Lease]: ...
    def __enter__(self) -> Lease: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Lease]: ...
    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> Awaitable[None]: ...

@disjoint_base
class Limiter:
    def allow(self, permits: int = 1) -> bool: ...
    def try_acquire(self, permits: int = 1) -> Optional[Lease]: ...
    def acquire(self, permits: int = 1, timeout: Optional[float] = None) -> Acquire: ...
    def available(self) -> int: ...
    def retry_after(self, permits: int = 1) -> float: ...
    def waiting(self) -> int: ...
    def close(self) -> None: ...

@final
class TokenBucket(Limiter):
    def __new__(
        cls, rate: str, *, burst: Optional[int] = None, max_waiting: Optional[int] = None
    ) -> TokenBucket: ...

@final
class FixedWindow(Limiter):
    def __new__(cls, rate: str, *, max_waiting: Optional[int] = None) -> FixedWindow: ...

@final
class SlidingWindow(Limiter):
    def __new__(
        cls, rate: str, *, segments: int = 8, max_waiting: Optional[int] = None
    ) -> SlidingWindow: ...

@final
class Concurrency(Limiter):
    def __new__(cls, limit: int, *, max_waiting: Optional[int] = None) -> Concurrency: ...

@final
class AllOf(Limiter):
    def __new__(cls, *limits: Limiter, max_waiting: Optional[int] = None) -> AllOf: ...

@final
class Keyed:
    def __new__(
        cls, limit: Limiter, *, keys: int = 10_000, max_waiting: Optional[int] = None
    ) -> Keyed: ...
    def allow(self, key: _Key, permits: int = 1) -> bool: ...
    def try_acquire(self, key: _Key, permits: int = 1) -> Optional[Lease]: ...
    def acquire(
        self, key: _Key, permits: int = 1, timeout: Optional[float] = None
    ) -> Acquire: ...
    def available(self, key: _Key) -> int: ...
    def retry_after(self, key: _Key, permits: int = 1) -> float: ...
    def waiting(self) -> int: ...
    def close(self) -> None: ...

@overload
def shared(name: str, limit: Limiter) -> Limiter: ...
@overload
def shared(name: str, limit: Keyed) -> Keyed: ...
def remove_shared(name: str) -> None: ...

_Text = Union[str, bytes]

@final
class SharedStore:
    def __new__(cls, name: str, *, ids: int = 10_000) -> SharedStore: ...

@final
class RedisStore:
    def __new__(
        cls,
        url: str,
        *,
        prefix: Optional[str] = None,
        time_limit: Optional[float] = None,
        when_down: str = "deny",
    ) -> RedisStore: ...

_Stores = Dict[str, Union[SharedStore, RedisStore]]

@final
class Decision:
    @property
    def allowed(self) -> bool: ...
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> List[Tuple[str, str]]: ...
    @property
    def body(self) -> bytes: ...
    def close(self) -> None: ...
    def __enter__(self) -> Decision: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...

@final
class Policy:
    @staticmethod
    def from_toml(
        text: str,
        *,
        stores: Optional[_Stores] = None,
        fields: Optional[str] = "draft-11",
        trusted: Sequence[str] = (),
        forwarded: str = "x-forwarded-for",
        timeout: Optional[float] = None,
    ) -> Policy: ...
    @staticmethod
    def from_json(
        text: str,
        *,
        stores: Optional[_Stores] = None,
        fields: Optional[str] = "draft-11",
        trusted: Sequence[str] = (),
        forwarded: str = "x-forwarded-for",
        timeout: Optional[float] = None,
    ) -> Policy: ...
    @staticmethod
    def from_file(
        path: Union[str, os.PathLike[str]],
        *,
        stores: Optional[_Stores] = None,
        fields: Optional[str] = "draft-11",
        trusted: Sequence[str] = (),
        forwarded: str = "x-forwarded-for",
        timeout: Optional[float] = None,
    ) -> Policy: ...
    def decide(
        self,
        method: str,
        path: str,
        *,
        host: str = "",
        address: Optional[str] = None,
        headers: Iterable[Iterable[_Text]] = (),
        properties: Optional[Dict[str, str]] = None,
        tier: Optional[str] = None,
        cost: int = 1,
    ) -> Decision: ...
    def judge(
        self,
        method: str,
        path: str,
        *,
        host: str = "",
        address: Optional[str] = None,
        headers: Iterable[Iterable[_Text]] = (),
        properties: Optional[Dict[str, str]] = None,
        tier: Optional[str] = None,
        cost: int = 1,
    ) -> Awaitable[Decision]: ...
    def reload(self, text: Optional[str] = None) -> None: ...
