"""Telling an application that a run which it did not wait for has ended, as Standard Webhooks has it.

https://www.standardwebhooks.com: the headers webhook-id (the same at every attempt), webhook-timestamp and
webhook-signature, an HMAC-SHA256 of "id.timestamp.body" under a shared secret; any 2xx is a success, 410 means never
again. What is to be told is in the store, so a restart loses nothing, and of several servers one makes an attempt.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext

import aiohttp
import msgspec
from sqlalchemy import Connection
from yarl import URL

from adapters.errors import RequestError
from agent_server.ids import new_id
from agent_server.media.fetching import PublicLookup, allowed_place, is_public
from agent_server.media.refusal import Refused
from agent_server.runs.store import Store, callbacks
from agent_server.runs.store.callbacks import Callback
from agent_server.settings import WebhookSettings

logger = logging.getLogger("agent_server.webhooks")
BACKOFF = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds before each further attempt (Standard Webhooks, "Deliverability and reliability")."""
ATTEMPT_SECONDS = 15.0
LEASE_SECONDS = 60.0
"""For which an attempt is one server's. One that dies in it leaves the attempt to the others."""
POLL_SECONDS = 5.0
AT_ONCE = 16
GONE = 410
PREFIX = "whsec_"


class Webhooks:
    """Tells who registered, for as long as the server runs. allowed, ssl: as for fetched media. poll: seconds between
    looks for what is due, beside `wake`. now: seconds since the epoch."""

    def __init__(
        self,
        store: Store,
        settings: WebhookSettings,
        *,
        allowed: Callable[[str], bool] = is_public,
        ssl: SSLContext | None = None,
        poll: float = POLL_SECONDS,
        backoff: Sequence[float] = BACKOFF,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ValueError for a secret that is none."""
        self._store = store
        self._hosts = settings.hosts
        self._keys = [key_of(secret.get_secret_value()) for secret in settings.secrets]
        if self._hosts and not self._keys:
            raise ValueError("webhooks need a secret, with which they are signed: --webhook-secret whsec_...")
        self._allowed = allowed
        self._ssl = ssl
        self._poll = poll
        self._backoff = backoff
        self._now = now
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sends(self) -> bool:
        """Whether anyone may be told anything."""
        return bool(self._hosts)

    def check(self, url: str) -> None:
        """Raises RequestError for a URL that is not told anything."""
        try:
            self._place(url)
        except Refused as refused:
            raise RequestError("invalid_request", refused.message, "webhook-url") from None

    def registered(self, tenant: str, thread_id: str, run_id: str, url: str) -> Callable[[Connection], None]:
        """What the store writes with the acceptance of a run, so that this URL is told when it has ended."""
        callback = Callback(tenant=tenant, thread_id=thread_id, run_id=run_id, id=new_id("msg"), url=url)
        return lambda connection: callbacks.register(connection, callback)

    def start(self) -> None:
        if self._hosts:
            self._task = asyncio.create_task(self._work(), name="webhooks")

    async def close(self) -> None:
        """What was not told is told by the next server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wake(self) -> None:
        """A run has ended."""
        self._woken.set()

    async def _work(self) -> None:
        while True:
            try:
                while await self._round() == AT_ONCE:
                    pass
            except Exception:
                logger.exception("Webhooks could not be looked up; they are in a moment.")
            try:
                async with asyncio.timeout(self._poll):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _round(self) -> int:
        now = int(self._now() * 1000)
        found = await self._store.read(lambda connection: callbacks.due(connection, now, AT_ONCE))
        async with asyncio.TaskGroup() as group:
            for callback in found:
                group.create_task(self._tell(callback))
        return len(found)

    async def _tell(self, callback: Callback) -> None:
        """One attempt, if no other server makes it."""
        until = int((self._now() + LEASE_SECONDS) * 1000)
        try:
            if await self._store.write(lambda connection: callbacks.claim(connection, callback, until)):
                try:
                    async with asyncio.timeout(ATTEMPT_SECONDS):
                        status = await self.post(callback.url, callback.id, body_of(callback))
                    failure = f"it answered {status}"
                except (Refused, aiohttp.ClientError, OSError, TimeoutError) as error:
                    status, failure = (
                        0,
                        error.message.rstrip(".") if isinstance(error, Refused) else type(error).__name__,
                    )
                if 200 <= status < 300 or status == GONE:
                    await self._store.write(lambda connection: callbacks.done(connection, callback))
                else:
                    await self._again(callback, failure)
        except asyncio.CancelledError:  # this server ends: the next one need not wait for the lease
            now = int(self._now() * 1000)
            await self._store.write(lambda connection: callbacks.release(connection, callback, until, now))
            raise

    async def _again(self, callback: Callback, failure: str) -> None:
        where = f"The webhook of run {callback.run_id} at {URL(callback.url).host}"
        if callback.attempts >= len(self._backoff):
            logger.error("%s was not told of its end (%s), and is not tried again.", where, failure)
            await self._store.write(lambda connection: callbacks.done(connection, callback))
            return
        seconds = self._backoff[callback.attempts]
        logger.warning("%s was not told of its end: %s. It is tried again in %g s.", where, failure, seconds)
        until = int((self._now() + seconds) * 1000)
        await self._store.write(lambda connection: callbacks.postpone(connection, callback, until))

    def _place(self, url: str) -> URL:
        return allowed_place(
            url,
            self._hosts,
            self._allowed,
            nowhere="This server sends no webhooks; its operator names hosts with --webhook-host.",
            option="--webhook-host",
            verb="send",
        )

    async def post(self, url: str, id: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Send one signed message; the status of the answer. id: of the message, the same at every attempt. Raises
        Refused for a URL that is not told anything, and what sending raises."""
        where = self._place(url)
        connector = aiohttp.TCPConnector(resolver=PublicLookup(self._allowed), use_dns_cache=False, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False) as session,
            session.post(
                where,
                data=body,
                headers={**(headers or {}), **signed(self._keys, id, int(self._now()), body)},
                allow_redirects=False,
                ssl=self._ssl or True,
            ) as answer,
        ):
            return answer.status


def body_of(callback: Callback) -> bytes:
    """What is told: the run as its record has it; messages are read from the server. The same at every attempt."""
    run = callback.run
    assert run is not None
    told = {
        "type": f"run.{run.status}",
        "timestamp": run.ended_at or run.created_at,
        "data": {**msgspec.to_builtins(run), "threadId": callback.thread_id},
    }
    return msgspec.json.encode(told)


def signed(keys: Sequence[bytes], id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of a message, with a signature under each key, so that a receiver may have the old one or the new."""
    content = b".".join((id.encode(), str(seconds).encode(), body))
    signatures = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys]
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def key_of(secret: str) -> bytes:
    """The key of a secret, `whsec_` and 24 to 64 bytes in base64. Raises ValueError."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError("a webhook secret is whsec_ and 24 to 64 bytes in base64")
    return key
