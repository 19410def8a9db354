"""Settings of the generation core, of upstream engines and replicas, and of media."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator

from agent_server.settings.run_limits import RunLimits
from agent_server.settings.section import FIXED, Names, Option, Section, read_object
from agent_server.user import forward_of


def _check_loras(loras: tuple[str, ...]) -> tuple[str, ...]:
    for each in loras:
        name, _, folder = each.partition("=")
        if not name or not folder:
            raise ValueError(f"Invalid LoRA adapter {each!r}. Write name=folder")
    return loras


class ComputeSettings(Section):
    """Settings of the generation core. 0, "" and "auto" leave the choice to the loader."""

    title: ClassVar[str] = "Generation core"

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` or `mps`; auto takes CUDA if there is one, else Apple's GPU, else the CPU. With several
    (`cuda:0,cuda:1`) each gets a replica of the model."""
    dtype: str = "auto"
    """`bfloat16`, `float16` or `float32`; auto is bfloat16 on CUDA if the GPU supports it, and on a CPU that
    multiplies it for checkpoints of 16 bits that are not tiny; float32 on other CPUs, and beside the blocks of a GGUF
    file."""
    quantize: Literal["", "int8", "int4"] = ""
    """Quantise the weights when the model is loaded, to `int8` or `int4`, on a CPU; empty for the checkpoint's own."""
    threads: int = Field(0, ge=0)
    """CPU threads for one operation; 0 chooses by timing the model's steps: fewer where other processes use the cores,
    and one for a model below 20 million parameters."""
    trust_remote_code: bool = False
    """Run Python code that comes with a checkpoint, for architectures that transformers does not have."""
    kv_cache_dtype: str = "auto"
    """The type of cached keys and values on a CPU: `float32`, `bfloat16` or `float16`; auto is bfloat16 for bfloat16
    checkpoints if the CPU is fast with it. On a GPU it is the model's."""
    adapter: str = ""
    """Folder of a LoRA adapter, which is added to the weights."""
    lora: Annotated[Names, AfterValidator(_check_loras)] = ()
    """LoRA adapters beside the weights, each as `name=folder`; each is a model of that name."""
    max_batch: int = Field(64, gt=0)
    """Sequences that are generated at the same time."""
    max_queued: int = Field(512, ge=0)
    """Generations that may wait in the queue; more are refused as overloaded."""
    turns_ahead: int = Field(64, ge=0)
    """Earlier arrivals that a later turn of a run may overtake in the queue, so that a person in the middle of a task
    does not wait behind new arrivals; 0 keeps the order of arrival."""
    step_tokens: int = Field(0, ge=0)
    """Tokens of prompts and answers in one step of the engine; 0 is 4096 on CUDA and 512 elsewhere."""
    chunk_tokens: int = Field(0, ge=0)
    """Prompt tokens in a step in which other sequences decode, as long as fewer prompts than answers are in progress; 0
    is `step_tokens` and, with CUDA graphs, as many as make such a step a fifth longer or keep it below 10 ms, which is
    measured at the start."""
    kv_cache_bytes: int = Field(0, ge=0)
    """Bytes for cached keys and values; 0 to choose by the device's free memory."""
    max_context: int = Field(0, ge=0)
    """Tokens of prompt and answer together; 0 is the model's own limit."""
    num_speculative_tokens: int = Field(0, ge=0, le=32)
    """The most tokens per step that are predicted speculatively, for requests that do not set it; 0 predicts none, or 5
    with a draft model."""
    draft: str = ""
    """A smaller model with the same tokenizer for speculative decoding: folder, GGUF file or hub name."""
    kept_percent: int = Field(50, ge=0, le=100)
    """Percent of the memory for keys and values that may be kept for runs that wait for their tools or for a person.
    Other runs get it when they need it; 0 keeps nothing."""
    kept_seconds: float = Field(120, ge=0)
    """Seconds for which the memory of such a run is kept; 0 keeps nothing."""
    cuda_graphs: bool = True
    """Capture decoding in CUDA graphs."""


class ProcessSettings(Section):
    """The process of the embedded engine."""

    title: ClassVar[str] = "Generation core"

    engine_process: bool = True
    """Run the embedded engine in its own process, which is restarted if it fails; false runs it in a thread, for
    debugging."""
    step_time_limit: float = Field(120, gt=0)
    """Seconds without a report from the engine's process after which it is killed and restarted; it is not ready after
    half of them."""


