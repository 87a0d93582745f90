"""Servers that tests start."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

HERE = Path(__file__).parent

#: The status of a response, its header fields, and its body.
Response = Tuple[int, Dict[str, str], bytes]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: List[str], port: int, environment: Dict[str, str]) -> Iterator[None]:
    """Starts a server, and ends it and all its workers."""
    variables = {**os.environ, **environment}
    server = subprocess.Popen(command, cwd=HERE, env=variables, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


@contextlib.contextmanager
def gunicorn(
    app: str, options: List[str], environment: Optional[Dict[str, str]] = None
) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"]
    command += ["--log-level", "error", *options, app]
    with started(command, port, environment or {}):
        yield port


@contextlib.contextmanager
def uvicorn(
    app: str, options: List[str], environment: Optional[Dict[str, str]] = None
) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--port", str(port)]
    command += ["--log-level", "error", *options, app]
    with started(command, port, environment or {}):
        yield port


def ask(
    port: int, path: str = "/", method: str = "GET", headers: Optional[Dict[str, str]] = None
) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return response.status, fields, response.read()
    finally:
        connection.close()
