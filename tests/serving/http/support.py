"""A client of the application, within the process, and of the command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any, Self

import httpx

from cnrfmt.serving.http.app import Service

ROOT = Path(__file__).resolve().parents[3]
BASE = "http://127.0.0.1"


class Client:
    """Asks an application without a network."""

    def __init__(self, service: Service) -> None:
        self._transport = httpx.ASGITransport(service.application, raise_app_exceptions=False)

    def request(self, method: str, path: str, **words: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url=BASE) as client:
                return await client.request(method, path, **words)

        return asyncio.run(ask())

    def get(self, path: str, **words: Any) -> httpx.Response:
        return self.request("GET", path, **words)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Posts JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        return self.request("POST", path, content=content, headers=named)


class Process:
    """The command, as a process of its own."""

    def __init__(self, *words: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cnrfmt", "serve", *map(str, words), "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: Queue[str] = Queue()
        self.events: list[dict[str, Any]] = []
        # A pipe that nobody reads would hold it up.
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next event of this name."""
        while True:
            # Kernels may have to be compiled.
            found: dict[str, Any] = json.loads(self._lines.get(timeout=300))
            self.events.append(found)
            if found["event"] == event:
                return found

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code after a signal, and what it wrote to stderr."""
        self._process.send_signal(number)
        code = self._process.wait(timeout=60)
        self._reading.join()
        assert self._process.stderr is not None
        return code, self._process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
