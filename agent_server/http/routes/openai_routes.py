"""OpenAI's wires without stored state: Chat Completions, Completions, models, embeddings and transcriptions."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from adapters import (
    copilotkit,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_transcriptions,
    rerank,
)
from adapters.body import Inbound
from adapters.errors import RequestError
from adapters.model_list import ModelCard, model_list, model_page, one_model, one_model_info
from adapters.openai_chat import ChatIdentity, ChatStream, chat_body
from adapters.openai_completions import CompletionIdentity, CompletionStream, completion_body
from adapters.tokenize import input_tokens_body, render_body
from agent_server.engine_protocol.protocol import EngineError, SpeechOptions
from agent_server.http.middleware.context import speaks_anthropic
from agent_server.http.routes.answering import (
    agent_for,
    answer_json,
    context_length,
    model_for,
    model_name,
    prompt_of,
    select_auxiliary,
    server_tool_names,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded, read_body, read_request
from agent_server.http.routes.tokenize_routes import loaded_prompts, prompt_tokens, render_chat
from agent_server.ids import new_id
from agent_server.media.fetching import from_base64

if TYPE_CHECKING:
    from agent_server.engines.reranking import RerankResult
    from agent_server.engines.transcription import Transcriber
    from agent_server.http.server import Server
    from agent_server.models.pool import AnyModel


def routes(server: Server) -> list[BaseRoute]:
    started_at = int(time.time())

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
        """The rendered prompt of a request, without an answer."""
        prompt = await render_chat(server, request)
        return Response(render_body(prompt.text, prompt.token_ids), media_type="application/json")

    async def count(request: Request) -> Response:
        """The number of a rendered prompt's tokens, in llama.cpp's form."""
        parse = partial(openai_chat.parse, new_id=new_id)
        inbound = await read_request(server, request, parse, starts_run=False)
        prompts = await loaded_prompts(server, inbound.options.model)
        tokens = await prompts.run(partial(prompt_tokens, prompts, inbound, "chat"))
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
        cards = model_cards(server, started_at)
        body = model_page(cards) if speaks_anthropic(request.scope) else model_list(cards)
        return Response(body, media_type="application/json")

    async def model(request: Request) -> Response:
        find = one_model_info if speaks_anthropic(request.scope) else one_model
        cards, name = model_cards(server, started_at), request.path_params["name"].rstrip("/")
        if not name:  # `/v1/models/`, which some clients request
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
        *embeddings_routes(server),
        *rerank_routes(server),
        *transcription_routes(server),
    ]


def chat_identity(server: Server, inbound: Inbound) -> ChatIdentity:
    return ChatIdentity(
        id=f"chatcmpl-{inbound.input.run_id.removeprefix('run_')}",
        model=model_name(server, inbound.options),
        created=int(time.time()),
        reasoning_content=server.settings.http.reasoning_content,
        hidden_tools=server_tool_names(server, inbound),
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
    """The listed name for an alias, such as "default". Raises RequestError("not_found") for an unknown name."""
    agent = agent_for(server, name)
    return server.model.name if agent == "default" else agent


def model_cards(server: Server, created: int) -> list[ModelCard]:
    """The served model, or each of several, and each agent by its own name."""
    names = [server.model.name, *(name for name in server.agents if name not in ("default", server.model.name))]
    cards: list[ModelCard] = []
    for name in names:
        model, agent = server.model_of(name), server.agents.get(name)
        root = model.root.name
        description = agent.description or None if agent is not None else None
        status = model.status.state
        if server.several and not model.ready:  # listed without details until it is loaded
            cards.append(ModelCard(id=name, created=created, root=root, description=description, status=status))
            continue
        info = model.engine.info
        card = ModelCard(
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
            status=status,
        )
        cards.append(card)
    if (vectors := server.embeddings) is not None:
        cards.append(ModelCard(id=vectors.name, created=created, capabilities={"embeddings": True}))
    if (reranker := server.reranker) is not None:
        cards.append(ModelCard(id=reranker.name, created=created, capabilities={"rerank": True}))
    if (speech := server.transcriber) is not None:
        card = ModelCard(id=speech.name, created=created, capabilities={"transcription": True}, modalities=("audio",))
        cards.append(card)
    return cards


def template_capabilities(model: AnyModel) -> dict[str, bool]:
    """The capabilities of the chat template; empty while the model loads or without a template."""
    analysis = model.prompts.analysis(tools=True) if model.ready else None
    if analysis is None:
        return {}
    return {
        "tools": analysis.output_format.tools is not None,
        "reasoning": analysis.output_format.reasoning is not None,
    }


NO_EMBEDDINGS = (
    "This server has no embedding model, and a chat model makes no embeddings. "
    "Start the server with --embedding-model FOLDER."
)


def embeddings_routes(server: Server) -> list[BaseRoute]:
    async def embeddings(request: Request) -> Response:
        query = await read_request(server, request, openai_embeddings.parse, starts_run=False)
        embedding_model = select_auxiliary(server, server.embeddings, query.model, NO_EMBEDDINGS, "makes no embeddings")
        result = await embedding_model.embed(
            query.inputs, dimensions=query.dimensions, truncate=query.truncate, prompt=query.prompt
        )
        body = openai_embeddings.embedding_body(
            result.vectors, result.tokens, query.model or embedding_model.name, query, result.warnings
        )
        return Response(body, media_type="application/json")

    return [Route("/v1/embeddings", guarded(embeddings), methods=["POST"])]


NO_RERANKER = "This server has no reranker. Start the server with --reranker FOLDER."


def rerank_routes(server: Server) -> list[BaseRoute]:
    async def scored(query: rerank.RerankQuery) -> tuple[str, RerankResult]:
        """The requested model name and the scores."""
        reranker = select_auxiliary(server, server.reranker, query.model, NO_RERANKER, "does not rerank")
        scores = await reranker.score(query.pairs, truncate=query.truncate, activated=query.activated)
        return query.model or reranker.name, scores

    async def ranked(request: Request) -> Response:
        query = await read_request(server, request, rerank.parse_rerank, starts_run=False)
        model, result = await scored(query)
        body = rerank.rerank_body(
            result.scores, result.tokens, model, query, id=new_id("rerank"), warnings=result.warnings
        )
        return Response(body, media_type="application/json")

    async def score(request: Request) -> Response:
        query = await read_request(server, request, rerank.parse_score, starts_run=False)
        model, result = await scored(query)
        body = rerank.score_body(
            result.scores, result.tokens, model, id=new_id("score"), created=int(time.time()), warnings=result.warnings
        )
        return Response(body, media_type="application/json")

    return [
        Route("/v1/rerank", guarded(ranked), methods=["POST"]),
        Route("/v2/rerank", guarded(ranked), methods=["POST"]),
        Route("/v1/score", guarded(score), methods=["POST"]),
    ]


NO_TRANSCRIBER = "This server has no transcription model. Start the server with --transcriber FOLDER."
MAX_FIELDS = 32
FIELD_BYTES = 64 * 1024
"""Limit on a field that is not a file, and on everything in the form besides the file."""


def transcription_routes(server: Server) -> list[BaseRoute]:
    limit = server.settings.media.bytes + FIELD_BYTES

    async def transcribe(request: Request) -> Response:
        async with read_form(request, limit) as form:
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            query = openai_transcriptions.read_form(fields)
            transcriber = _transcriber(server, query.model)
            data = await _file(form, "file")
        options = SpeechOptions(language=query.language, prompt=query.prompt, temperature=query.temperature)
        transcript = await transcriber.transcribe(data, options)
        kind = "text/plain" if query.response_format == "text" else "application/json"
        body = openai_transcriptions.transcript_body(transcript.text, transcript.seconds, query)
        return Response(body, media_type=kind)

    async def speak(request: Request) -> Response:
        async def recording() -> bytes:
            async with read_form(request, limit) as form:
                return await _file(form, "audio")

        return await _copilotkit_transcription(server, recording)

    return [
        Route("/v1/audio/transcriptions", guarded(transcribe), methods=["POST"]),
        Route("/copilotkit/transcribe", guarded(speak), methods=["POST"]),
    ]


async def transcribe_base64(server: Server, wire: object) -> Response:
    """Transcribe a recording for CopilotKit's single endpoint, whose body has it in base64."""

    async def recording() -> bytes:
        return from_base64(copilotkit.recording_of(wire), server.settings.media)

    return await _copilotkit_transcription(server, recording)


