"""Webhooks: notify an application that a run has ended, as specified by Standard Webhooks.

https://www.standardwebhooks.com: the headers webhook-id (the same at every attempt), webhook-timestamp and
webhook-signature, an HMAC-SHA256 of "id.timestamp.body" under a shared secret. Any 2xx is a success; 410 ends the
attempts. Pending deliveries are in the store, so a restart loses none, and only one of several servers makes an
attempt.
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
from functools import partial
from ssl import SSLContext

import aiohttp
import msgspec
from sqlalchemy import Connection
from yarl import URL

from adapters.errors import RequestError
from agent_server.ids import new_id
from agent_server.media.fetching import PublicLookup, allowed_place, is_public
from agent_server.media.refusal import MediaRefused
from agent_server.runs.store import Store, callbacks
from agent_server.runs.store.callbacks import Callback
from agent_server.settings import WebhookSettings

logger = logging.getLogger("agent_server.webhooks")
BACKOFF = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Seconds before each further attempt (Standard Webhooks, "Deliverability and reliability")."""
ATTEMPT_SECONDS = 15.0
LEASE_SECONDS = 60.0
"""How long an attempt belongs to one server. If it dies meanwhile, another server makes the attempt."""
POLL_SECONDS = 5.0
AT_ONCE = 16
GONE = 410
PREFIX = "whsec_"


class Webhooks:
    """Delivers the webhooks of finished runs while the server runs.

    allowed, ssl: as for fetched media. poll: seconds between checks for due deliveries, in addition to `wake`. now:
    returns seconds since the epoch.
    """

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
        """Raises ValueError for an invalid secret, and for webhook hosts without a secret."""
        self._store = store
        self._hosts = settings.hosts
        self._keys = [key_of(secret.get_secret_value()) for secret in settings.secrets]
        if self._hosts and not self._keys:
            raise ValueError("Webhooks need a secret to sign them. Set one with --webhook-secret whsec_...")
        self._allowed = allowed
        self._ssl = ssl
        self._poll = poll
        self._backoff = backoff
        self._now = now
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sends(self) -> bool:
        """Whether this server may send webhooks to any host."""
        return bool(self._hosts)

    def check(self, url: str) -> None:
        """Raise RequestError for a URL to which this server sends no webhooks."""
        try:
            self._target(url)
        except MediaRefused as refused:
            raise RequestError("invalid_request", refused.message, "webhook-url") from None

    def registration(self, tenant: str, thread_id: str, run_id: str, url: str) -> Callable[[Connection], None]:
        """Return the write that registers `url` for a run's end, for the transaction that accepts the run."""
        callback = Callback(tenant=tenant, thread_id=thread_id, run_id=run_id, id=new_id("msg"), url=url)
        return lambda connection: callbacks.register(connection, callback)

    def start(self) -> None:
        if self._hosts:
            self._task = asyncio.create_task(self._work(), name="webhooks")

    async def close(self) -> None:
        """Stop delivering. The next server makes the pending deliveries."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wake(self) -> None:
        """Check for due deliveries now, because a run has ended."""
        self._woken.set()

    async def _work(self) -> None:
        while True:
            try:
                now = int(self._now() * 1000)
                due = await self._store.read(partial(callbacks.due, now=now, most=AT_ONCE))
                async with asyncio.TaskGroup() as group:
                    for callback in due:
                        group.create_task(self._deliver(callback))
                if len(due) == AT_ONCE:  # more of them may be due
                    continue
            except Exception:
                logger.exception("Due webhooks could not be read from the store. The server tries again.")
            try:
                async with asyncio.timeout(self._poll):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _deliver(self, callback: Callback) -> None:
        """Make one attempt, unless another server makes it."""
        until = int((self._now() + LEASE_SECONDS) * 1000)
        try:
            if await self._store.write(lambda connection: callbacks.claim(connection, callback, until)):
                try:
                    async with asyncio.timeout(ATTEMPT_SECONDS):
                        status = await self.post(callback.url, callback.id, body_of(callback))
                    failure = f"it answered {status}"
                except (MediaRefused, aiohttp.ClientError, OSError, TimeoutError) as error:
                    status = 0
                    failure = error.message.rstrip(".") if isinstance(error, MediaRefused) else type(error).__name__
                if 200 <= status < 300 or status == GONE:
                    await self._store.write(lambda connection: callbacks.done(connection, callback))
                elif callback.attempts >= len(self._backoff):
                    message = "The webhook of run %s could not be delivered to %s (%s). The server gives up."
                    logger.error(message, callback.run_id, URL(callback.url).host, failure)
                    await self._store.write(lambda connection: callbacks.done(connection, callback))
                else:
                    seconds = self._backoff[callback.attempts]
                    message = "The webhook of run %s could not be delivered to %s: %s. The next attempt is in %g s."
                    logger.warning(message, callback.run_id, URL(callback.url).host, failure, seconds)
                    due = int((self._now() + seconds) * 1000)
                    await self._store.write(lambda connection: callbacks.postpone(connection, callback, due))
        except asyncio.CancelledError:  # this server stops: the next one need not wait for the lease
            now = int(self._now() * 1000)
            await self._store.write(lambda connection: callbacks.release(connection, callback, until, now))
            raise

    def _target(self, url: str) -> URL:
        return allowed_place(
            url,
            self._hosts,
            self._allowed,
            nowhere="This server sends no webhooks; its operator names hosts with --webhook-host.",
            option="--webhook-host",
            verb="send",
        )

    async def post(self, url: str, id: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        """Send one signed message and return the status of the answer.

        id: of the message, the same at every attempt. Raises MediaRefused for a URL that receives no messages, and what
        sending raises.
        """
        target = self._target(url)
        connector = aiohttp.TCPConnector(resolver=PublicLookup(self._allowed), use_dns_cache=False, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False) as session,
            session.post(
                target,
                data=body,
                headers={**(headers or {}), **signed_headers(self._keys, id, int(self._now()), body)},
                allow_redirects=False,
                ssl=self._ssl or True,
            ) as answer,
        ):
            return answer.status


def body_of(callback: Callback) -> bytes:
    """Encode a delivery: the run's record, without messages. It is the same at every attempt."""
    run = callback.run
    assert run is not None
    body = {
        "type": f"run.{run.status}",
        "timestamp": run.ended_at or run.created_at,
        "data": {**msgspec.to_builtins(run), "threadId": callback.thread_id},
    }
    return msgspec.json.encode(body)


def signed_headers(keys: Sequence[bytes], id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery, with a signature under each key, so that keys can be rotated."""
    content = b".".join((id.encode(), str(seconds).encode(), body))
    signatures = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys]
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def key_of(secret: str) -> bytes:
    """Return the key of a secret: "whsec_" followed by 24 to 64 bytes in base64. Raises ValueError."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError("A webhook secret must be whsec_ followed by 24 to 64 bytes in base64.")
    return key
