"""The way back of MCP apps, on every endpoint that takes an AG-UI run; see `adapters.forwarded_props`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from adapters import forwarded_props
from adapters.body import Inbound
from adapters.errors import RequestError
from agent_server.http.routes.http import Encoder, EventStream, Generated
from agent_server.user import current_user
from events.vocabulary import Event

if TYPE_CHECKING:
    from agent_server.http.server import Server


def app_answer(server: Server, agent: str, inbound: Inbound) -> AsyncGenerator[Event, None] | None:
    """The events that answer an app's page; None for what is an ordinary run. Raises RequestError."""
    request = forwarded_props.proxied_request(inbound.extra.forwarded)
    if request is None:
        return None
    served = server.agents.get(agent)
    if served is None:
        raise RequestError("not_found", "There is no agent of that name.", "agent")

    user = current_user.get()

    async def events() -> AsyncGenerator[Event, None]:
        thread_id, run_id = inbound.input.thread_id, inbound.input.run_id
        yield forwarded_props.started(thread_id, run_id)
        yield forwarded_props.finished(thread_id, run_id, await served.answer_app(request, user))

    return events()


def stream_answer_of_app(events: AsyncGenerator[Event, None], encoder: Encoder, interval: float) -> EventStream:
    async def frames() -> AsyncGenerator[bytes, None]:
        async for event in events:
            yield encoder.encode(event)

    return EventStream(
        Generated(frames()), content_type=encoder.content_type, keep_alive=encoder.keep_alive, interval=interval
    )
