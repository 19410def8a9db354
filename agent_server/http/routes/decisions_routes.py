"""OpenAI's `/v1/decisions`: a run of one token for each question, and more where a question has many options."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import openai_decisions
from adapters.answer import fold
from adapters.errors import RequestError
from adapters.openai_decisions import AskedQuestion
from agent_server.http.routes.answering import CLIENT_GONE, collect, failed, model_name, start_runs
from agent_server.http.routes.http import guarded, read_request
from agent_server.http.routes.tokenize_routes import loaded
from agent_server.ids import new_id
from events.vocabulary import TokenUsage

if TYPE_CHECKING:
    from agent_server.http.server import Server

AT_ONCE = 8
"""Questions of one request that are answered at the same time."""


def routes(server: Server) -> list[BaseRoute]:
    async def decisions(request: Request) -> Response:
        parse = partial(openai_decisions.parse, new_id=new_id, media=server.takes)
        wanted = await read_request(server, request, parse)
        prompts = await loaded(server, wanted.model)
        asked = wanted.with_prompts(partial(prompts.tokenize, add_special_tokens=False), new_id)
        usage: list[TokenUsage] = []
        places = asyncio.Semaphore(AT_ONCE)

        async def answer(question: AskedQuestion) -> dict[str, object] | None:
            """None where the client left."""
            known: dict[int, float] = {}
            async with places:
                while among := openai_decisions.still_unknown(known, len(question.labels)):
                    events = await collect(request, await start_runs(server, request, question.run(among, new_id)))
                    if events is None:
                        return None
                    told = fold(events[0])
                    usage.extend(told.usage)
                    if told.error is not None:
                        raise failed(told.error, "responses")
                    if told.finish == "content_filter":
                        return openai_decisions.answer_object(question.question, None)
                    found = openai_decisions.known_labels(told, question.labels)
                    if not found.keys() - known.keys():
                        raise RequestError("internal", "The engine reports no log probability of its answer.")
                    known |= found
            return openai_decisions.answer_object(question.question, known)

        first, *others = asked.questions  # the first one leaves the input in the prefix cache for the others
        answers = [await answer(first)]
        rest = [asyncio.create_task(answer(each)) for each in others]
        try:
            answers += await asyncio.gather(*rest)
        finally:
            for task in rest:
                task.cancel()
        told = [each for each in answers if each is not None]
        if len(told) < len(answers):
            return Response(status_code=CLIENT_GONE)
        name = model_name(server, asked.questions[0].options)
        return Response(openai_decisions.decisions_body(told, usage, name), media_type="application/json")

    return [Route("/v1/decisions", guarded(decisions), methods=["POST"])]
