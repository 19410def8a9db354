"""`transformers serve` without its model: `python _transformers_wire.py MODEL PORT DELAY`, where it is installed.

Everything of its server runs as it is: FastAPI, the middleware, the chat handler, the chat template, the streamer with
its detokeniser and parser, the chunks and their frames. Only the continuous-batching loop behind it is replaced, by
one that gives every running request its next token every DELAY seconds, whether or not the server keeps up. It calls
the handlers on the event loop, once for every token as the real one does, and spares it the background thread, the
tensors and the copies of what was generated.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from transformers.cli.serve import Serve
from transformers.cli.serving import utils
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus


class Steps:
    """Has the face of the continuous-batching manager, as far as the server sees it."""

    def __init__(self, word: int, delay: float) -> None:
        self.background_thread_status = SimpleNamespace(fatal_error=None)
        self._word = word
        self._delay = delay
        self._numbers = itertools.count()
        self._limits: dict[str, int] = {}
        self._running: dict[str, tuple[GenerationOutput, Callable[[Any], None]]] = {}
        self._ticking = False
        self._due = 0.0

    def add_request(self, input_ids: Any, request_id: str, max_new_tokens: int, **_: Any) -> str:
        name = f"{request_id}-{next(self._numbers)}"
        self._limits[name] = max_new_tokens
        return name

    def register_result_handler(self, request_id: str, callback: Callable[[Any], None]) -> None:
        output = GenerationOutput(request_id=request_id, status=RequestStatus.DECODING)
        self._running[request_id] = (output, callback)
        if not self._ticking:
            self._ticking = True
            loop = asyncio.get_running_loop()
            self._due = loop.time() + self._delay
            loop.call_at(self._due, self._tick)

    def cancel_request(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def stop(self, **_: Any) -> None:
        self._running.clear()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        steps = 1 + int((loop.time() - self._due) / self._delay)
        self._due += steps * self._delay
        self._ticking = bool(self._running)
        if self._running:
            loop.call_at(self._due, self._tick)
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        for name, (output, handler) in list(self._running.items()):
            output.generated_tokens.append(self._word)
            if len(output.generated_tokens) >= self._limits[name]:
                output.status = RequestStatus.FINISHED
                del self._running[name]
            handler(output)


def main(model: str, port: int, delay: float) -> None:
    from transformers import AutoTokenizer

    word = AutoTokenizer.from_pretrained(model).encode("the ", add_special_tokens=False)[0]

    def init_cb(self: Any, model: Any, gen_config: Any) -> None:
        self._cb = self._cb or Steps(word, delay)

    utils.CBGenerateManager.init_cb = init_cb
    Serve(model, continuous_batching=True, device="cpu", host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
