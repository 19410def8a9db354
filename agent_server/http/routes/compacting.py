"""A conversation made short for `/v1/responses/compact`: a model summarises it in runs of its own, of which nothing is
kept, and the summary is sealed for the client who brings it back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from ag_ui.core import Message
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from adapters.answer import fold
from adapters.body import Inbound
from adapters.errors import RequestError
from adapters.openai_responses import compacted_body, summary_run
from agent_server.agents.compaction import INSTRUCTIONS, PIECE, SUMMARY, Told, pieces, written
from agent_server.agents.sealing import COMPACTION_PLACE
from agent_server.http.routes.answering import CLIENT_GONE, collect, expected_context, failed, model_for, start_runs
from agent_server.http.routes.tokenize_routes import loaded
from agent_server.ids import new_id
from events.message import to_models
from events.vocabulary import COMPACTED_ACTIVITY, TokenUsage

if TYPE_CHECKING:
    from agent_server.http.server import Server

SUMMARY_TOKENS = 2048
"""The longest summary, where the model's context has room for it."""
PLACE = COMPACTION_PLACE
"""What such a summary is sealed for, in the place of a thread and of a message."""


def opened(server: Server, tenant: str, sealed: str) -> str | list[Message] | None:
    """What a compaction item holds: the summary of one that was asked for beside the conversation, or all that a model
    is told from there on; None for one that was not sealed here for this tenant."""
    if (told := told_from(server, tenant, sealed)) is not None:
        return to_models(told)
    return server.sealer.open(sealed, tenant=tenant, thread_id=PLACE, message_id=PLACE)


def told_from(server: Server, tenant: str, sealed: str) -> list[dict[str, Any]] | None:
    """The messages, in wire form, that stand for a conversation that was made short in a run."""
    text = server.sealer.open_told(sealed, tenant=tenant)
    return None if text is None else msgspec.json.decode(text, type=Told).messages


def shortened(server: Server, tenant: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation after a run in wire form, without what the run's last compaction stands for."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.get("activityType") == COMPACTED_ACTIVITY and (sealed := message["content"].get("sealed")):
            return [*(told_from(server, tenant, sealed) or messages[:index]), *messages[index + 1 :]]
    return messages


async def compact(server: Server, request: Request, inbound: Inbound) -> Response:
    """inbound: the whole conversation. Raises RequestError."""
    conversation = inbound.input.messages
    instructions = conversation[0].content if inbound.extra.instructions else None
    messages = conversation[1:] if inbound.extra.instructions else conversation
    summary = _Summary(server, request, inbound.options.model, str(instructions or ""))
    try:
        text = await summary.of(messages)
    except _ClientGone:
        return Response(status_code=CLIENT_GONE)
    sealed = server.sealer.seal(text, tenant=request.state.tenant, thread_id=PLACE, message_id=PLACE)
    body = compacted_body(new_id("resp"), int(time.time()), messages, sealed, summary.usage)
    return Response(body, media_type="application/json")


class _ClientGone(Exception):
    pass


class _Summary:
    """`usage` is of all runs that the summary took."""

    def __init__(self, server: Server, request: Request, model: str | None, instructions: str) -> None:
        self._server = server
        self._request = request
        self._model = model
        self._instructions = f"{instructions}\n\n{INSTRUCTIONS}" if instructions else INSTRUCTIONS
        self.usage: list[TokenUsage] = []

    async def of(self, messages: Sequence[Message]) -> str:
        """Piece by piece where one prompt does not hold the conversation, each with the summary of those before."""
        context = await self._context()
        texts = await asyncio.to_thread(pieces, messages, await self._piece(messages, context))
        summary = ""
        for text in texts:
            told = f"Summary of what was before:\n{summary}\n\n{text}" if summary else text
            summary = await self._run(told, max(1, min(SUMMARY_TOKENS, int(SUMMARY * context))))
        return summary

    async def _context(self) -> int:
        await loaded(self._server, self._model)
        length = await expected_context(model_for(self._server, self._model))
        return length or SUMMARY_TOKENS * 10

    async def _piece(self, messages: Sequence[Message], context: int) -> int:
        """Bytes that one run is given."""
        prompts = await loaded(self._server, self._model)
        text = "\n".join(map(written, messages))
        tokens = await run_in_threadpool(lambda: len(prompts.tokenize(text, parse_control_tokens=False)))
        return int(PIECE * context * len(text.encode()) / max(1, tokens))

    async def _run(self, text: str, tokens: int) -> str:
        asked = summary_run(self._model, self._instructions, text, tokens, new_id)
        answers = await collect(self._request, await start_runs(self._server, self._request, asked))
        if answers is None:
            raise _ClientGone
        answer = fold(answers[0])
        self.usage.extend(answer.usage)
        if answer.error is not None:
            raise failed(answer.error, "responses")
        if not answer.text.strip() or answer.finish not in ("stop", "length"):
            reason = f"it ended with {answer.finish}" if answer.text.strip() else "its answer was empty"
            raise RequestError("internal", f"The model made no summary of the conversation: {reason}.")
        return answer.text.strip()
