"""Events to frames: how many a second one core encodes on each wire, beside the models of the openai package.

    python benchmarks/wires.py [--seconds 0.5]

One run of 400 text deltas is encoded over and over. The peer builds the openai package's own ChatCompletionChunk for
each delta and serialises it, as servers on pydantic do. All of it in one process, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDelta

sys.path.insert(0, str(Path(__file__).parents[1]))

from adapters import agui
from adapters.anthropic_messages import MessageIdentity, MessageStream
from adapters.generate import GenerateFlags, GenerateStream, Identity, Options
from adapters.openai_chat import ChatFlags, ChatIdentity, ChatStream
from adapters.openai_completions import CompletionFlags, CompletionIdentity, CompletionStream
from adapters.openai_responses import ResponseIdentity, ResponseStream
from events.vocabulary import (
    Event,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
)

DELTAS = 400


def run_of(deltas: int) -> list[Event]:
    return [
        RunStarted(thread_id="t", run_id="r"),
        TextMessageStart(message_id="m", role="assistant"),
        *(TextMessageContent(message_id="m", delta=f" word{number % 97}") for number in range(deltas)),
        TextMessageEnd(message_id="m"),
        RunFinished(thread_id="t", run_id="r", usage=[TokenUsage(input_tokens=9, output_tokens=deltas)]),
    ]


CHAT = ChatIdentity(id="chatcmpl-1", model="m", created=7)
SHORT = GenerateFlags(options=Options(include_generated_text=False))
ENCODERS: dict[str, Callable[[], object]] = {
    "chat completions": lambda: ChatStream(CHAT, ChatFlags(include_usage=True)),
    "completions": lambda: CompletionStream(
        CompletionIdentity(id="cmpl-1", model="m", created=7), CompletionFlags(prompts=("p",))
    ),
    "responses": lambda: ResponseStream(ResponseIdentity(id="resp_1", model="m", created=7)),
    "anthropic messages": lambda: MessageStream(MessageIdentity(id="msg_1", model="m")),
    "generate": lambda: GenerateStream(Identity(request_id="gen_1", model="m"), SHORT, time.monotonic),
    "generate, text so far": lambda: GenerateStream(
        Identity(request_id="gen_1", model="m"), GenerateFlags(), time.monotonic
    ),
    "ag-ui": agui.SseEncoder,
}


def encode(make: Callable[[], object], events: Sequence[Event]) -> None:
    encoder = make()
    for number, event in enumerate(events, 1):
        encoder.encode(event, sequence=number)
    encoder.finish()


def peer(events: Sequence[Event]) -> None:
    for event in events:
        if isinstance(event, TextMessageContent):
            chunk = ChatCompletionChunk(
                id="chatcmpl-1",
                object="chat.completion.chunk",
                created=7,
                model="m",
                choices=[Choice(index=0, delta=ChoiceDelta(content=event.delta), finish_reason=None)],
            )
            f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()


def microseconds(work: Callable[[], None], seconds: float) -> float:
    """The best time of one delta over several rounds."""
    best = float("inf")
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best / DELTAS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each wire")
    seconds = parser.parse_args().seconds
    events = run_of(DELTAS)
    base = microseconds(lambda: peer(events), seconds)
    print(f"{'wire':24} {'us a delta':>10} {'deltas/s':>12} {'times the peer':>15}")
    print(f"{'openai package, pydantic':24} {base:10.2f} {1e6 / base:12,.0f} {1.0:15.1f}")
    for name, make in ENCODERS.items():
        cost = microseconds(lambda make=make: encode(make, events), seconds)
        print(f"{name:24} {cost:10.2f} {1e6 / cost:12,.0f} {base / cost:15.1f}")


if __name__ == "__main__":
    main()
