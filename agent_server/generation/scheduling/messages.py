"""What passes between the server and the engine's worker, in a process or a thread: frozen, small, in order."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_server.engine_protocol.protocol import (
    Control,
    Delta,
    EngineInfo,
    EngineStatus,
    Failure,
    Finished,
    GenerationRequest,
    Progress,
)

# to the worker; `number` names a generation, once in a worker's life


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    number: int
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody listens any more: no reply."""

    number: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    number: int


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    number: int


class Modify(msgspec.Struct, frozen=True, tag="modify"):
    """`changes` by the names of SamplingParams; already validated."""

    number: int
    changes: dict[str, Any]


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """A constraint is ready or failed; the worker's compiler tells its core."""

    number: int
    grammar: Any
    error: str | None = None


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """A generation's pictures and sounds are ready, or failed; the worker's own thread tells its core. media:
    MediaInputs."""

    number: int
    request: GenerationRequest
    media: Any = None
    failure: Failed | None = None


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Load a LoRA adapter; `number` is answered with Adopted or Failed."""

    number: int
    name: str
    folder: str


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """Take no more requests for a LoRA adapter; answered like Adopt."""

    number: int
    name: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Between two steps, say anything: an engine that reports nothing for long is taken for hung."""


class StopWorker(msgspec.Struct, frozen=True, tag="stop"):
    """End everything and go."""


Command = Submit | Cancel | Pause | Resume | Modify | Adopt | Abandon | Ping | StopWorker


# from the worker


class Failed(Failure, frozen=True, tag="failure"):
    """A generation, or what was asked about an adapter, ends with an EngineError."""


class Adopted(msgspec.Struct, frozen=True, tag="adopted"):
    """What was asked about an adapter is done."""


Reply = Delta | Control | Progress | Finished | Failed | Adopted


class Replies(msgspec.Struct, frozen=True, tag="replies"):
    """What one step yields, by the generations' numbers."""

    items: list[tuple[int, Reply]]


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    status: EngineStatus


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The model cannot be loaded, or the worker met a fault of ours and goes."""

    failure: Failed


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    values: dict[str, float]


Report = Replies | Loading | Ready | Broken | Measured