class UpstreamSettings(Section):
    """Upstream engines, which are used over HTTP. total: seconds for one generation."""

    title: ClassVar[str] = "Upstream engines"
    prefix: ClassVar[str] = "engine_"

    key: SecretStr = SecretStr("")
    """API key for upstreams and workers; a key in a URL (`http://:KEY@host:8000`) is used instead."""
    connect: float = Field(5, gt=0)
    """Seconds to connect to an upstream."""
    idle: float = Field(30, gt=0)
    """Seconds of silence between two frames of a stream after which the upstream counts as lost."""
    first: float = Field(300, gt=0)
    """Seconds to wait for the first token while the upstream passes health checks."""
    start: float = Field(1800, gt=0)
    """Seconds that an upstream may take to load its model."""
    health: float = Field(5, gt=0)
    """Seconds between two health checks of an upstream."""
    forward: Annotated[dict[str, object], BeforeValidator(read_object)] = {}
    """Parts of a request that are forwarded to upstreams with its generations, as JSON: {"headers": ["x-team"],
    "claims": {"sub": "x-user"}, "user": "x-user-id"}. Nothing by default, and never keys or cookies."""
    check_tokenizer: bool = True
    """Check that an upstream tokenizes text as our tokenizer does; turn it off for GGUF files that differ only in
    that."""
    in_flight: int = Field(1024, gt=0)
    """Generations at once on one engine; further ones wait, see `engine_queued`."""
    total: Annotated[float, Option("run_time_limit")] = RunLimits().run_seconds

    @field_validator("forward")
    @classmethod
    def _policy(cls, policy: dict[str, object]) -> dict[str, object]:
        forward_of(policy)
        return policy


LONGER = 1.5
"""By this factor the limits on silence of replicas exceed those of their engines, whose errors are more specific and
should come first."""


class ReplicaSettings(Section):
    """Several engines that serve the same model.

    idle: the longest silence between two items of a stream. first_token: the longest silence before the first item,
    longer because an engine has a queue of its own. A paused generation may be silent. longest_cooldown: the limit of
    the doubled cooldown. prefixes: how many prompt blocks are remembered for choosing an engine.
    """

    title: ClassVar[str] = "Upstream engines"
    prefix: ClassVar[str] = "engine_"

    queued: int = Field(1024, ge=0)
    """Generations that may wait while every engine is full; more are refused as overloaded."""
    wait: float = Field(10, ge=0)
    """Seconds that a generation waits while no engine is available."""
    check: float = Field(1, gt=0)
    """Seconds between two checks of the engines."""
    resume: bool = True
    """Continue a generation on another engine if its engine is lost after the first token."""
    attempts: int = Field(4, gt=0)
    """The most attempts of one generation."""
    failures: int = Field(3, gt=0)
    """Consecutive failures after which an engine gets no generations for `engine_cooldown` seconds."""
    cooldown: float = Field(1, gt=0)
    """Seconds without generations after consecutive failures; doubled each time, up to 30."""
    affinity: float = Field(4, ge=0)
    """How many more generations in flight an engine may have than others and still be chosen because it has the whole
    prompt cached."""
    in_flight: int = UpstreamSettings().in_flight
    idle: Annotated[float, FIXED] = UpstreamSettings().idle * LONGER
    first_token: Annotated[float, FIXED] = UpstreamSettings().first * LONGER
    longest_cooldown: Annotated[float, FIXED] = 30.0
    prefixes: Annotated[int, FIXED] = 100_000


class MediaLimits(Section):
    """Limits on pictures, documents and sounds. pictures, sounds: per request. seconds: to fetch a part, and to decode
    one. redirects: the most that fetching follows."""

    title: ClassVar[str] = "Media"
    prefix: ClassVar[str] = "media_"

    hosts: Names = ()
    """Hosts (`name` or `name:port`) from which media are fetched, over https and at public addresses; without any,
    media must be sent as data."""
    bytes: int = Field(16 * 2**20, gt=0)
    """Bytes of one file: a picture, document or recording."""
    pixels: int = Field(50_000_000, gt=0)
    """Pixels of all pictures of a request together, including pages of documents."""
    pages: int = Field(200, gt=0)
    """Pages of all documents of a request together."""
    page_pictures: int = Field(20, ge=0)
    """How many first pages of each PDF a vision model also gets as pictures; 0 for only the text."""
    sound_seconds: int = Field(1800, gt=0)
    """Seconds of one recording, and of all sounds of a request together."""
    held_bytes: int = Field(2**30, gt=0)
    """Bytes of decoded media that all requests may hold at once; more is refused as overloaded."""
    pictures: Annotated[int, FIXED] = 64
    sounds: Annotated[int, FIXED] = 64
    seconds: Annotated[float, FIXED] = 10.0
    redirects: Annotated[int, FIXED] = 3

    @field_validator("hosts")
    @classmethod
    def _normalise_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Normalise hosts for comparison with those of URLs: lower case, without the root's dot."""
        return tuple(host.rstrip(".").lower() for host in hosts)
