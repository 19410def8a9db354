"""This server's model as an OpenAI client and as a pydantic-ai model, without a network connection.

httpx's ASGI transport returns a response only when it is complete; this one streams each chunk as it arrives.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

import httpx2

from adapters import openai_chat
from adapters.body import Inbound
from adapters.errors import RequestError, response
from adapters.openai_chat import ChatIdentity, ChatStream, chat_body
from agent_server.agents.guests.own_engine import OwnEngine, current
from agent_server.agents.turn import Turn
from agent_server.engine_protocol.protocol import EngineError
from events.vocabulary import Event, RunStarted

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel

PATH = "/chat/completions"
BASE_URL = "http://in-process/v1"


def openai_client() -> AsyncOpenAI:
    """An OpenAI client for Chat Completions that uses the model of the current run."""
    from openai import AsyncOpenAI

    http = httpx2.AsyncClient(transport=InProcess())
    return AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0, http_client=http)


def pydantic_ai_model(name: str = "default") -> OpenAIChatModel:
    """A pydantic-ai model that uses the model of the current run."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    profile = OpenAIModelProfile(openai_chat_thinking_field="reasoning", openai_chat_send_back_thinking_parts="field")
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=openai_client()), profile=profile)


class InProcess(httpx2.AsyncBaseTransport):
    """Answers `POST .../chat/completions` with the current run's model."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not request.url.path.endswith(PATH):
            return _refusal(RequestError("not_found", f"This client supports only {PATH}."))
        engine = current()
        try:
            inbound = openai_chat.parse(await request.aread(), new_id=engine.new_id)
            if inbound.options.n != 1:
                raise RequestError("invalid_request", "This client supports only n=1.", "n")
            events = _events(engine, inbound)
            if inbound.stream:
                # Start the response with the first events: an earlier failure becomes an error response.
                encoder = ChatStream(_identity(engine), inbound.extra)
                first = [await anext(events), await anext(events)]
                headers = {"content-type": encoder.content_type}
                return httpx2.Response(200, headers=headers, stream=_Frames(encoder, first, events))
            answer = chat_body([[event async for event in events]], _identity(engine), inbound.extra)
        except (RequestError, EngineError) as error:
            return _refusal(error)
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=answer)


async def _events(engine: OwnEngine, inbound: Inbound) -> AsyncGenerator[Event, None]:
    input = inbound.input
    yield RunStarted(thread_id=input.thread_id, run_id=input.run_id)
    async for item in engine.answer(input, inbound.options):
        yield engine.finished(input, item) if isinstance(item, Turn) else item


class _Frames(httpx2.AsyncByteStream):
    def __init__(self, encoder: ChatStream, first: list[Event], rest: AsyncGenerator[Event, None]) -> None:
        self._encoder = encoder
        self._first = first
        self._rest = rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._first:
            yield self._encoder.encode(event)
        async for event in self._rest:
            if frame := self._encoder.encode(event):
                yield frame
        yield self._encoder.finish()

    async def aclose(self) -> None:
        await self._rest.aclose()


def _identity(engine: OwnEngine) -> ChatIdentity:
    return ChatIdentity(id=engine.new_id("chatcmpl"), model=engine.name, created=int(time.time()))


def _refusal(error: RequestError | EngineError) -> httpx2.Response:
    request_error = error if isinstance(error, RequestError) else RequestError(error.kind, error.message, error.param)
    answer = response("openai", request_error)
    return httpx2.Response(answer.status, headers={"content-type": "application/json"}, content=answer.body)
