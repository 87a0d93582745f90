"""Worker processes of gunicorn, killed and restarted under load, have one limit."""

import contextlib
import http.client
import os
import signal
import threading
import time
from typing import List, Set

import pytest
from servers import ask, gunicorn

WORKERS = 4


@pytest.mark.parametrize(
    "app, options",
    [
        ("app_wsgi:app", []),
        ("app_wsgi:app", ["--preload"]),
        ("app_wsgi:app", ["--threads", "4"]),
        ("app_asgi:app", ["--worker-class", "uvicorn_worker.UvicornWorker"]),
        ("app_asgi:app", ["--preload", "--worker-class", "uvicorn_worker.UvicornWorker"]),
    ],
)
def test_workers_have_one_limit(name: str, app: str, options: List[str]) -> None:
    statuses: List[int] = []
    workers: Set[int] = set()
    stop = threading.Event()

    def load(port: int) -> None:
        while not stop.is_set():
            # A worker that is killed closes its connections.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                status, _, worker = ask(port)
                statuses.append(status)
                workers.add(int(worker))

    options = ["--workers", str(WORKERS), *options]
    with gunicorn(app, options, {"LIMIT_NAME": name}) as port:
        begin = time.monotonic()
        threads = [threading.Thread(target=load, args=(port,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            deadline = begin + 60
            killed: Set[int] = set()
            while len(killed) < 3 or len(workers) < WORKERS + 2 or len(statuses) < 400:
                assert time.monotonic() < deadline, (len(killed), len(workers), len(statuses))
                time.sleep(0.2)
                alive = workers - killed
                if len(killed) < 3 and len(alive) >= 2:
                    victim = alive.pop()
                    killed.add(victim)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        passed = time.monotonic() - begin
    granted = statuses.count(200)
    # Some grants may be lost with the connection of a worker that was killed.
    assert 30 - 8 <= granted <= 30 + passed * 0.5 + 1
    assert set(statuses) == {200, 429}
