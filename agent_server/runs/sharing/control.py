"""Commands between gateways: each gateway reads a Redis stream of its own with commands and answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs.sharing.link import RedisLink, RedisUnreachable
from agent_server.runs.sharing.publisher import Publisher, SharedRun
from agent_server.runs.sharing.streams import RedisKeys, RunPlace, place_of
from agent_server.settings import SharingLimits

BLOCK = 500
"""Milliseconds that one XREAD waits for entries."""
RETRY_SECONDS = 0.25
STREAM_SECONDS = 3600
"""After which an unused command stream expires."""


class GatewayCommands:
    """Sends commands to other gateways and executes theirs. runs: this gateway's, by tenant and id."""

    def __init__(
        self,
        link: RedisLink,
        keys: RedisKeys,
        gateway: str,
        runs: dict[tuple[str, str], SharedRun],
        limits: SharingLimits,
        publisher: Publisher,
    ) -> None:
        self._link = link
        self._keys = keys
        self._gateway = gateway
        self._runs = runs
        self._limits = limits
        self._publisher = publisher
        self._answers: dict[str, asyncio.Future[Mapping[str, object]]] = {}
        self._executing: set[asyncio.Task[None]] = set()
        self._last_id = b"0-0"

    def send_command(self, place: RunPlace, action: str, **more: object) -> None:
        """Send a command to a run's gateway without waiting for an answer."""
        message = {"do": action, "run": place, "from": self._gateway, **more}
        self._send(place.gateway, msgspec.json.encode(message))

    async def ask(self, place: RunPlace, action: str, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a command to a run's gateway and return its answer: {done, paused}.

        Raises the RequestError that the command raised there, or "unavailable" if no answer arrives in time.
        """
        token = secrets.token_hex(8)
        future = self._answers[token] = asyncio.get_running_loop().create_future()
        try:
            self.send_command(place, action, token=token, changes=changes)
            async with asyncio.timeout(self._limits.answer):
                answer: Mapping[str, Any] = await future
        except TimeoutError:
            raise RequestError("unavailable", "The server of this run does not answer.", retry_after=1.0) from None
        finally:
            del self._answers[token]
        if (error := answer.get("error")) is not None:
            raise RequestError(*error)
        return answer

    async def run(self) -> None:
        key = self._keys.control(self._gateway)
        while True:
            try:
                streams = await self._link.call("XREAD", "COUNT", 256, "BLOCK", BLOCK, "STREAMS", key, self._last_id)
            except RedisUnreachable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for _, entries in streams or ():
                for id, fields in entries:
                    # Noted before the command is executed: one that fails must not be read again for ever.
                    self._last_id = id
                    if (entry := fields.get(b"turn")) is not None:
                        self.turn(entry)
                        continue
                    message = msgspec.json.decode(fields[b"m"])
                    if (token := message.get("answer")) is not None:
                        future = self._answers.get(token)
                        # The caller may have stopped waiting; the answer is then dropped.
                        if future is not None and not future.done():
                            future.set_result(message)
                        continue
                    # In a task of its own: an action may take long, and later commands must not wait for it.
                    task = asyncio.create_task(self._execute(message))
                    self._executing.add(task)
                    task.add_done_callback(self._executing.discard)

    def turn(self, entry: bytes) -> None:
        """Let a run of this gateway begin, if it still exists, because it is its turn on its thread."""
        place = place_of(entry)
        # The place includes the instance, so a late command for a finished run does not reach one that reuses its id.
        if (shared := self._runs.get((place.tenant, place.run_id))) and shared.place == place:
            shared.may_begin.set()

    async def _execute(self, message: Mapping[str, Any]) -> None:
        place = msgspec.convert(message["run"], RunPlace)
        shared = self._runs.get((place.tenant, place.run_id))
        if shared is not None and shared.place != place:
            shared = None
        if message["do"] == "hold":
            if shared is not None:
                shared.hold(message["from"])
        elif message["do"] == "release":
            if shared is not None:
                shared.release(message["from"])
        else:
            answer = await control_run(shared, message["do"], message["changes"])
            self._send(message["from"], msgspec.json.encode({"answer": message["token"], **answer}))

    def _send(self, gateway: str, message: bytes) -> None:
        key = self._keys.control(gateway)
        self._publisher.send("XADD", key, "MAXLEN", "~", self._limits.commands, "*", "m", message)
        self._publisher.send("EXPIRE", key, STREAM_SECONDS)


async def control_run(shared: SharedRun | None, action: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Execute an action on a run and return the answer to be sent."""
    if shared is None:
        return {"done": False}
    run = shared.run
    actions: dict[str, Callable[[], Awaitable[bool]]] = {
        "cancel": run.cancel,
        "pause": run.pause,
        "resume": run.resume,
        "modify": lambda: run.modify(changes),
    }
    try:
        done = await actions[action]()
    except (RequestError, EngineError) as error:
        return {"done": False, "error": [error.kind, error.message, error.param]}
    return {"done": done, "paused": run.paused}
