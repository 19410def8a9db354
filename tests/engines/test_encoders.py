"""Requests to an encoder are computed in rounds, in which each tenant has its part; recordings are taken in turn."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine_protocol.protocol import EngineError, SpeechOptions
from agent_server.engines.encoders import MAX_WAITING, ROUND, LocalEncoder
from agent_server.engines.transcription import MAX_WAITING as MOST_RECORDINGS
from agent_server.engines.transcription import RATE, Transcriber
from agent_server.media.decoding import Decoder
from agent_server.settings import MediaLimits
from agent_server.user import User, current_user


class Encoder(LocalEncoder[str, int]):
    """Its row for a number has that number."""

    def __init__(self) -> None:
        super().__init__("numbers", lambda: "model")
        self.rounds: list[list[int]] = []

    def compute(self, model: str, texts: Sequence[int]) -> list[list[float]]:
        self.rounds.append(list(texts))
        if -1 in texts:
            raise ZeroDivisionError
        return [[float(text)] for text in texts]


async def started() -> Encoder:
    encoder = Encoder()
    await encoder.start()
    return encoder


async def rows(encoder: Encoder, tenant: str, texts: list[int]) -> list[list[float]]:
    current_user.set(User(tenant=tenant))
    return await encoder.computed(texts)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3 * ROUND)), max_size=8))
def test_every_request_gets_its_own_rows(asked: list[tuple[str, int]]) -> None:
    async def main() -> None:
        encoder, numbers = await started(), itertools.count()
        texts = [list(itertools.islice(numbers, count)) for _, count in asked]
        tasks = [rows(encoder, tenant, some) for (tenant, _), some in zip(asked, texts, strict=True)]
        answers = await asyncio.gather(*tasks)
        assert answers == [[[float(number)] for number in some] for some in texts]
        assert sorted(itertools.chain(*encoder.rounds)) == list(range(next(numbers)))
        assert all(len(computed) <= ROUND for computed in encoder.rounds)
        await encoder.close()

    asyncio.run(main())


async def test_a_long_list_delays_another_tenant_by_a_round() -> None:
    encoder = await started()
    many = [asyncio.create_task(rows(encoder, "a", list(range(1000)))) for _ in range(4)]
    await asyncio.sleep(0)
    before = len(encoder.rounds)
    assert await asyncio.create_task(rows(encoder, "b", [7])) == [[7.0]]
    assert len(encoder.rounds) - before <= 3 and not any(task.done() for task in many)
    assert await asyncio.gather(*many) == [[[float(number)] for number in range(1000)]] * 4
    await encoder.close()


async def test_one_tenant_may_have_half_of_what_waits() -> None:
    encoder = await started()
    half = MAX_WAITING // 2
    first = asyncio.create_task(rows(encoder, "a", [0] * half))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="Too many inputs wait for numbers"):
        await asyncio.create_task(rows(encoder, "a", [0] * half))
    assert await asyncio.create_task(rows(encoder, "b", [1])) == [[1.0]]
    first.cancel()
    assert await asyncio.create_task(rows(encoder, "a", [2])) == [[2.0]]
    await encoder.close()


async def test_a_failure_ends_the_requests_of_its_round_and_no_other() -> None:
    encoder = await started()
    assert await rows(encoder, "a", []) == []
    with pytest.raises(EngineError, match="numbers failed: ZeroDivisionError"):
        await rows(encoder, "a", [-1])
    assert await rows(encoder, "a", [3]) == [[3.0]]
    await encoder.close()


class Speech:
    """A speech model that says how many bytes it heard, one recording after the other."""

    rate = RATE

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.may_end = threading.Event()

    def transcribe(self, samples: bytes, options: SpeechOptions) -> tuple[str, int]:
        self.heard.append(len(samples))
        self.may_end.wait(30)
        return str(len(samples)), 1


class Raw(Decoder):
    async def sound(self, data: bytes, seconds: int, rate: int = RATE) -> bytes:
        return data


async def test_recordings_of_a_tenant_with_many_wait_for_anothers() -> None:
    speech: Any = Speech()
    transcriber = Transcriber("speech", lambda: speech, Raw(MediaLimits()), 60)
    await transcriber.start()

    async def transcribe(tenant: str, data: bytes) -> str:
        current_user.set(User(tenant=tenant))
        return (await transcriber.transcribe(data, SpeechOptions())).text

    many = [asyncio.create_task(transcribe("a", b"aa")) for _ in range(MOST_RECORDINGS // 2)]
    await asyncio.sleep(0.05)
    with pytest.raises(EngineError, match="Too many recordings wait"):
        await asyncio.create_task(transcribe("a", b"aa"))
    other = asyncio.create_task(transcribe("b", b"bbb"))
    await asyncio.sleep(0.05)
    speech.may_end.set()
    assert await asyncio.gather(*many) == ["2"] * len(many) and await other == "3"
    assert speech.heard[:3] in ([2, 3, 2], [2, 2, 3])
    assert await asyncio.create_task(transcribe("a", b"aaaa")) == "4"
    await transcriber.close()