async def _copilotkit_transcription(server: Server, recording: Callable[[], Awaitable[bytes]]) -> Response:
    """Transcribe a recording. Errors have CopilotKit's own format, which its page displays."""
    try:
        transcriber = _transcriber(server, None)
        transcript = await transcriber.transcribe(await recording(), SpeechOptions())
    except (RequestError, EngineError) as error:
        configured = server.transcriber is not None
        status, body = copilotkit.transcription_refused(error.kind, error.message, configured=configured)
        return json_response(body, status)
    return json_response({"text": transcript.text})


@contextlib.asynccontextmanager
async def read_form(request: Request, limit: int) -> AsyncIterator[FormData]:
    """Read a form with one file, of at most `limit` bytes. Raises RequestError."""
    body = await read_body(request, limit)

    async def stream() -> AsyncIterator[bytes]:
        yield body

    kind, parameters = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        raise RequestError("unsupported_media_type", "Send the recording as multipart/form-data.")
    # Some of Python's codecs take the square of a text's length, and the names of unknown ones are kept for ever.
    if parameters.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise RequestError("unsupported_media_type", "The form's texts must be in UTF-8.")
    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=MAX_FIELDS, max_part_size=FIELD_BYTES)  # type: ignore[arg-type, unused-ignore]
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestError("invalid_request", f"The form cannot be read: {error.message}") from None
    except (KeyError, UnicodeDecodeError, ValueError):  # malformed part headers or boundary
        raise RequestError("invalid_request", "The form cannot be read.") from None
    try:
        yield form
    finally:
        await form.close()


async def _file(form: FormData, name: str) -> bytes:
    """Read a form's file. Raises RequestError if it is missing or empty."""
    upload = form.get(name)
    data = await upload.read() if isinstance(upload, UploadFile) else b""
    if not data:
        raise RequestError("invalid_request", f"{name} is required and must be a file that is not empty.", param=name)
    return data


def _transcriber(server: Server, model: str | None) -> Transcriber:
    return select_auxiliary(server, server.transcriber, model, NO_TRANSCRIBER, "does not transcribe")


_SLASH = re.compile("%2f", re.IGNORECASE)
SLASH_PLACEHOLDER = "\udc2f"
"""Replaces an encoded slash while the path is matched: no decoded path contains a lone surrogate."""


class IdRoute(Route):
    """A route whose parameters may contain encoded slashes.

    ASGI servers decode them in `path`, so the path is decoded here from `raw_path`.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = (scope.get("raw_path") or b"").decode("latin-1")
        if _SLASH.search(sent) is None:
            return super().matches(scope)
        match, child = super().matches({**scope, "path": unquote(_SLASH.sub(SLASH_PLACEHOLDER, sent))})
        if match is not Match.NONE:
            params = child["path_params"].items()
            child["path_params"] = {name: value.replace(SLASH_PLACEHOLDER, "/") for name, value in params}
        return match, child
