"""A local server that speaks chat completions, and can be told to speak them badly."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Carries out the next behaviour of the script for each request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        length = int(self.headers.get("content-length", 0))
        server.requests.append(json.loads(self.rfile.read(length)))
        server.keys.append(self.headers.get("authorization"))
        with server.lock:
            behaviour = server.script.pop(0) if len(server.script) > 1 else server.script[0]
        self.close_connection = True
        behaviour(self)

    def log_message(self, *args: Any) -> None:
        return None

    def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")  # said, or a client may send the next request on what is closing
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

    def send(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, usage: Any = None) -> str:
    """One server-sent event."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    content = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return f"data: {json.dumps({**content, **({'usage': usage} if usage is not None else {})})}\n\n"


USAGE = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}


def stream(*events: str, done: bool = True) -> Behaviour:
    """Send these events."""

    def behave(handler: Handler) -> None:
        handler.start_stream()
        for event in events:
            handler.send(event)
        if done:
            handler.send("data: [DONE]\n\n")

    return behave


def calls(*pairs: tuple[str, dict[str, Any]], usage: Any = USAGE) -> Behaviour:
    """A faithful answer that calls tools, its arguments in pieces."""
    events = [chunk({"role": "assistant", "content": None})]
    for index, (name, arguments) in enumerate(pairs):
        text = json.dumps(arguments)
        head = {"index": index, "id": f"id{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        events.append(chunk({"tool_calls": [head]}))
        for start in range(0, len(text), 700):
            piece = {"index": index, "function": {"arguments": text[start : start + 700]}}
            events.append(chunk({"tool_calls": [piece]}))
    return stream(*events, chunk({}, "tool_calls"), chunk(usage=usage))


def says(text: str, finish: str = "stop") -> Behaviour:
    """A faithful answer of text."""
    return stream(chunk({"role": "assistant", "content": text}), chunk({}, finish), chunk(usage=USAGE))


def error(status: int, code: str = "", param: str | None = None, **headers: str) -> Behaviour:
    """A typed error."""
    body = {"error": {"message": f"error {status}", "type": "x", "code": code, "param": param}}
    return lambda handler: handler.answer(status, json.dumps(body).encode(), **headers)


@contextmanager
def serving(script: Sequence[Behaviour]) -> Iterator[Any]:
    """A server with a script; the last behaviour repeats. It has `url`, `requests` and `keys`."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.script, server.requests, server.keys, server.lock = list(script), [], [], threading.Lock()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
