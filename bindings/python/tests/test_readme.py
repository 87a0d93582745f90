"""The programs of the documents run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = ["bindings/python/README.md", "docs/coming-from/python.md"]


def programs(document: str) -> "list[str]":
    text = (ROOT / document).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=f"{document}:{number}")
        for document in DOCUMENTS
        for number, program in enumerate(programs(document))
    ],
)
def test_programs_run(program: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert run.returncode == 0, run.stdout.decode()


def test_there_are_programs() -> None:
    assert [len(programs(document)) > 0 for document in DOCUMENTS] == [True] * len(DOCUMENTS)
