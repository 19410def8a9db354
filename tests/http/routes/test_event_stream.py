"""A stream of frames: kept warm while nothing is sent, ended by its last frame or by a client that leaves."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_server.http.middleware.counted_send import SLICE_BYTES, in_slices
from agent_server.http.routes.http import EventStream, first_of

WARM = b": warm\n\n"


class Waiting:
    """Frames of which none comes until `end`."""

    def __init__(self) -> None:
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = 0

    def ready(self) -> bytes:
        return b""

    def arrival(self) -> asyncio.Future[None] | None:
        return None if self.end.done() else self.end

    def finish(self) -> bytes:
        return b"last"

    async def aclose(self) -> None:
        self.closed += 1


class Client:
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.warmed = asyncio.Event()
        self.leaves = asyncio.Event()
        self.breaks = False

    async def receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        body = message.get("body")
        if body == WARM and self.got.count(WARM) >= 2:
            self.warmed.set()
        if self.breaks and body == WARM:
            self.warmed.set()
            raise OSError("the connection is gone")
        if body is not None:
            self.got.append(body)


def streamed(frames: Waiting, client: Client) -> asyncio.Task[None]:
    stream = EventStream(frames, content_type="text/event-stream", keep_alive=lambda: WARM, interval=0.001)
    return asyncio.create_task(stream({"type": "http"}, client.receive, client.send))


async def test_silence_is_broken_again_and_again_until_the_last_frame():
    frames, client = Waiting(), Client()
    task = streamed(frames, client)
    await client.warmed.wait()
    frames.end.set_result(None)
    await task
    assert client.got[-1] == b"last"
    assert set(client.got[:-1]) == {WARM}
    assert frames.closed == 1


async def test_a_client_that_leaves_ends_it():
    frames, client = Waiting(), Client()
    task = streamed(frames, client)
    await client.warmed.wait()
    client.leaves.set()
    await task
    assert b"last" not in client.got
    assert frames.closed == 1


async def test_a_connection_that_breaks_under_a_keep_alive_is_no_error():
    frames, client = Waiting(), Client()
    client.breaks = True
    task = streamed(frames, client)
    await client.warmed.wait()
    client.leaves.set()
    await task
    assert frames.closed == 1


class Large(Waiting):
    """One large frame, then none until `end`."""

    frame = bytes(range(256)) * (SLICE_BYTES // 32)

    def ready(self) -> bytes:
        frame, self.frame = self.frame, b""
        return frame


async def test_a_large_frame_is_sent_in_slices_and_whole():
    """A keep-alive between two slices would be part of the frame."""
    frames, client = Large(), Client()
    sent = 0

    async def slow(message: Any) -> None:
        nonlocal sent
        await client.send(message)
        sent += len(message.get("body", b""))
        await asyncio.sleep(0.002)  # twice the interval of the keep-alives
        if sent >= len(Large.frame) and not frames.end.done():
            frames.end.set_result(None)

    stream = EventStream(frames, content_type="text/event-stream", keep_alive=lambda: WARM, interval=0.001)
    await stream({"type": "http"}, client.receive, in_slices(slow, None))
    assert b"".join(client.got).startswith(Large.frame) and client.got[-1] == b"last"
    assert max(map(len, client.got)) == SLICE_BYTES


async def test_others_have_a_turn_between_the_slices_of_an_answer():
    order: list[object] = []

    async def send(message: Any) -> None:
        order.append((len(message["body"]), message["more_body"]))

    async def other() -> None:
        order.append("other")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_slices(send, None)({"type": "http.response.body", "body": bytes(2 * SLICE_BYTES + 1)}))
        tasks.create_task(other())
    assert order == [(SLICE_BYTES, True), "other", (SLICE_BYTES, True), (1, False)]


async def test_waiting_for_the_first_of_several_leaves_nothing_behind():
    loop = asyncio.get_running_loop()
    one, other = loop.create_future(), loop.create_future()
    loop.call_soon(one.set_result, None)
    await first_of(one, other, seconds=60)
    assert (one.done(), other.done()) == (True, False)
    await first_of(other, seconds=0.001)
    await first_of(one, other)
    other.cancel()
