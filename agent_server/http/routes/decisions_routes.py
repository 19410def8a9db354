"""OpenAI's `/v1/decisions`: a run of one token for each question, and further runs for questions with many options."""

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
from agent_server.http.routes.answering import CLIENT_GONE, collect, model_name, request_error, start_runs
from agent_server.http.routes.http import guarded, read_request
from agent_server.http.routes.tokenize_routes import loaded_prompts
from agent_server.ids import new_id
from events.vocabulary import TokenUsage

if TYPE_CHECKING:
    from agent_server.http.server import Server

AT_ONCE = 8
"""Concurrent questions of one request."""


def routes(server: Server) -> list[BaseRoute]:
    async def decisions(request: Request) -> Response:
        parse = partial(openai_decisions.parse, new_id=new_id, media=server.takes)
        decision_request = await read_request(server, request, parse)
        prompts = await loaded_prompts(server, decision_request.model)
        prepared = decision_request.with_prompts(partial(prompts.tokenize, add_special_tokens=False), new_id)
        usage: list[TokenUsage] = []
        slots = asyncio.Semaphore(AT_ONCE)

        async def answer(question: AskedQuestion) -> dict[str, object] | None:
            """The answer to a question; None if the client disconnected."""
            logprobs: dict[int, float] = {}
            async with slots:
                while among := openai_decisions.still_unknown(logprobs, len(question.labels)):
                    events = await collect(request, await start_runs(server, request, question.run(among, new_id)))
                    if events is None:
                        return None
                    result = fold(events[0])
                    usage.extend(result.usage)
                    if result.error is not None:
                        raise request_error(result.error, "responses")
                    if result.finish == "content_filter":
                        return openai_decisions.answer_object(question.question, None)
                    new_logprobs = openai_decisions.known_labels(result, question.labels)
                    if not new_logprobs.keys() - logprobs.keys():
                        raise RequestError(
                            "invalid_request",
                            "This model's engine reports no log probabilities, which decisions need.",
                            "model",
                        )
                    logprobs |= new_logprobs
            return openai_decisions.answer_object(question.question, logprobs)

        first, *others = prepared.questions  # the first puts the input into the prefix cache for the others
        answers = [await answer(first)]
        tasks = [asyncio.create_task(answer(each)) for each in others]
        try:
            answers += await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        complete = [each for each in answers if each is not None]
        if len(complete) < len(answers):
            return Response(status_code=CLIENT_GONE)
        name = model_name(server, prepared.questions[0].options)
        return Response(openai_decisions.decisions_body(complete, usage, name), media_type="application/json")

    return [Route("/v1/decisions", guarded(decisions), methods=["POST"])]
