"""MCP servers that misbehave, in raw JSON-RPC: `python bad_mcp_server.py KIND` over stdio, `HttpServer(KIND)` over HTTP.

Only the standard library is used: the SDK would refuse to send most of this. Each has a tool `fine` that works, where
its fault leaves any.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OBJECT = {"type": "object"}
FINE = {"name": "fine", "description": "Works.", "inputSchema": OBJECT}
INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {"listChanged": True}},
    "serverInfo": {"name": "bad", "version": "1"},
}


def odd(**more: Any) -> dict[str, Any]:
    return {"name": "odd", "description": "Is odd.", "inputSchema": OBJECT, **more}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


TOOLS: dict[str, Any] = {
    "schema with a foreign reference": [odd(inputSchema={
        "type": "object", "required": ["query"],
        "properties": {"query": {"type": "string"}, "x": {"$ref": "https://example.com/x.json"}},
    })],
    "schema that requires itself": [odd(inputSchema={"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})],
    "schema nested too deeply": [odd(inputSchema=nested(60))],
    "schema that is too large": [odd(inputSchema={"type": "object", "properties": {
        f"p{number}": {"type": "string", "description": "long " * 40} for number in range(900)}})],
    "schema without a type": [odd(inputSchema={"properties": {"a": {"type": "string"}}})],
    "schema of another type": [odd(inputSchema={"type": "string"})],
    "schema that is a text": [odd(inputSchema="{}")],
    "properties as a list": [odd(inputSchema={"type": "object", "properties": [], "required": "a"})],
    "pattern that takes forever": [odd(inputSchema={"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$(?=b)"}}})],
    "no schema": [{"name": "odd"}],
    "no name": [{"description": "nameless", "inputSchema": OBJECT}, "text", None, {"name": 5}],
    "unprintable name": [odd(name="odd\nname"), odd(name="o" * 4000)],
    "fields of wrong types": [odd(description=7, annotations=[1], title={}, icons="x", _meta=[], execution=3)],
    "two tools of one name": [odd(), odd(description="Another.")],
    "a name of another server": [odd(name="add")],
    "a description of megabytes": [odd(description="word " * 400_000)],
}  # fmt: skip

GOOD = {"content": [{"type": "text", "text": "well"}]}
OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
RESULTS: dict[str, Any] = {
    "unlike its output schema": {**GOOD, "structuredContent": {"n": "five"}},
    "without structured content": GOOD,
    "structured content as a list": {"content": [], "structuredContent": [1, 2]},
    "unknown content": {"content": [{"type": "text", "text": "well"}, {"type": "video3d", "url": "x"}]},
    "content without its fields": {"content": [{"type": "text"}, {"type": "image", "data": 5}, "plain"]},
    "content as a text": {"content": "well"},
    "no content": {},
    "null": None,
    "a list": [{"type": "text", "text": "well"}],
    "an old result": {"toolResult": {"well": True}},
    "wrong flags": {**GOOD, "isError": "no", "_meta": [1]},
}
RAW: dict[str, bytes] = {
    "half a surrogate pair": rb'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\ud83dz \\ud83d \ud83d\ude00"}]}}',
    "no UTF-8": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\xff\xfez"}]}}',
    "no jsonrpc field": b'{"id":ID,"result":{"content":[{"type":"text","text":"well"}]}}',
    "the id as a text": b'{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"well"}]}}',
    "a batch": b'[{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"well"}]}}]',
    "a batch of two": b'[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}},{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"well"}]}}]',
    "the id of no request": b'{"jsonrpc":"2.0","id":9ID9,"result":{"content":[{"type":"text","text":"well"}]}}',
    "no id": b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"out of paper"}}',
    "error and result": b'{"jsonrpc":"2.0","id":ID,"error":null,"result":{"content":[{"type":"text","text":"well"}]}}',
    "an error that is a text": b'{"jsonrpc":"2.0","id":ID,"error":"out of paper"}',
    "an error of its own code": b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"out of paper"}}',
    "no JSON": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[}',
    "nested too deeply": b'{"jsonrpc":"2.0","id":ID,"result":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "not a number": b'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"n":NaN}}}',
}  # fmt: skip
COMPLETIONS: dict[str, Any] = {
    "too many suggestions": {"values": [str(number) for number in range(150)], "total": 150},
    "suggestions of wrong types": {"values": ["a", 1, None], "total": "three"},
    "suggestions as a text": {"values": "a"},
    "no suggestions": None,
}
HUGE = 20 * 2**20


def answer(kind: str, request: dict[str, Any]) -> bytes | None:
    """What stands for the response to a request; None for no response at all."""
    id, method, params = request["id"], request["method"], request.get("params") or {}

    def result(value: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode()

    def raw(text: bytes) -> bytes:
        return text.replace(b"ID", str(id).encode())

    if method == "initialize":
        if kind == "never shakes hands":
            return None
        if kind == "a handshake without its fields":
            return result({"protocolVersion": "2025-06-18"})
        more = {"prompts": {}, "completions": {}} if kind in COMPLETIONS else {}
        return result({**INITIALIZED, "capabilities": {**INITIALIZED["capabilities"], **more}})
    if method == "prompts/list" and kind in COMPLETIONS:
        return result({"prompts": [{"name": "plan", "arguments": [{"name": "day"}]}]})
    if method == "completion/complete" and kind in COMPLETIONS:
        return result({"completion": COMPLETIONS[kind]})
    if method == "tools/list":
        return _list(kind, params, result)
    if method == "tools/call" and params.get("name") == "odd":
        if kind in RESULTS:
            return result(RESULTS[kind])
        if kind == "a tool that is gone":
            TOOLS[kind] = []
            return result(None).replace(b'"result": null', b'"error": {"code": -32602, "message": "Unknown tool: odd"}')
        if kind == "megabytes of result":
            return result({"content": [{"type": "text", "text": "x" * HUGE}]})
        return raw(RAW[kind]) if kind in RAW else result(GOOD)
    if method == "tools/call":
        return result({"content": [{"type": "text", "text": "fine"}]})
    return json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown"}}).encode()


def _list(kind: str, params: dict[str, Any], result: Any) -> bytes | None:
    schemas = {"outputSchema": OUTPUT} if kind in ("unlike its output schema", "without structured content") else {}
    page: dict[str, Any] = {"tools": [FINE, *TOOLS.get(kind, [odd(**schemas)])]}
    number = int(params.get("cursor") or 0)
    match kind:
        case "a list that hangs":
            return None
        case "pages that hang" if number:
            return None
        case "pages that hang":
            return result({**page, "nextCursor": "1"})
        case "pages without end":
            more = [odd(name=f"t{number}_{each}", description="word " * 2000) for each in range(50)]
            return result({"tools": [*page["tools"][: 2 * (not number)], *more], "nextCursor": str(number + 1)})
        case "empty pages without end":
            return result({"tools": page["tools"] if not number else [], "nextCursor": str(number + 1)})
        case "one page again and again":
            return result({**page, "nextCursor": "1"})
        case "megabytes of tools":
            return result({"tools": [odd(description="x" * HUGE)]})
        case "tools as an object":
            return result({"tools": {"fine": FINE}})
        case "a list that is refused":
            return result(None).replace(b'"result": null', b'"error": {"code": -32603, "message": "database away"}')
        case _:
            return result(page)


# ---- stdio ----------------------------------------------------------------------------------------------------------


def send(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def notify(method: str, **params: Any) -> None:
    send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())


def progress(token: Any) -> bytes:
    params = {"progressToken": token, "progress": 1, "message": "y" * 200}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()


CANCELLED: list[Any] = []


def ask_person(times: int) -> None:
    """Ask, without waiting for the answers."""
    form = {"type": "object", "properties": {"day": {"type": "string"}}}
    for number in range(times):
        params = {"message": f"Which day, {number}?", "requestedSchema": form}
        send(
            json.dumps(
                {"jsonrpc": "2.0", "id": f"q{number}", "method": "elicitation/create", "params": params}
            ).encode()
        )


def flood(stream: Any, piece: bytes, pieces: int = 10**9) -> None:
    def write() -> None:
        for _ in range(pieces):
            stream.write(piece)
            stream.flush()

    threading.Thread(target=write, daemon=True).start()


def serve(kind: str) -> None:
    if kind == "dies at once":
        sys.exit(3)
    if kind == "prints a banner":
        sys.stdout.write("Welcome to BAD 1.0!\n\x1b[31m{not json}\x1b[0m\n\n")
        sys.stdout.flush()
    if kind == "floods stderr":
        flood(sys.stderr.buffer, b"debug " * 10_000 + b"\n")
    if kind == "a line without an end":
        sys.stdout.buffer.write(b"x" * HUGE + b"\n")
        sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if kind == "ends at a first message it does not know" and method == "server/discover":
            sys.exit(1)
        if "id" not in request or method is None:
            if request.get("result", {}).get("action") == "cancel":
                CANCELLED.append(request["id"])
                if len(CANCELLED) == 900:
                    print("900 questions were cancelled", file=sys.stderr, flush=True)
            if method == "notifications/initialized":
                begin(kind)
            continue
        if method == "tools/call" and request["params"]["name"] == "odd":
            if kind == "dies in the call":
                sys.exit(1)
            if kind == "closes its output in the call":
                os.close(1)
                time.sleep(60)
            if kind == "hangs in the call":
                continue
            token = request["params"].get("_meta", {}).get("progressToken")
            if kind == "floods with progress":
                for number in range(4_000):
                    notify("notifications/progress", progressToken=token, progress=number, message="y" * 2000)
            if kind == "progress without end":
                flood(sys.stdout.buffer, progress(token) + b"\n")
                continue
            if kind == "ends in the middle of an answer":
                sys.stdout.buffer.write((answer(kind, request) or b"")[:40])
                sys.exit(0)
            if kind == "asks a person without end":
                ask_person(1000)
                continue
            if kind == "words before an answer":
                sys.stdout.buffer.write(b"\r 50%|#####     | ")
        if kind == "binary on its output":
            sys.stdout.buffer.write(bytes(range(256)) * 300 + b"\n")
        if kind == "every answer twice":
            send(answer(kind, request) or b"")
        if kind == "tools that change" and method == "tools/call" and request["params"]["name"] == "odd":
            TOOLS[kind] = [odd(), {**FINE, "name": "grown"}]
            notify("notifications/tools/list_changed")
        if (said := answer(kind, request)) is not None:
            send(said)


def begin(kind: str) -> None:
    if kind == "floods with notifications":
        text = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        flood(sys.stdout.buffer, json.dumps(text).encode() + b"\n")
    if kind == "says without end that its tools changed":
        text = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        flood(sys.stdout.buffer, json.dumps(text).encode() + b"\n")
    if kind == "asks the client without end":
        ask = {
            "jsonrpc": "2.0",
            "id": "q",
            "method": "sampling/createMessage",
            "params": {"messages": [], "maxTokens": 1},
        }
        flood(sys.stdout.buffer, json.dumps(ask).encode() + b"\n", 5000)


# ---- HTTP -----------------------------------------------------------------------------------------------------------


class HttpServer:
    """A server in a thread of its own. `sessions` are those it knows; `calls` counts what reached a tool, `requests`
    what reached it at all, `streams` how many streams it is writing, and `written` their bytes. elsewhere: the URL that it redirects to."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.sessions: set[str] = set()
        self.begun = 0
        self.calls: list[str] = []
        self.requests: list[str] = []
        self.streams = self.written = 0
        self.elsewhere = ""
        self.closed = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                outer.requests.append(f"POST {self.path}")
                outer.post(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def do_GET(self) -> None:
                outer.requests.append(f"GET {self.path}")
                outer.get(self)

            def do_DELETE(self) -> None:
                plain(self, 200, b"")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        if self.kind == "streams that end at once":
            return events(handler, [b"id: 7\nretry: 0\ndata:\n\n"])
        if self.kind == "metadata without end" and ".well-known" in handler.path:
            return self.endless(handler, b" ", pause=0.001)
        plain(handler, 405, b"")

    def post(self, handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        kind, method = self.kind, request.get("method")
        if "id" not in request:
            if kind == "notifications that hang" and method == "notifications/cancelled":
                self.closed.wait(60)
            return plain(handler, 202, b"")
        if kind in ("a token for everything", "metadata without end"):
            return plain(handler, 401, b"", headers={"www-authenticate": "Bearer"})
        if kind == "an error page for everything":
            return plain(handler, 500, b"<html>" + b"oops" * 1000, "text/html")
        if kind == "a redirect to nowhere":
            return plain(handler, 307, b"", headers={"location": "http://127.0.0.2:9/elsewhere"})
        if kind == "a redirect of every request" and handler.path == "/mcp":
            return plain(handler, 307, b"", headers={"location": "/mcp/"})
        if method == "initialize":
            self.begun += 1
            self.sessions.add(session := "s\xe9" if kind == "a session id beyond ASCII" else f"s{self.begun}")
            return plain(handler, 200, answer(kind, request) or b"", headers={"mcp-session-id": session})
        session = handler.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            body = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            status = 400 if kind == "an expired session, answered with 400" else 404
            return plain(handler, status, json.dumps({"jsonrpc": "2.0", "error": body, "id": None}).encode())
        if method == "tools/call":
            self.calls.append(request["params"]["name"])
        odd = method == "tools/call" and request["params"]["name"] == "odd"
        if odd and kind == "a text instead of JSON":
            return plain(handler, 200, b"well", "text/plain")
        if odd and kind == "an error page for a call":
            return plain(handler, 502, b"<html>bad gateway", "text/html")
        if odd and kind == "an answer without end":
            return self.endless(handler, b" ")
        if odd and kind == "events without an answer":
            return events(handler, [b": still here\n\n", b"data: no json\n\n"])
        if odd and kind == "an answer that is cut off":
            return plain(handler, 200, b'{"jsonrpc":"2.0"', length=1000)
        if odd and kind in ("hangs in the call", "notifications that hang"):
            self.closed.wait(60)
            return plain(handler, 200, b"")
        if odd and kind == "a redirect to another host":
            return plain(handler, 307, b"", headers={"location": self.elsewhere})
        if odd and kind == "a redirect to itself":
            return plain(handler, 307, b"", headers={"location": self.url})
        if odd and kind == "a call that wants a token":
            return plain(handler, 401, b"", headers={"www-authenticate": "Bearer"})
        if odd and kind == "accepted and never answered":
            return plain(handler, 202, b"")
        if odd and kind == "no content":
            return plain(handler, 204, b"")
        if odd and kind == "a compressed bomb":
            body = gzip.compress(b" " * (8 * HUGE))
            return plain(handler, 200, body, headers={"content-encoding": "gzip"})
        if odd and kind == "heartbeats without end":
            return self.endless(handler, b": still here\n\n", "text/event-stream", pause=0.02)
        if odd and kind == "progress without end (events)":
            event = b"data: " + progress(request["params"].get("_meta", {}).get("progressToken")) + b"\n\n"
            return self.endless(handler, event, "text/event-stream", pause=0.0001)
        if odd and kind == "streams that end at once":
            return events(handler, [b"id: 7\nretry: 0\ndata:\n\n"])
        said = answer(kind.removesuffix(" (events)"), request) or b""
        if kind.endswith(" (events)"):
            return events(handler, [b"event: message\ndata: " + said + b"\n\n"])
        return plain(handler, 200, said)

    def endless(
        self, handler: BaseHTTPRequestHandler, piece: bytes, kind: str = "application/json", *, pause: float = 0.0
    ) -> None:
        """Write until nobody reads."""
        self.streams += 1
        handler.send_response(200)
        handler.send_header("content-type", kind)
        handler.end_headers()
        handler.close_connection = True
        try:
            while not self.closed.is_set():
                self.written += handler.wfile.write(piece if kind == "text/event-stream" else piece * 2**16)
                time.sleep(pause)
        except OSError:
            pass
        self.streams -= 1


def plain(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json", *,
    headers: Mapping[str, str] = {}, length: int | None = None,
) -> None:  # fmt: skip
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = length is not None


def events(handler: BaseHTTPRequestHandler, pieces: list[bytes]) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    handler.close_connection = True
    for piece in pieces:
        for part in _parts(piece):
            handler.wfile.write(part)
            handler.wfile.flush()


def _parts(piece: bytes) -> Iterator[bytes]:
    """In pieces that end anywhere, within an escape too."""
    yield from (piece[start : start + 7] for start in range(0, min(len(piece), 400), 7))
    yield piece[400 + (7 - 400 % 7) % 7 :] if len(piece) > 400 else b""


if __name__ == "__main__":
    serve(sys.argv[1])
