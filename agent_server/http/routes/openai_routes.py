"""OpenAI's wires that answer with one message: Chat Completions, Completions, and the list of models."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import anthropic_messages, openai_chat, openai_completions
from adapters.body import Inbound
from adapters.model_list import ModelCard, model_list, one_model
from adapters.openai_chat import ChatIdentity, ChatStream, chat_body
from adapters.openai_completions import CompletionIdentity, CompletionStream, completion_body
from adapters.tokenize import input_tokens_body, render_body
from agent_server.http.middleware.context import speaks_anthropic
from agent_server.http.routes.answering import (
    agent_for,
    answer_json,
    context_length,
    model_for,
    model_name,
    prompt_of,
    servers_own,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_request
from agent_server.http.routes.tokenize_routes import loaded, prompt_tokens, rendered_chat
from agent_server.ids import new_id

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.models.pool import AnyModel


def routes(server: Server) -> list[BaseRoute]:
    born = int(time.time())

    async def chat(request: Request) -> Response:
        parse = partial(openai_chat.parse, new_id=new_id, media=server.takes)
        inbound = await read_request(server, request, parse)
        identity = chat_identity(server, inbound)
        runs = await start_runs(server, request, inbound)
        if inbound.stream:
            prompts = [prompt_of(run) for run in runs]
            encoder = ChatStream(identity, inbound.extra, n=len(runs), prompts=prompts)
            return await stream_answer(server, request, runs, encoder, wire="chat")
        return await answer_json(request, runs, lambda answers: chat_body(answers, identity, inbound.extra))

    async def render(request: Request) -> Response:
        """The prompt that a request comes to, without an answer."""
        prompt = await rendered_chat(server, request)
        return Response(render_body(prompt.text, prompt.token_ids), media_type="application/json")

    async def count(request: Request) -> Response:
        """llama.cpp's form of counting: the tokens of the prompt that a request comes to."""
        parse = partial(openai_chat.parse, new_id=new_id)
        inbound = await read_request(server, request, parse, starts_run=False)
        prompts = await loaded(server, inbound.options.model)
        tokens = await run_in_threadpool(prompt_tokens, prompts, inbound, "chat")
        return Response(input_tokens_body(tokens), media_type="application/json")

    async def completions(request: Request) -> Response:
        inbound = await read_request(server, request, partial(openai_completions.parse, new_id=new_id))
        identity = await completion_identity(server, inbound)
        runs = await start_runs(server, request, inbound, prompts=inbound.extra.prompts)
        if inbound.stream:
            encoder = CompletionStream(identity, inbound.extra, prompts=[prompt_of(run) for run in runs])
            return await stream_answer(server, request, runs, encoder, wire="completions")
        return await answer_json(request, runs, lambda answers: completion_body(answers, identity, inbound.extra))

    async def models(request: Request) -> Response:
        cards = model_cards(server, born)
        body = anthropic_messages.model_page(cards) if speaks_anthropic(request.scope) else model_list(cards)
        return Response(body, media_type="application/json")

    async def model(request: Request) -> Response:
        find = anthropic_messages.one_model_info if speaks_anthropic(request.scope) else one_model
        cards, name = model_cards(server, born), request.path_params["name"].rstrip("/")
        if not name:  # `/v1/models/`, as some clients write it
            return await models(request)
        body = find(cards, name if any(card.id == name for card in cards) else served_under(server, name))
        return Response(body, media_type="application/json")

    return [
        Route("/v1/chat/completions", guarded(chat), methods=["POST"]),
        Route("/v1/chat/completions/render", guarded(render), methods=["POST"]),
        Route("/v1/chat/completions/input_tokens", guarded(count), methods=["POST"]),
        Route("/v1/completions", guarded(completions), methods=["POST"]),
        Route("/v1/models", guarded(models)),
        Route("/v1/models/{name:path}", guarded(model)),
    ]


def chat_identity(server: Server, inbound: Inbound) -> ChatIdentity:
    return ChatIdentity(
        id=f"chatcmpl-{inbound.input.run_id.removeprefix('run_')}",
        model=model_name(server, inbound.options),
        created=int(time.time()),
        reasoning_content=server.settings.http.reasoning_content,
        hidden_tools=servers_own(server, inbound),
    )


async def completion_identity(server: Server, inbound: Inbound) -> CompletionIdentity:
    prompts: tuple[str | tuple[int, ...], ...] = inbound.extra.prompts if inbound.extra.echo else ()
    tokenizer = await model_for(server, inbound.options.model).tokenizing()
    return CompletionIdentity(
        id=f"cmpl-{inbound.input.run_id.removeprefix('run_')}",
        model=model_name(server, inbound.options),
        created=int(time.time()),
        prompt_texts=tuple(prompt if isinstance(prompt, str) else tokenizer.detokenize(prompt) for prompt in prompts),
    )


def served_under(server: Server, name: str) -> str:
    """The listed name of what requests may name otherwise, such as "default". Raises RequestError("not_found")."""
    agent = agent_for(server, name)
    return server.model.name if agent == "default" else agent


def model_cards(server: Server, created: int) -> list[ModelCard]:
    """The served model, or each of several, and each agent under its own name."""
    names = [server.model.name, *(name for name in server.agents if name not in ("default", server.model.name))]
    cards = [_card(server, name, server.model_of(name), created) for name in names]
    if (vectors := server.embeddings) is not None:
        cards.append(ModelCard(id=vectors.name, created=created, capabilities={"embeddings": True}))
    if (speech := server.transcriber) is not None:
        card = ModelCard(id=speech.name, created=created, capabilities={"transcription": True}, modalities=("audio",))
        cards.append(card)
    return cards


def _card(server: Server, name: str, model: AnyModel, created: int) -> ModelCard:
    agent = server.agents.get(name)
    root = model.root.name
    description = agent.description or None if agent is not None else None
    if server.several and not model.ready:  # the others are listed all the same
        return ModelCard(id=name, created=created, root=root, description=description, status=model.status.state)
    info = model.engine.info
    return ModelCard(
        id=name,
        created=created,
        context_length=context_length(model),
        vocabulary=info.vocab_size or None,
        capabilities={
            **template_capabilities(model),
            "structured_outputs": info.supports_constraints,
            "logprobs": "logprobs" in info.sampling,
            "pause": info.supports_pause,
        },
        modalities=("text", *sorted({"file", *info.placeholders})),
        root=root,
        description=description,
        status=model.status.state,
    )


def template_capabilities(model: AnyModel) -> dict[str, bool]:
    """What the chat template can say; nothing while the model loads or where it has none."""
    analysis = model.prompts.analysis(tools=True) if model.ready else None
    if analysis is None:
        return {}
    return {
        "tools": analysis.output_format.tools is not None,
        "reasoning": analysis.output_format.reasoning is not None,
    }
