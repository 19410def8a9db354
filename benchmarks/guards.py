"""What guards cost: a token of a stream, and a document, with and without them.

    python benchmarks/guards.py [--tokens 20000] [--rounds 5]

A stream's deltas go through guards as in a run: twenty phrases and a pattern (RE2), and a function that is asked at the
end of each sentence. A document of 400,000 characters is hashed and read by the same phrases, the first time and again.
Printed: microseconds a token, beside a stream that is watched by no guard (a server without guards has not even that);
milliseconds for the document, the first time and when it is known.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agent_server.agents.guardrails import Guard, GuardedStream, Guards, HookGuard, PatternGuard
from events.vocabulary import TextMessageContent

WORDS = ("The ", "quick ", "grey ", "fox ", "jumps ", "over ", "12", "34", " dogs", ". ")
PHRASES = [f"grey {name}" for name in ("goose", "heron", "whale", "wolf", "seal", "owl", "hare", "crane", "tit", "jay")]
PHRASES += [f"{number} herons" for number in range(10)]
CARD = r"\b(?:\d[ -]?){15}\d\b"
DOCUMENT = 400_000


def deltas(count: int) -> list[TextMessageContent]:
    return [TextMessageContent(message_id="m", delta=WORDS[at % len(WORDS)]) for at in range(count)]


async def streamed(guards: Sequence[Guard], events: Sequence[TextMessageContent]) -> None:
    stream = GuardedStream(Guards(guards))
    for event in events:
        await stream.take(event)


async def timed(work: Callable[[], Awaitable[None]], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await work()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


async def measure(tokens: int, rounds: int) -> None:
    patterns = PatternGuard("patterns", phrases=PHRASES, patterns=[CARD])
    function = HookGuard("function", lambda text: "swan" in text[-400:])
    events = deltas(tokens)
    plain = await timed(lambda: streamed([], events), rounds)
    for name, guards in (("no guard", []), ("phrases and a pattern", [patterns]), ("a function", [function])):
        took = await timed(lambda guards=guards: streamed(guards, events), rounds)
        print(f"{name:24} {took / tokens * 1e6:6.2f} µs a token, {took / plain:.1f} times no guard")
    text = "".join(WORDS) * (DOCUMENT // len("".join(WORDS)))

    async def checked(guards: Guards) -> None:
        await guards.check_document([("Document a.txt:\n" + text, text)], "prompt")

    first = await timed(lambda: checked(Guards([patterns])), rounds)
    known = Guards([patterns])
    await checked(known)
    again = await timed(lambda: checked(known), rounds)
    told = f"read in {first * 1e3:.2f} ms, again in {again * 1e3:.2f} ms ({first / again:.1f} times shorter)"
    print(f"a document of {len(text):,} characters: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(measure(given.tokens, given.rounds))


if __name__ == "__main__":
    main()
