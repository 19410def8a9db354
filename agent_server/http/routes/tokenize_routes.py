"""`/tokenize`, `/detokenize` and Anthropic's count_tokens: the tokens of a prompt, without generating."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import anthropic_messages, openai_chat
from adapters.answer import field_on
from adapters.body import Inbound, check_parts
from adapters.errors import RequestError
from adapters.tokenize import (
    detokenize_body,
    native_tokens_body,
    parse_detokenize,
    parse_tokenize,
    tokenize_body,
    tokenizer_info_body,
)
from agent_server.engine_protocol.protocol import EngineError
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.http.routes.answering import agent_for, expected_context, model_for
from agent_server.http.routes.http import guarded, read_body, read_request
from agent_server.ids import new_id
from agent_server.pacing import collect_yielding
from events.sampling import Wire

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.models.prompting.built_prompt import Prompt
    from agent_server.models.prompting.prompt import PromptBuilder


async def loaded_prompts(server: Server, model: str | None) -> PromptBuilder:
    """A model's prompt builder. In a pool it is available even if the model is not loaded.

    Raises RequestError("unavailable") while the model is loading.
    """
    try:
        return await model_for(server, model).tokenizing()
    except EngineError as error:
        raise RequestError(error.kind, error.message) from None


def token_ids(prompts: PromptBuilder, inbound: Inbound) -> list[int]:
    flags = inbound.extra
    try:
        if flags.prompt is not None:
            special, control = flags.add_special_tokens, flags.control
            return prompts.tokenize(flags.prompt, add_special_tokens=special, parse_control_tokens=control)
        return list(prompts.build(inbound.input, inbound.options).token_ids)
    except EngineError as error:
        raise RequestError(error.kind, error.message, error.param) from None


def token_texts(prompts: PromptBuilder, tokens: Sequence[int]) -> Iterator[str]:
    """The text of each token. Each distinct id is decoded once."""
    texts: dict[int, str] = {}
    for token in tokens:
        if token not in texts:
            texts[token] = prompts.detokenize([token])
        yield texts[token]


def render_prompt(prompts: PromptBuilder, inbound: Inbound, wire: Wire) -> Prompt:
    """Render the prompt of a request. Raises RequestError."""
    check_parts(inbound.input.messages, ())
    try:
        return prompts.build(inbound.input, inbound.options)
    except EngineError as error:
        raise RequestError(error.kind, error.message, field_on(wire, error.param)) from None


async def render_chat(server: Server, request: Request) -> Prompt:
    """Render the prompt of a chat request, without an answer. Raises RequestError."""
    inbound = await read_request(server, request, partial(openai_chat.parse, new_id=new_id), starts_run=False)
    agent_for(server, inbound.options.model)
    prompts = await loaded_prompts(server, inbound.options.model)
    return await prompts.run(partial(render_prompt, prompts, inbound, "chat"))


def prompt_tokens(prompts: PromptBuilder, inbound: Inbound, wire: Wire) -> int:
    """Count the tokens of a request's prompt.

    Raises RequestError, also for images: only the engine knows how many tokens they take.
    """
    check_parts(inbound.input.messages, ())
    try:
        return prompts.count_tokens(inbound.input, inbound.options)
    except EngineError as error:
        raise RequestError(error.kind, error.message, field_on(wire, error.param)) from None


def routes(server: Server) -> list[BaseRoute]:
    limit = server.settings.http.max_body

    async def tokenize(request: Request) -> Response:
        inbound = await read_request(server, request, partial(parse_tokenize, new_id=new_id), starts_run=False)
        prompts = await loaded_prompts(server, inbound.options.model)
        run = prompts.run if inbound.extra.prompt is None else REQUEST_THREADS.run  # a text is not rendered
        tokens = await run(partial(token_ids, prompts, inbound))
        strings = await collect_yielding(token_texts(prompts, tokens)) if inbound.extra.strings else None
        if inbound.extra.native:
            return Response(native_tokens_body(tokens, strings), media_type="application/json")
        length = await expected_context(model_for(server, inbound.options.model))
        return Response(tokenize_body(tokens, length, strings), media_type="application/json")

    async def detokenize(request: Request) -> Response:
        tokens, model = parse_detokenize(await read_body(request, limit))
        prompts = await loaded_prompts(server, model)
        size = prompts.tokenizer.get_vocab_size(with_added_tokens=True)
        if any(token >= size for token in tokens):
            raise RequestError("invalid_request", f"tokens must be below {size}.", param="tokens")
        text = await REQUEST_THREADS.run(prompts.detokenize, tokens)
        return Response(detokenize_body(text), media_type="application/json")

    async def info(request: Request) -> Response:
        prompts = await loaded_prompts(server, request.query_params.get("model"))
        length = await expected_context(model_for(server, request.query_params.get("model")))
        template = prompts.settings.chat_template or prompts.files.templates.get("default")
        body = tokenizer_info_body(prompts.files.special_tokens, template, length)
        return Response(body, media_type="application/json")

    async def count(request: Request) -> Response:
        parse = partial(anthropic_messages.parse_count, new_id=new_id)
        inbound = await read_request(server, request, parse, starts_run=False)
        prompts = await loaded_prompts(server, inbound.options.model)
        tokens = await prompts.run(partial(prompt_tokens, prompts, inbound, "messages"))
        return Response(anthropic_messages.count_body(tokens), media_type="application/json")

    return [
        Route("/tokenize", guarded(tokenize), methods=["POST"]),
        Route("/detokenize", guarded(detokenize), methods=["POST"]),
        Route("/tokenizer_info", guarded(info), methods=["GET"]),
        Route("/v1/messages/count_tokens", guarded(count), methods=["POST"]),
    ]
