"""The event loops in which tasks of this interpreter have waited."""

import weakref
from asyncio import AbstractEventLoop
from typing import Any

#: What the module has for each event loop, as a weak reference.
ALL: "weakref.WeakKeyDictionary[AbstractEventLoop, weakref.ref[Any]]" = weakref.WeakKeyDictionary()
