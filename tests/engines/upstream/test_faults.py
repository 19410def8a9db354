"""What an upstream may do wrong, byte by byte, and the one error that each of it becomes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import pytest

from agent_server.engine_protocol.protocol import Delta, EngineError, Finished
from agent_server.engines.upstream import UpstreamEngine, parse_address
from tests.engines.upstream.servers import (
    DONE,
    END,
    HEAD,
    MODEL,
    QUICK,
    Server,
    Writer,
    answers,
    asked,
    chunk,
    connected,
    says,
    serving,
    token_frame,
)

SOME = token_frame([104, 105])
LAST = token_frame([257], "stop")


def error_data(message: str, code: int) -> bytes:
    return b"data: " + json.dumps({"error": {"message": message, "code": code}}).encode() + b"\n\n"


async def silence(writer: Writer, body: Any) -> None:
    writer.write(HEAD + chunk(SOME))
    await asyncio.sleep(30)


async def comments(writer: Writer, body: Any) -> None:
    writer.write(HEAD + chunk(SOME))
    for _ in range(600):
        writer.write(chunk(b": keep-alive\n\n"))
        await asyncio.sleep(0.05)


async def no_answer(writer: Writer, body: Any) -> None:
    await asyncio.sleep(30)


BROKEN = {
    "an error frame before anything": (says(error_data("bad id", 400), DONE), "invalid_request", False, ""),
    "an error frame after some tokens": (says(SOME, error_data("worker died", 500), DONE), "connection", True, "hi"),
    "an error frame with no code": (says(SOME, b'data: {"error": "gone"}\n\n', DONE), "connection", True, "hi"),
    "an end without a reason": (says(SOME, DONE), "connection", True, "hi"),
    "an end without anything": (says(), "unavailable", True, ""),
    "a body that breaks off": (says(SOME, close=True), "connection", True, "hi"),
    "a frame that is cut off": (says(SOME, LAST[:-6]), "connection", True, "hi"),
    "an abort": (says(SOME, token_frame([], "abort"), DONE), "connection", True, "hi"),
    "an unknown finish reason": (says(SOME, token_frame([], "repetition")), "connection", True, "hi"),
    "no JSON": (says(SOME, b"data: <html>\n\n"), "connection", True, "hi"),
    "JSON of another kind": (says(SOME, b'data: {"choices": "none"}\n\n'), "connection", True, "hi"),
    "text without ids": (says(b'data: {"choices": [{"text": "x"}]}\n\n'), "unavailable", False, ""),
    "an id that does not exist": (says(SOME, token_frame([9999])), "connection", False, "hi"),
    "silence after some tokens": (silence, "timeout", True, "hi"),
    "comments alone after some tokens": (comments, "timeout", True, "hi"),
    "silence instead of an answer": (no_answer, "timeout", True, ""),
    "a page": (answers("200 OK", b"<html>", "text/html"), "unavailable", True, ""),
    "a full queue": (answers("429 Too Many", {"error": {"message": "busy"}}), "overloaded", True, ""),
    "a server that loads": (answers("503 Unavailable", {"error": {"message": "loading"}}), "unavailable", True, ""),
    "a key that is refused": (answers("401 Unauthorized", {"error": "no"}), "unavailable", False, ""),
    "a prompt too long": (
        answers("400 Bad", {"error": {"message": "This model's maximum context length is 9."}}),
        "context_length_exceeded",
        False,
        "",
    ),
    "a parameter": (answers("400 Bad", {"error": {"message": "no", "param": "top_p"}}), "invalid_request", False, ""),
    "a fault of its own": (answers("500 Oops", {"detail": "oops"}), "unavailable", True, ""),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_each_fault_is_one_typed_error(name: str):
    play, kind, retryable, said = BROKEN[name]
    quick = {"idle": 0.4, "first": 1.0} if kind == "timeout" else {}
    async with serving() as server, connected(server, **quick) as engine:
        server.plays["/v1/completions"] = play
        text = ""
        with pytest.raises(EngineError) as raised:
            async with asyncio.timeout(15):
                async for item in engine.generate(asked()):
                    assert isinstance(item, Delta), "there is no success"
                    text += "".join(token.text for token in item.tokens)
        assert (raised.value.kind, raised.value.retryable, text) == (kind, retryable, said)
        assert raised.value.message and "\n" not in raised.value.message
        assert engine.metrics()["num_requests_running"] == engine.metrics()["num_requests_waiting"] == 0


async def whole(engine: UpstreamEngine, **options: Any) -> tuple[str, Finished]:
    items = [item async for item in engine.generate(asked(**options))]
    assert isinstance(items[-1], Finished)
    return "".join(token.text for item in items[:-1] for token in item.tokens), items[-1]


async def test_a_reason_is_success_whatever_breaks_behind_it():
    async with serving() as server, connected(server) as engine:
        for play in (says(SOME, LAST), says(SOME, LAST, close=True), says(SOME, LAST, DONE)):
            server.plays["/v1/completions"] = play
            text, end = await whole(engine)
            assert (text, end.reason, end.usage.completion_tokens) == ("hi", "stop", 3)


async def test_tokens_that_another_replica_made_are_counted_there():
    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = says(SOME, LAST, DONE)
        request = msgspec.structs.replace(asked(), generated=(104, 105, 104))
        items = [item async for item in engine.generate(request)]
        assert items[-1].usage.completion_tokens == 6
        assert engine.metrics()["generation_tokens_total"] == 3


async def test_an_error_frame_behind_a_reason_is_an_error():
    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = says(SOME, LAST, error_data("late", 500), DONE)
        with pytest.raises(EngineError, match="late"):
            await whole(engine)


async def test_a_long_queue_is_waited_for_as_long_as_the_server_answers():
    async def late(writer: Writer, body: Any) -> None:
        await asyncio.sleep(0.5)
        writer.write(HEAD)
        await asyncio.sleep(0.2)
        writer.write(chunk(SOME) + chunk(LAST) + END)
        await writer.drain()

    async with serving() as server, connected(server, idle=0.1, first=20.0) as engine:
        server.plays["/v1/completions"] = late
        assert (await whole(engine))[0] == "hi"
        server.plays["/health"] = answers("500 Oops", b"")
        with pytest.raises(EngineError) as raised:
            await whole(engine)
        assert raised.value.kind == "timeout"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
async def test_frames_may_be_cut_anywhere(size: int, ends: bytes):
    data = (b": hello\n\n" + SOME + b"event: x\nid: 3\n" + token_frame([33]) + LAST + DONE).replace(b"\n", ends)

    async def drip(writer: Writer, body: Any) -> None:
        writer.write(HEAD)
        for place in range(0, len(data), size):
            writer.write(chunk(data[place : place + size]))
            await writer.drain()
        writer.write(END)

    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = drip
        assert (await whole(engine))[0] == "hi!"


async def test_connections_are_kept_and_a_stale_one_is_replaced():
    async with serving() as server, connected(server, health=60.0) as engine:
        before = server.connections
        for _ in range(3):
            await whole(engine)
        assert server.connections == before

        async def hang_up(writer: Writer, body: Any) -> None:
            server.plays["/v1/completions"] = says(SOME, LAST, DONE)
            writer.close()

        server.plays["/v1/completions"] = hang_up
        assert (await whole(engine))[0] == "hi"
        assert server.connections == before + 1


@pytest.mark.parametrize("times", [1, 2])
async def test_a_connection_that_closes_while_the_body_is_written_is_replaced_once(
    times: int, monkeypatch: pytest.MonkeyPatch
):
    post, left = aiohttp.ClientSession.post, [times]

    def written_into_nothing(session: aiohttp.ClientSession, url: str, **given: Any) -> Any:
        if not left[0]:
            return post(session, url, **given)
        left[0] -= 1

        async def fail() -> None:
            raise aiohttp.ClientOSError(None, f"Can not write request body for {url}")

        return fail()

    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = says(SOME, LAST, DONE)
        monkeypatch.setattr(aiohttp.ClientSession, "post", written_into_nothing)
        if times == 1:
            assert (await whole(engine))[0] == "hi"
            return
        with pytest.raises(EngineError) as refused:
            await whole(engine)
    assert refused.value.kind == "unavailable" and "closed the connection" in refused.value.message


async def test_nothing_is_read_before_the_caller_takes_it():
    """A reader that stops makes the upstream wait: its buffers fill, and no more."""
    sent = 0

    async def flood(writer: Writer, body: Any) -> None:
        nonlocal sent
        writer.write(HEAD)
        for _ in range(20_000):
            writer.write(chunk(token_frame([104] * 100)))
            sent += 1
            await writer.drain()

    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = flood
        stream = engine.generate(asked())
        await anext(stream)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 20_000
        await stream.aclose()


async def test_closing_the_stream_closes_the_connection():
    gone = asyncio.Event()

    async def endless(writer: Writer, body: Any) -> None:
        writer.write(HEAD)
        try:
            while True:
                writer.write(chunk(SOME))
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            gone.set()
            raise

    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = endless
        stream = engine.generate(asked(max_tokens=90))
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(10):
            await gone.wait()


async def test_closing_the_engine_ends_what_is_open():
    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = silence
        stream = engine.generate(asked())
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineError) as raised:
            async with asyncio.timeout(10):
                await waiting
        assert (raised.value.kind, engine.status.state) == ("unavailable", "stopped")
        with pytest.raises(EngineError, match="stopped"):
            await whole(engine)


async def test_more_than_may_be_in_flight_is_refused():
    async with serving() as server, connected(server, in_flight=1) as engine:
        server.plays["/v1/completions"] = silence
        stream = engine.generate(asked("first"))
        await anext(stream)
        with pytest.raises(EngineError) as raised:
            await whole(engine, name="second")
        assert (raised.value.kind, raised.value.retryable) == ("overloaded", True)
        await stream.aclose()


async def test_no_more_are_in_flight_while_their_grammars_are_looked_at(monkeypatch: pytest.MonkeyPatch):
    async with serving() as server, connected(server, in_flight=2) as engine:
        server.plays["/v1/completions"] = says(SOME, LAST, DONE)
        most = 0

        async def slowly(request: Any) -> None:
            nonlocal most
            most = max(most, len(engine._streams))
            await asyncio.sleep(0.01)

        monkeypatch.setattr(engine, "_verifier", slowly)
        ends = await asyncio.gather(*(whole(engine, name=str(n)) for n in range(6)), return_exceptions=True)
        refused = [end.kind for end in ends if isinstance(end, EngineError)]
        assert (most, refused) == (2, ["overloaded"] * 4)
        assert not engine._streams and await whole(engine)


async def test_a_generation_may_not_take_for_ever():
    async def slow(writer: Writer, body: Any) -> None:
        writer.write(HEAD)
        for _ in range(100):
            writer.write(chunk(token_frame([104])))
            await asyncio.sleep(0.05)

    async with serving() as server, connected(server, total=0.4) as engine:
        server.plays["/v1/completions"] = slow
        with pytest.raises(EngineError, match="longer than") as raised:
            await whole(engine, max_tokens=90)
        assert raised.value.kind == "timeout"


async def test_its_health_shows_and_comes_back():
    async with serving() as server, connected(server) as engine:
        good = server.plays["/health"]
        server.plays["/health"] = answers("503 Unavailable", b"")
        await until(engine, "starting")
        assert server.url in engine.status.message
        server.plays["/health"] = good
        await until(engine, "ready")
        server.plays["/health"] = answers("503 Unavailable", b"")
        await until(engine, "starting")
        server.plays["/v1/models"] = answers("200 OK", {"data": [{"id": "other", "owned_by": "vllm"}]})
        server.plays["/health"] = good
        async with asyncio.timeout(20):
            while "another model" not in engine.status.message:
                await asyncio.sleep(0.02)
        assert engine.status.state == "starting"


async def until(engine: UpstreamEngine, state: str) -> None:
    async with asyncio.timeout(20):
        while engine.status.state != state:
            await asyncio.sleep(0.02)


# meeting it


async def refused(server: Server, url: str = "", **changes: Any) -> EngineError:

    engine = UpstreamEngine(parse_address(url or server.url), lambda: MODEL, QUICK.model_copy(update=changes))
    with pytest.raises(EngineError) as raised:
        await engine.start()
    assert (engine.status.state, engine.status.message) == ("failed", raised.value.message)
    assert "\n" not in raised.value.message and not raised.value.retryable
    await engine.close()
    return raised.value


async def test_a_server_that_is_not_there_is_waited_for_and_named():
    async with serving() as server:
        error = await refused(server, "http://127.0.0.1:9")
        assert "http://127.0.0.1:9 cannot be reached" in error.message


async def test_loading_is_waited_for():
    async with serving() as server:
        server.plays["/health"] = answers("503 Unavailable", b"")

        async def later() -> None:
            await asyncio.sleep(0.3)
            server.plays["/health"] = answers("200 OK", b"")

        helper = asyncio.create_task(later())
        async with connected(server, start=5.0) as engine:
            assert engine.status.state == "ready"
        await helper
        server.plays["/health"] = answers("503 Unavailable", b"")
        assert "still loading" in (await refused(server)).message


async def test_what_is_no_inference_server_is_said_at_once():
    async with serving() as server:
        server.plays = {}
        assert "is not an inference server that is known here" in (await refused(server, start=60.0)).message


async def test_a_key_is_sent_and_a_wrong_one_is_told():
    async with serving() as server:
        engine = UpstreamEngine(parse_address(server.url, "secret"), lambda: MODEL, QUICK)
        await engine.start()
        await engine.close()
        assert set(server.keys) == {"bearer secret"}
        server.plays["/v1/models"] = answers("401 Unauthorized", {"error": "Unauthorized"})
        assert "key" in (await refused(server, start=60.0)).message


async def test_the_model_is_chosen_by_name_where_there_are_several():
    entries = [{"id": name, "owned_by": "vllm", "max_model_len": 100} for name in ("a", "org/bytes", "c")]
    adapter = {"id": "lora", "owned_by": "vllm", "parent": "a"}
    async with serving() as server:
        server.plays["/v1/models"] = answers("200 OK", {"data": [*entries, adapter]})
        async with connected(server) as engine:
            assert engine.info.details["served_model"] == "org/bytes"
        server.plays["/v1/models"] = answers("200 OK", {"data": entries[::2]})
        assert "does not serve 'bytes'. It serves a, c" in (await refused(server)).message


async def test_another_tokenizer_is_noticed():
    async with serving() as server:
        server.plays["/tokenize"] = answers("200 OK", {"tokens": [1, 2, 3]})
        assert "tokenizer is not that of bytes" in (await refused(server)).message
        async with connected(server, check_tokenizer=False) as engine:
            assert engine.status.state == "ready"


async def test_the_shorter_context_counts():
    async with serving() as server, connected(server) as engine:
        assert engine.info.context_length == 100
        with pytest.raises(EngineError) as raised:
            await whole(engine, max_tokens=99)
        assert raised.value.kind == "context_length_exceeded"
        await whole(engine, max_tokens=None)
        assert server.requests[-1][1]["max_tokens"] == 98
