"""Connecting to an upstream: finding its dialect, checking that it serves our model, and asking what it can do."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import msgspec

from agent_server.engine_protocol.protocol import EngineError, EngineInfo, GenerationRequest
from agent_server.engines.upstream.connection import Upstream
from agent_server.engines.upstream.dialects import DIALECTS, Dialect, UpstreamInfo
from agent_server.engines.upstream.dialects.dialect import field_of
from agent_server.engines.upstream.errors import error_of
from agent_server.engines.upstream.model import UpstreamModel
from agent_server.engines.upstream.output import Output
from agent_server.engines.upstream.transport import Transport
from agent_server.settings import UpstreamSettings
from events.options import SamplingParams

POLL_SECONDS = 0.5
SAMPLE = "The quick brown fox: naïve 12345 + 你好, 🦉!\n\tif x <= 3:\n        return {'a': [1, 2]}"
"""Text that the tokenizers of different models split differently."""
MARKS = 8
"""How many special tokens are appended to the sample."""
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
"""`owned_by` of /v1/models → dialect."""
PATHS = (("/get_model_info", "sglang"), ("/props", "llamacpp"))
"""Paths that only one kind of server has."""


async def connect(
    transport: Transport, model: UpstreamModel, settings: UpstreamSettings, report: Callable[[str], None]
) -> Upstream:
    """Wait until the server has loaded its model, then check that it is the same as ours. report: called with the
    reason for each further wait.

    Raises EngineError with one sentence, at once if waiting does not help.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + settings.start
    while True:
        try:
            name = transport.address.dialect or await find(transport)
            dialect = DIALECTS[name]()
            url = transport.address.url
            # From cheap to expensive; each check names a mismatch more precisely than the generated token would.
            health = await transport.ask(dialect.health)
            if health.status == 503:
                raise EngineError("unavailable", f"The upstream {url} is still loading its model.", retryable=True)
            if health.status != 200:
                raise error_of(health.status, health.body)
            served = await dialect.describe(transport, model.name)
            if served.vocab_size is not None and served.vocab_size < model.vocabulary.size:
                raise _mismatch(url, served, model, f"vocabulary of {served.vocab_size}")
            if settings.check_tokenizer:
                text = SAMPLE + "".join(list(model.controls.values())[:MARKS])
                token_ids = await dialect.tokenize(transport, served, text)
                if token_ids is not None and token_ids != model.vocabulary.encode(text):
                    raise _mismatch(url, served, model, "tokenizer")
            info = _info(url, dialect, served, model)
            upstream = Upstream(dialect=dialect, served=served, model=model, info=info)
            await _warm_up(transport, upstream)
            return upstream
        except EngineError as error:
            if not error.retryable:
                raise
            if loop.time() >= end:
                message = (
                    f"{error.message} Gave up after {settings.start:g} s; set AGENT_SERVER_ENGINE_START to wait longer."
                )
                raise EngineError("unavailable", message) from error
            report(error.message)
        await asyncio.sleep(POLL_SECONDS)


async def find(transport: Transport) -> str:
    """Detect the dialect from the server's answers. Raises EngineError for an unknown server."""
    models = await transport.ask("/v1/models")
    if models.status == 503:
        raise EngineError("unavailable", f"The upstream {transport.address.url} is still loading.", retryable=True)
    if models.status in (401, 403):
        raise error_of(models.status, models.body)
    entries = field_of(models.json(), "data", list) or []
    owners = {field_of(entry, "owned_by", str) for entry in entries}
    for owner, dialect in OWNERS.items():
        if owner in owners:
            return dialect
    # Without a known owner, try paths that only one kind of server has.
    for path, dialect in PATHS:
        if (await transport.ask(path)).status == 200:
            return dialect
    if entries:
        return "openai"
    message = (
        f"{transport.address.url} is not an inference server that is known here: "
        f"it answered GET /v1/models with status {models.status}."
    )
    raise EngineError("unavailable", message)


def _mismatch(url: str, served: UpstreamInfo, model: UpstreamModel, what: str) -> EngineError:
    hint = f"Start this server with that model's folder or name instead of {model.source}."
    return EngineError(
        "unavailable", f"The upstream {url} serves {served.model}, whose {what} is not that of {model.source}. {hint}"
    )


def _info(url: str, dialect: Dialect, served: UpstreamInfo, model: UpstreamModel) -> EngineInfo:
    lengths = [length for length in (served.context_length, model.context_length) if length]
    if not lengths:
        message = f"Neither {url} nor {model.source} says how long the context is; set AGENT_SERVER_MAX_CONTEXT."
        raise EngineError("unavailable", message)
    details = {"upstream": url, "dialect": dialect.name, "served_model": served.model, "version": served.version}
    return EngineInfo(
        model=model.name,
        context_length=min(lengths),
        vocab_size=max(served.vocab_size or 0, model.vocabulary.size),
        sampling=frozenset(dialect.words) - frozenset(served.lacks),
        supports_constraints=served.grammar is not None,
        supports_pause=False,
        supports_modify=False,
        continues="plain" if dialect.tokens else "no",
        placeholders={"image": model.image_token} if served.pictures and model.image_token is not None else {},
        details={**details, "grammars": served.grammar, "ids": dialect.tokens},
    )


async def _warm_up(transport: Transport, upstream: Upstream) -> None:
    """Generate one token after a prompt of the vocabulary's last id.

    A server with a smaller vocabulary refuses it. Servers also do some work only with their first request, such as
    compiling, which this one takes over from the first client's."""
    request = GenerationRequest(
        request_id="warm-up",
        prompt_token_ids=(upstream.model.vocabulary.size - 1,),
        sampling=SamplingParams(max_tokens=1),
    )
    outgoing = upstream.outgoing(request, upstream.model.fill(request.sampling))
    body = msgspec.json.encode(upstream.dialect.body(outgoing))
    output = Output(upstream, outgoing)

    async def alive() -> bool:
        return True

    try:
        async with contextlib.aclosing(transport.stream(upstream.dialect.path, body, alive)) as stream:
            async for frames in stream:
                deque(output.read(frames), maxlen=0)
                if output.over:
                    break
        output.finished()
    except EngineError as error:
        message = f"The upstream {transport.address.url} could not generate from a token of {upstream.model.source}: "
        raise EngineError("unavailable", message + error.message, retryable=error.retryable) from error
