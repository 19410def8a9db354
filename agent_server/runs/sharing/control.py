"""What gateways want of each other: a stream for each, read by it alone, with commands and answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs.sharing.link import RedisLink, Unreachable
from agent_server.runs.sharing.publisher import Publisher, Shared
from agent_server.runs.sharing.streams import RedisKeys, RunPlace, place_of
from agent_server.settings import SharingLimits

BLOCK = 500
"""Milliseconds that one reading waits for something to come."""
REST = 0.25
LIVES = 3600


class GatewayCommands:
    """`runs`: this gateway's, by tenant and id."""

    def __init__(
        self,
        link: RedisLink,
        keys: RedisKeys,
        gateway: str,
        runs: dict[tuple[str, str], Shared],
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
        self._obeying: set[asyncio.Task[None]] = set()
        self._read = b"0-0"

    def tell(self, place: RunPlace, action: str, **more: object) -> None:
        """Want something of a run's gateway without an answer."""
        message = {"do": action, "run": place, "from": self._gateway, **more}
        self._send(place.gateway, msgspec.json.encode(message))

    async def ask(self, place: RunPlace, action: str, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer of a run's gateway: {done, paused}. RequestError as it would have raised it there, or
        "unavailable" if none comes in time."""
        token = secrets.token_hex(8)
        future = self._answers[token] = asyncio.get_running_loop().create_future()
        try:
            self.tell(place, action, token=token, changes=changes)
            async with asyncio.timeout(self._limits.answer):
                answer: Mapping[str, Any] = await future
        except TimeoutError:
            raise RequestError("unavailable", "The server that runs this does not answer.", retry_after=1.0) from None
        finally:
            del self._answers[token]
        if (error := answer.get("error")) is not None:
            raise RequestError(*error)
        return answer

    async def run(self) -> None:
        while True:
            try:
                await self._take()
            except Unreachable:
                await asyncio.sleep(REST)

    async def _take(self) -> None:
        key = self._keys.control(self._gateway)
        came = await self._link.call("XREAD", "COUNT", 256, "BLOCK", BLOCK, "STREAMS", key, self._read)
        for _, entries in came or ():
            for id, fields in entries:
                # Remembered before it is obeyed: a command that fails must not be read again for ever.
                self._read = id
                self._obey(fields)

    def _obey(self, fields: Mapping[bytes, bytes]) -> None:
        if (entry := fields.get(b"turn")) is not None:
            self.turn(entry)
            return
        message = msgspec.json.decode(fields[b"m"])
        if (token := message.get("answer")) is not None:
            future = self._answers.get(token)
            # Whoever asked may have given up waiting; the answer is then dropped.
            if future is not None and not future.done():
                future.set_result(message)
            return
        # Beside the reading: an action may take long, and later commands must not wait for it.
        task = asyncio.create_task(self._act(message))
        self._obeying.add(task)
        task.add_done_callback(self._obeying.discard)

    def turn(self, entry: bytes) -> None:
        """It is this run's turn on its thread, if it is still there."""
        place = place_of(entry)
        # The place names the instance: a late command for a run that ended must not reach one that uses its id again.
        if (shared := self._runs.get((place.tenant, place.run_id))) and shared.place == place:
            shared.may_begin.set()

    async def _act(self, message: Mapping[str, Any]) -> None:
        place = msgspec.convert(message["run"], RunPlace)
        shared = self._runs.get((place.tenant, place.run_id))
        found = shared if shared is not None and shared.place == place else None
        if message["do"] == "hold":
            if found is not None:
                found.hold(message["from"])
        elif message["do"] == "release":
            if found is not None:
                found.release(message["from"])
        else:
            answer = await answered(found, message["do"], message["changes"])
            self._send(message["from"], msgspec.json.encode({"answer": message["token"], **answer}))

    def _send(self, gateway: str, message: bytes) -> None:
        key = self._keys.control(gateway)
        self._publisher.send("XADD", key, "MAXLEN", "~", self._limits.commands, "*", "m", message)
        self._publisher.send("EXPIRE", key, LIVES)


async def answered(shared: Shared | None, action: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Do what was wanted; what came of it."""
    if shared is None:
        return {"done": False}
    run = shared.run
    acts: dict[str, Callable[[], Awaitable[bool]]] = {
        "cancel": run.cancel,
        "pause": run.pause,
        "resume": run.resume,
        "modify": lambda: run.modify(changes),
    }
    try:
        done = await acts[action]()
    except (RequestError, EngineError) as error:
        return {"done": False, "error": [error.kind, error.message, error.param]}
    return {"done": done, "paused": run.paused}
