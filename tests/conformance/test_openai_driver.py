"""The driver of the `openai` package, against recorded answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from adapters import sse
from adapters.errors import RequestError, response

HEAD = {"id": "c1", "created": 0, "model": "m"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse.frame(json.dumps({**HEAD, "object": "chat.completion.chunk", "choices": [choice]}).encode())


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["model"] != "m":
            refused = response("openai", RequestError("not_found", "There is no such model.", param="model"))
            return self.reply(refused.status, "application/json", refused.body)
        if not request["stream"]:
            choice = {"index": 0, "message": {"role": "assistant", "content": "Hi ☔"}, "finish_reason": "stop"}
            body = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
            return self.reply(200, "application/json", json.dumps(body).encode())
        last = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
        frames = [
            chunk({"role": "assistant", "content": "Hi "}),
            sse.KEEP_ALIVE,
            chunk({"content": "☔"}),
            chunk({}, "stop"),
        ]
        frames += [sse.frame(json.dumps(last).encode()), sse.DONE]
        return self.reply(200, sse.CONTENT_TYPE, b"".join(frames))

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_the_driver_reports_both_forms_and_errors(node_clients):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}/v1"
    messages = [{"role": "user", "content": "Hi"}]
    good, bad = node_clients.run(
        "openai.mjs", [{"baseURL": base, "request": {"model": name, "messages": messages}} for name in ("m", "none")]
    )
    server.shutdown()
    server.server_close()
    thread.join()
    assert good["message"]["content"] == good["streamed"]["content"] == "Hi ☔"
    assert good["usage"]["total_tokens"] == 3
    assert (bad["error"]["status"], bad["error"]["code"]) == (404, "not_found")
