"""Messages between the server and the engine's worker: configuration, commands, reports and metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
from agent_server.settings import ComputeSettings

# to the worker; `number` names a generation, once in a worker's life


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    number: int
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client disconnected; no reply is sent."""

    number: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    number: int


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    number: int


class Modify(msgspec.Struct, frozen=True, tag="modify"):
    """`changes` by the names of SamplingParams; already validated."""

    number: int
    changes: dict[str, Any]


class ConstraintCompiled(msgspec.Struct, frozen=True, tag="constraint_compiled"):
    """A constraint was compiled, or failed to compile. Sent by the worker's compiler to its core."""

    number: int
    grammar: Any
    error: str | None = None


class MediaPrepared(msgspec.Struct, frozen=True, tag="media_prepared"):
    """A generation's pictures and sounds are ready, or their preparation failed. Sent by the worker's media thread to
    its core. media: MediaInputs."""

    number: int
    request: GenerationRequest
    media: Any = None
    failure: RequestFailed | None = None


class LoadLora(msgspec.Struct, frozen=True, tag="load_lora"):
    """Load a LoRA adapter. The reply to `number` is LoraCommandDone or RequestFailed."""

    number: int
    name: str
    folder: str


class UnloadLora(msgspec.Struct, frozen=True, tag="unload_lora"):
    """Accept no more requests for a LoRA adapter. The reply is LoraCommandDone or RequestFailed."""

    number: int
    name: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Ask for any report between two steps: an engine that is silent for too long is considered hung."""


class StopWorker(msgspec.Struct, frozen=True, tag="stop"):
    """End all generations and exit."""


Command = Submit | Cancel | Pause | Resume | Modify | LoadLora | UnloadLora | Ping | StopWorker


# from the worker


class RequestFailed(Failure, frozen=True, tag="failure"):
    """A generation or a command for a LoRA adapter failed with an EngineError."""


class LoraCommandDone(msgspec.Struct, frozen=True, tag="lora_command_done"):
    """A command for a LoRA adapter succeeded."""


Reply = Delta | Control | Progress | Finished | RequestFailed | LoraCommandDone


class Replies(msgspec.Struct, frozen=True, tag="replies"):
    """The replies of one step, each with its generation's number."""

    items: list[tuple[int, Reply]]


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    status: EngineStatus


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo


class WorkerFailed(msgspec.Struct, frozen=True, tag="worker_failed"):
    """The model cannot be loaded, or the worker exits because of an internal error."""

    failure: RequestFailed


class MetricsReport(msgspec.Struct, frozen=True, tag="metrics"):
    values: dict[str, float]


Report = Replies | Loading | Ready | WorkerFailed | MetricsReport


class EngineConfig(ComputeSettings):
    """The operator's settings of the generation core, its model, and options that are not settings.

    model: folder or hub name. memory: "slab", "paged" or "auto". overlap: launch a step before the previous one's
    tokens have been read. run_ahead: compute the tokens that a grammar forces together in one step.
    flatten: record the model's forward and replay it as one list of operations; None does so for small models on the
    CPU as soon as the core is idle, and wherever Triton's kernels run.
    """

    model: str
    name: str = ""
    memory: str = "auto"
    overlap: bool | None = None
    run_ahead: bool = True
    flatten: bool | None = None


@dataclass(slots=True)
class Counters:
    """Counters, which only grow. Times in seconds."""

    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    forced_tokens_total: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    iterations_total: int = 0
    spec_decode_num_drafts_total: int = 0
    spec_decode_num_draft_tokens_total: int = 0
    spec_decode_num_accepted_tokens_total: int = 0
    time_to_first_token_seconds_sum: float = 0.0
    time_to_first_token_seconds_count: int = 0
    time_per_output_token_seconds_sum: float = 0.0
    time_per_output_token_seconds_count: int = 0
    request_queue_time_seconds_sum: float = 0.0
    request_queue_time_seconds_count: int = 0

    def values(self) -> dict[str, float]:
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}
