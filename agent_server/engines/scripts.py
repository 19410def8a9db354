"""What a scripted engine plays: the text or tokens of a generation, its pace, and what goes wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from agent_server.engine.protocol import ErrorKind, FinishReason, GenerationRequest


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong after `after` tokens.

    "error" raises EngineError(kind); "end" ends the stream without Finished; "hang" never yields again; "cancelled"
    finishes with that reason though nobody asked; "crash" raises an exception that is no EngineError.
    """

    action: Literal["error", "end", "hang", "cancelled", "crash"]
    after: int = 0
    kind: ErrorKind = "internal"
    message: str = "The scripted engine fails here."
    retryable: bool = False


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. `text` is encoded where `tokens` is empty.

    first_delay, delay: seconds before the first item and before every further one. chunk: tokens in one Delta.
    paced: the delays go on whether or not anybody takes the tokens, as in an engine that is a process of its own; what
    was not taken in time comes in one item. reason: how it ends when the tokens run out; None repeats them until a
    limit ends it.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    first_delay: float = 0.0
    delay: float = 0.0
    chunk: int = 1
    paced: bool = False
    reason: FinishReason | None = "stop"
    cached_tokens: int = 0
    logprob: float = -0.5
    fault: Fault | None = None


Scripts = Callable[[GenerationRequest], Script]

DEMONSTRATION = (
    Script(
        text="<think>\nNobody loaded a model, so I follow a script.\n</think>\n\n"
        "This answer is scripted. It shows reasoning, text and streaming without a model behind it.",
        first_delay=0.2,
        delay=0.02,
    ),
    Script(
        text="<think>\n\n</think>\n\nA second scripted answer, in **Markdown**:\n\n- one\n- two\n\n"
        "```python\nprint(3)\n```",
        first_delay=0.1,
        delay=0.01,
    ),
)


def cycle(scripts: Sequence[Script]) -> Scripts:
    """The scripts in turn, whatever is asked."""
    turn = iter(range(1 << 62))
    return lambda request: scripts[next(turn) % len(scripts)]


def load_scripts(data: bytes) -> tuple[Script, ...]:
    """A JSON list of scripts, or one; msgspec.ValidationError names what is wrong."""
    return msgspec.json.decode(data if data.lstrip().startswith(b"[") else b"[" + data + b"]", type=tuple[Script, ...])
