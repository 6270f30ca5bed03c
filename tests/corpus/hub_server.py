"""A local HTTP server that speaks as much of the Hub's API as a pull needs, and misbehaves on request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class FakeModel:
    """One repository: its downloads, its files, and the status with which it refuses them."""

    model_id: str
    downloads: int
    files: dict[str, bytes] = field(default_factory=dict)
    pipeline_tag: str = "feature-extraction"
    gated: bool = False

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.model_id.encode()).hexdigest()  # as long as a commit


class FakeHub(ThreadingHTTPServer):
    """The server; `fail_next` holds statuses to answer with before a path (prefix) is served properly."""

    daemon_threads = True

    def __init__(self, models: list[FakeModel], page: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = {model.model_id: model for model in models}
        self.page = page
        self.fail_next: dict[str, list[int]] = {}
        self.always: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def failure_for(self, path: str) -> int | None:
        with self.lock:
            self.requests[path] += 1
            for prefix, status in self.always.items():
                if path.startswith(prefix):
                    return status
            for prefix, statuses in self.fail_next.items():
                if path.startswith(prefix) and statuses:
                    return statuses.pop(0)
        return None


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, *_: object) -> None:
        return None

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        failure = self.server.failure_for(parts.path)
        if failure is not None:
            extra = {"Retry-After": "0"} if failure == 429 else {}
            self._answer(failure, b"{}", **extra)
        elif parts.path == "/api/models":
            self._list(parse_qs(parts.query))
        elif "/resolve/" in parts.path:
            self._file(parts.path)
        else:
            self._answer(200, b"{}")

    def _list(self, query: dict[str, list[str]]) -> None:
        tag = query.get("pipeline_tag", [""])[0]
        start = int(query.get("cursor", ["0"])[0])
        listed = sorted(
            (model for model in self.server.models.values() if model.pipeline_tag == tag),
            key=lambda model: -model.downloads,
        )
        shown = listed[start : start + self.server.page]
        body = [
            {"id": model.model_id, "downloads": model.downloads, "gated": model.gated and "manual", "sha": model.sha}
            for model in shown
        ]
        extra = {}
        if start + self.server.page < len(listed):
            following = f"{self.server.url}/api/models?pipeline_tag={tag}&cursor={start + self.server.page}"
            extra["Link"] = f'<{following}>; rel="next"'
        self._answer(200, json.dumps(body).encode(), **extra)

    def _file(self, path: str) -> None:
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        model = self.server.models.get(repository)
        if model is None:
            self._answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})
            return
        if model.gated:
            self._answer(403, b"{}", **{"X-Error-Code": "GatedRepo"})
            return
        name = rest.partition("/")[2]
        content = model.files.get(name)
        if content is None:
            self._answer(404, b"{}", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": model.sha})
            return
        etag = hashlib.sha1(content).hexdigest()
        self._answer(200, content, **{"X-Repo-Commit": model.sha, "ETag": f'"{etag}"'})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(models: list[FakeModel], page: int = 3) -> Iterator[FakeHub]:
    """Run the server in a thread for the length of a block."""
    hub = FakeHub(models, page)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
