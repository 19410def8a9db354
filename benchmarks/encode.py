"""Building and encoding one delta event: ours beside the SDK's, in one run.

    python benchmarks/encode.py

Prints microseconds per event (the best of several rounds, which is the least disturbed one) and the ratio. The aim is
at most 5 µs for ours.
"""

from __future__ import annotations

import timeit

from ag_ui.core import TextMessageContentEvent
from ag_ui.encoder import EventEncoder

from adapters.agui import SseEncoder
from events.encode import encode
from events.vocabulary import TextMessageContent

ROUNDS, EVENTS = 7, 5000
SDK = EventEncoder()
OURS = SseEncoder()
TOKENS = {"tokens": [[1234, " hello", -0.123456, [[1234, " hello", -0.123456], [99, " world", -3.5]]]]}


def build_and_encode() -> bytes:
    return encode(TextMessageContent(message_id="msg-0123456789", delta=" hello"))


def build_and_frame() -> bytes:
    return OURS.encode(TextMessageContent(message_id="msg-0123456789", delta=" hello"), sequence=17)


def build_and_encode_details() -> bytes:
    return encode(TextMessageContent(message_id="msg-0123456789", delta=" hello", metadata=TOKENS))


def sdk() -> str:
    return SDK.encode(TextMessageContentEvent(message_id="msg-0123456789", delta=" hello"))


def sdk_details() -> str:
    return SDK.encode(TextMessageContentEvent(message_id="msg-0123456789", delta=" hello", metadata=TOKENS))


def microseconds(function) -> float:
    return min(timeit.repeat(function, number=EVENTS, repeat=ROUNDS)) / EVENTS * 1e6


def main() -> None:
    cases = [
        ("event to JSON", build_and_encode, sdk),
        ("event to SSE frame with id", build_and_frame, sdk),
        ("event with token details", build_and_encode_details, sdk_details),
    ]
    print(f"{'build and encode one delta':32}{'ours':>10}{'SDK':>10}{'ratio':>8}")
    for name, ours, theirs in cases:
        mine, other = microseconds(ours), microseconds(theirs)
        print(f"{name:32}{mine:8.2f}µs{other:8.2f}µs{other / mine:7.1f}x")


if __name__ == "__main__":
    main()
