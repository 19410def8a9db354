"""A hub on this machine: huggingface_hub's protocol, as far as models are found and fetched by it.

    python -m tests.model_files.hub OWNER/NAME=FOLDER ...

serves folders as models and prints the address.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 4096
"""Files from this size on are kept as the hub keeps large ones: by their SHA-256."""


class Hub:
    """models: folders by their names. cut_after: bytes of a file after which connections break, once. pause: seconds
    before each piece. spoiled: files whose last byte is another one. asked: the ranges of the files that were asked."""

    def __init__(self, models: dict[str, Path]) -> None:
        self.models = models
        self.cut_after: int | None = None
        self.pause = 0.0
        self.spoiled: set[str] = set()
        self.gated: set[str] = set()
        self.asked: list[tuple[str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            def do_HEAD(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if parts[:2] == ["api", "models"] and len(parts) == 2:
            words = parse_qs(url.query).get("search", [""])[0].lower()
            self._json(request, [self._card(name) for name in self.models if words in name.lower()])
        elif parts[:2] == ["api", "models"] and "/".join(parts[2:4]) in self.models:
            name = "/".join(parts[2:4])
            files = [self._sibling(path) for path in sorted(self.models[name].iterdir()) if path.is_file()]
            self._json(request, {**self._card(name), "sha": COMMIT, "siblings": files})
        elif len(parts) > 4 and parts[2] == "resolve" and "/".join(parts[:2]) in self.models:
            if "/".join(parts[:2]) in self.gated:
                self._json(request, {"error": "gated"}, 403, {"X-Error-Code": "GatedRepo"})
            else:
                self._file(request, self.models["/".join(parts[:2])] / parts[4])
        else:
            self._json(request, {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _card(self, name: str) -> dict[str, Any]:
        tags = ["license:apache-2.0", "text-generation"]
        return {"id": name, "modelId": name, "tags": tags, "downloads": 7, "gated": name in self.gated}

    def _sibling(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        found: dict[str, Any] = {"rfilename": path.name, "size": len(content), "blobId": blob(content)}
        if len(content) >= LARGE:
            sum = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"size": len(content), "sha256": sum, "pointerSize": 130}
        return found

    def _file(self, request: BaseHTTPRequestHandler, path: Path) -> None:
        content = path.read_bytes()
        asked = request.headers.get("range")
        self.asked.append((path.name, asked))
        begin = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if path.name in self.spoiled:
            content = content[:-1] + bytes([content[-1] ^ 1])
        request.send_response(206 if asked else 200)
        request.send_header("content-length", str(len(content) - begin))
        request.send_header("etag", f'"{blob(content)}"')
        request.send_header("x-repo-commit", COMMIT)
        request.end_headers()
        if request.command == "HEAD":
            return
        for place in range(begin, len(content), 65536):
            if self.cut_after is not None and place >= self.cut_after:
                self.cut_after = None
                request.connection.close()
                return
            time.sleep(self.pause)
            try:
                request.wfile.write(content[place : place + 65536])
            except OSError:  # the client broke off
                return

    def _json(
        self, request: BaseHTTPRequestHandler, value: object, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps(value).encode()
        request.send_response(status)
        for name, text in {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **(headers or {}),
        }.items():
            request.send_header(name, text)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def blob(content: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", help="OWNER/NAME=FOLDER")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each piece of a file")
    given = parser.parse_args()
    hub = Hub({name: Path(folder) for name, _, folder in (each.partition("=") for each in given.models)})
    hub.pause = given.pause
    print(hub.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
