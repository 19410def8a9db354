"""What the fake servers share: an engine behind HTTP, told to stop when its reader is gone."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.responses import JSONResponse, StreamingResponse

from agent_server.engine_protocol.protocol import Constraint, Delta, Engine, Finished, GenerationRequest, Picture, Token
from events.options import SamplingParams

_numbers = itertools.count()


class Backend:
    """running: how many generations have not ended."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.running = 0
        self.bodies: list[dict[str, Any]] = []

    async def items(
        self,
        ids: list[int],
        sampling: SamplingParams,
        constraint: Constraint | None,
        pictures: Sequence[Picture] = (),
    ) -> AsyncIterator[tuple[list[Token], Finished | None]]:
        """Tokens as they come; what came together with the end is in its pair. Real servers send the last tokens and
        the reason in one frame, so one delta is held back."""
        request = GenerationRequest(
            request_id=f"fake-{next(_numbers)}",
            prompt_token_ids=tuple(ids),
            sampling=sampling,
            constraint=constraint,
            pictures=tuple(pictures),
        )
        held: list[Token] = []
        self.running += 1
        try:
            async with contextlib.aclosing(self.engine.generate(request)) as stream:
                async for item in stream:
                    if isinstance(item, Delta):
                        if held:
                            yield held, None
                        held = list(item.tokens)
                    elif isinstance(item, Finished):
                        yield held, item
        finally:
            self.running -= 1


def frame(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def streaming(frames: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(frames, media_type="text/event-stream")


def problem(status: int, message: str, param: str | None = None) -> JSONResponse:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)
