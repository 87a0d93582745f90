"""What several tests use."""

import gc
import itertools
import os
from typing import Iterator

import pytest

import portcullis

_numbers = itertools.count()


@pytest.fixture
def name() -> Iterator[str]:
    """A name for limits that processes share, whose files are removed after the test."""
    name = f"python-test-{os.getpid()}-{next(_numbers)}"
    yield name
    gc.collect()
    try:
        portcullis.remove_shared(name)
    except FileNotFoundError:
        pass
