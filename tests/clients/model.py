"""A model that follows a script, the server in front of it, and what passed over the wire."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_server.cli.connect import Target
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.http.app import build_app
from tests import server
from tests.clients.agents import Call, CodingAgent, Session
from tests.server import Running, scripted, serving

CONTEXT = 131_072
TEMPLATE = Path(__file__).with_name("coder.jinja")
PICTURE = "<|pad|>"
Decide = Callable[[str], Script | None]
Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]


def call(made: Call) -> Script:
    return Script(text=f"<tool_call>\n{json.dumps({'name': made[0], 'arguments': made[1]})}\n</tool_call>")


class Model:
    """Answers a request that has tools with the next of its scripts, and one without (for a title) with "Colours".

    decide: answers a prompt before the scripts do. sees: whether it accepts pictures.
    """

    def __init__(self, scripts: Sequence[Script], *, context: int = CONTEXT, sees: bool = False) -> None:
        self.scripts = [*scripts]
        self.decide: Decide = lambda prompt: None
        self.requests: list[GenerationRequest] = []
        """Those of turns, not of titles."""
        self.cached: list[int] = []
        """For each of them, the tokens that its prompt shares with an earlier one and its answer, as a cache has it."""
        self.tap = Tap()
        self.exchanges: list[Exchange] = []
        """For each of them, what passed over the wire."""
        self.read: Callable[[Sequence[int]], str] = lambda ids: ""
        """Text of token ids; the server's own, once it is there."""
        self.context = context
        self.sees = sees
        self.engine: ScriptedEngine = scripted(self.answer, context_length=context)
        if sees:
            (pad,) = self.engine.vocabulary.encode(PICTURE)
            self.engine._info = msgspec.structs.replace(self.engine.info, placeholders={"image": pad})
        self._seen: list[Tokens] = []

    def answer(self, request: GenerationRequest) -> Script:
        ids = np.array(request.prompt_token_ids)
        prompt = self.read(request.prompt_token_ids)
        script = self.decide(prompt)
        if script is None and "<tools>" not in prompt:
            return Script(text="Colours")
        cached = max((_shared(ids, earlier) for earlier in self._seen), default=0)
        self.requests.append(request)
        self.exchanges.append(self.tap.exchanges[-1])
        self.cached.append(cached)
        if script is None:
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self._seen.append(np.append(ids, self.engine.vocabulary.encode(script.text)))
        return msgspec.structs.replace(script, cached_tokens=cached)

    def prompt(self, index: int = -1) -> str:
        return self.read(self.requests[index].prompt_token_ids)

    @property
    def shares(self) -> list[float]:
        """For each turn, the part of its prompt that is cached."""
        return [
            cached / len(request.prompt_token_ids) for cached, request in zip(self.cached, self.requests, strict=True)
        ]

    def difference(self, index: int) -> str:
        """Where a turn's prompt leaves the one before and its answer."""
        place = self.cached[index]
        ids, earlier = self.requests[index].prompt_token_ids, self._seen[index - 1].tolist()
        return f"{self.read(earlier[place - 20 : place + 60])!r} became {self.read(ids[place - 20 : place + 60])!r}"


def _shared(ids: Tokens, earlier: Tokens) -> int:
    length = min(len(ids), len(earlier))
    differs = ids[:length] != earlier[:length]
    return int(differs.argmax()) if differs.any() else length


@dataclass
class Exchange:
    """One request and its answer. sent: the request's body. first: seconds until the answer's first bytes."""

    path: str
    headers: list[tuple[bytes, bytes]]
    sent: bytearray = field(default_factory=bytearray)
    status: int = 0
    first: float = 0.0
    body: bytearray = field(default_factory=bytearray)


class Tap:
    """Notes the requests for answers on their way to an app."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def around(self, app: ASGIApp) -> ASGIApp:
        async def tapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                return await app(scope, receive, send)
            exchange, began = Exchange(scope["path"], list(scope["headers"])), time.perf_counter()
            self.exchanges.append(exchange)

            async def read() -> Message:
                message = await receive()
                exchange.sent += message.get("body", b"")
                return message

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exchange.status = message["status"]
                elif body := message.get("body"):
                    exchange.first = exchange.first or time.perf_counter() - began
                    exchange.body += body
                await send(message)

            await app(scope, read, noted)

        return tapped

    @property
    def refusals(self) -> list[Exchange]:
        """Those that said that the prompt is too long."""
        return [each for each in self.exchanges if b"prompt is too long" in each.body.lower()]


async def first_events(url: str, model: Model, turns: Sequence[int], repeats: int = 15) -> list[float]:
    """Send the requests of some turns again, in turns and with no agent beside them. Return the median of the seconds
    until each one's first event."""
    model.decide = lambda prompt: Script(text="Done.")
    repeated = [model.exchanges[turn - 1] for turn in turns]
    seconds: list[list[float]] = [[] for _ in turns]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for _ in range(repeats):
            for exchange, taken in zip(repeated, seconds, strict=True):
                headers = [each for each in exchange.headers if each[0] not in (b"host", b"content-length")]
                answer = await client.post(exchange.path, headers=headers, content=bytes(exchange.sent))
                assert answer.status_code == 200
                taken.append(model.exchanges[-1].first)
    return [statistics.median(each) for each in seconds]


@contextlib.asynccontextmanager
async def connected(
    agent: CodingAgent, folder: Path, model: Model, *, knows: bool = True, paint: bool = False, whole: bool = True
) -> AsyncIterator[tuple[Session, Running, Tap]]:
    """A session with a server. knows: the agent is told the model's context. whole: prompts have all that the agent
    sends, not the little that the demonstration's template leaves of it."""
    tap = model.tap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "build_app", lambda of: tap.around(build_app(of)))
        template = TEMPLATE if whole else None
        async with serving(model.engine, max_context=model.context, chat_template=template) as running:
            model.read = running.server.model.prompts.detokenize
            name, context = running.server.model.name, model.context if knows else None
            session = Session(agent, folder, Target(running.url, name, "", context, model.sees), paint=paint)
            (session.project / "colours.txt").write_text("colour = red\n", "utf-8")
            with contextlib.closing(session):
                yield session, running, tap
