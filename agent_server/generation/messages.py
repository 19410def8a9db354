"""What passes between the server and the engine's worker, in a process or a thread: frozen, small, in order."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_server.engine.protocol import (
    Control,
    Delta,
    EngineError,
    EngineInfo,
    EngineStatus,
    ErrorKind,
    Finished,
    GenerationRequest,
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


class Pictured(msgspec.Struct, frozen=True, tag="pictured"):
    """A generation's pictures are ready, or failed; the worker's own thread tells its core. media: PictureInputs."""

    number: int
    request: GenerationRequest
    media: Any = None
    failure: Failure | None = None


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Load a LoRA adapter; `number` is answered with Adopted or a Failure."""

    number: int
    name: str
    folder: str


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """Take no more requests for a LoRA adapter; answered like Adopt."""

    number: int
    name: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Between two steps, say anything: an engine that reports nothing for long is taken for hung."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End everything and go."""


Command = Submit | Cancel | Pause | Resume | Modify | Adopt | Abandon | Ping | Stop


# from the worker


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """An EngineError on the wire."""

    kind: ErrorKind
    message: str
    retryable: bool = False
    param: str | None = None

    @classmethod
    def of(cls, error: EngineError) -> Failure:
        return cls(error.kind, error.message, error.retryable, error.param)

    def error(self) -> EngineError:
        return EngineError(self.kind, self.message, retryable=self.retryable, param=self.param)


class Adopted(msgspec.Struct, frozen=True, tag="adopted"):
    """What was asked about an adapter is done."""


Reply = Delta | Control | Finished | Failure | Adopted


class Replies(msgspec.Struct, frozen=True, tag="replies"):
    """What one step yields, by the generations' numbers."""

    items: list[tuple[int, Reply]]


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    status: EngineStatus


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The model cannot be loaded, or the worker met a fault of ours and goes."""

    failure: Failure


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    values: dict[str, float]


Report = Replies | Loading | Ready | Broken | Measured
