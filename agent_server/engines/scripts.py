"""Scripts of the scripted engine: the text or tokens of a generation, its pace, and its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from agent_server.engine_protocol.protocol import ErrorKind, FinishReason, GenerationRequest


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong after `after` tokens.

    "error" raises EngineError(kind); "end" ends the stream without Finished; "hang" yields no further item; "cancelled"
    ends with Finished(reason="cancelled") although the reader did not cancel; "crash" raises an exception that is not
    an EngineError.
    """

    action: Literal["error", "end", "hang", "cancelled", "crash"]
    after: int = 0
    kind: ErrorKind = "internal"
    message: str = "The scripted engine fails here."
    retryable: bool = False


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. `text` is encoded and used if `tokens` is empty.

    first_delay, delay: seconds before the first item and before every further one. chunk: tokens in one Delta. paced:
    tokens become due on schedule even while the reader is busy, as in an engine with its own process; those that are
    overdue come in one item. reason: how the generation ends after the last token; None repeats the tokens until a
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
        text="<think>\nNo model is loaded, so I follow a script.\n</think>\n\n"
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
    """The scripts in turn, whatever the request is."""
    turn = iter(range(1 << 62))
    return lambda request: scripts[next(turn) % len(scripts)]


def load_scripts(data: bytes) -> tuple[Script, ...]:
    """Read a JSON list of scripts, or one script. Raises msgspec.ValidationError, which names the fault."""
    return msgspec.json.decode(data if data.lstrip().startswith(b"[") else b"[" + data + b"]", type=tuple[Script, ...])
