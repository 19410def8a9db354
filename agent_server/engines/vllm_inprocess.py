"""vLLM in this process (the extra `agent-server[vllm]`), for operators who want to start and watch one process only.

It uses the sampling parameters and grammars of the vLLM dialect, and reads how a generation ended in the same way. vLLM
still starts and manages child processes of its own (its engine core and its workers).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent_server.engine_protocol.continuation import as_prompt
from agent_server.engine_protocol.protocol import (
    CancelOnly,
    Delta,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    ErrorKind,
    GenerationRequest,
)
from agent_server.engines.upstream.connection import Upstream, admit, bounded
from agent_server.engines.upstream.dialects import Piece, UpstreamInfo
from agent_server.engines.upstream.dialects.dialect import cache_salt, sampling_fields
from agent_server.engines.upstream.dialects.vllm import SPELLING, VLLM, grammar_words
from agent_server.engines.upstream.errors import MAX_MESSAGE
from agent_server.engines.upstream.grammar import translate
from agent_server.engines.upstream.model import UpstreamModel
from agent_server.engines.upstream.output import Output
from agent_server.model_files import UnusableFile, read_json
from agent_server.settings import ComputeSettings, UpstreamSettings

logger = logging.getLogger("agent_server.engine")
MISSING = (
    "vLLM is not installed here: run pip install 'agent-server[vllm]', or start vLLM as a server and give its URL "
    "with --engine."
)

ARGUMENTS = {
    "dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_batch": "max_num_seqs",
    "step_tokens": "max_num_batched_tokens",
    "kv_cache_bytes": "kv_cache_memory_bytes",
    "max_context": "max_model_len",
}
"""vLLM's engine arguments for settings of the generation core that mean the same there."""
UNAVAILABLE = {
    "quantize": "serve a checkpoint that is quantised already, such as FP8 or AWQ, which vLLM reads by itself",
    "adapter": "merge the adapter into the checkpoint",
    "chunk_tokens": "set step_tokens, which becomes vLLM's max_num_batched_tokens",
}
"""Settings that vLLM in this process cannot honour, and what to do instead."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's max_lora_rank."""
DRAFT_TOKENS = 5
LOOKUP_TOKENS = 4


def engine_arguments(compute: ComputeSettings, own: Mapping[str, object]) -> dict[str, object]:
    """Return vLLM's engine arguments for the settings of the generation core.

    own: the operator's own engine arguments, which override the translated ones. Settings at their default leave the
    choice to vLLM. Raises ValueError with one sentence for a setting that vLLM cannot honour.
    """
    default = ComputeSettings()
    changed = {name for name in ComputeSettings.model_fields if getattr(compute, name) != getattr(default, name)}
    for name, instead in UNAVAILABLE.items():
        if name in changed:
            raise ValueError(f"--engine vllm does not take --{name.replace('_', '-')}: {instead}.")
    if compute.device not in ("auto", "cuda"):
        raise ValueError(
            f"--engine vllm does not take --device {compute.device}: choose GPUs with CUDA_VISIBLE_DEVICES, and their "
            "number with AGENT_SERVER_VLLM='{\"tensor_parallel_size\": 2}'."
        )
    # Without this policy vLLM refuses requests that have a priority.
    arguments: dict[str, object] = {"scheduling_policy": "priority"}
    arguments |= {argument: getattr(compute, name) for name, argument in ARGUMENTS.items() if name in changed}
    if not compute.cuda_graphs:
        arguments["enforce_eager"] = True
    if compute.draft:
        tokens = compute.num_speculative_tokens or DRAFT_TOKENS
        arguments["speculative_config"] = {"model": compute.draft, "num_speculative_tokens": tokens}
    elif compute.num_speculative_tokens:
        arguments["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": compute.num_speculative_tokens,
            "prompt_lookup_max": LOOKUP_TOKENS,
        }
    if compute.lora:
        folders = [source.partition("=")[2] for source in compute.lora]
        arguments |= {"enable_lora": True, "max_loras": len(folders), "max_lora_rank": lora_rank(folders)}
    return arguments | dict(own)


def lora_rank(folders: Iterable[str]) -> int:
    """Return vLLM's max_lora_rank for these adapters. Raises ValueError for an adapter whose rank is too large."""
    from agent_server.generation.lora.lora import CONFIGURATION

    highest = 1
    for folder in folders:
        try:
            config = read_json(Path(folder).expanduser() / CONFIGURATION)
        except UnusableFile as error:
            raise ValueError(f"The adapter cannot be loaded: {error}") from error
        ranks = [config.get("r", 0), *(config.get("rank_pattern") or {}).values()]
        highest = max(highest, *(rank for rank in ranks if isinstance(rank, int)))
    rank = next((rank for rank in LORA_RANKS if rank >= highest), None)
    if rank is None:
        raise ValueError(f"--engine vllm takes LoRA adapters of rank {LORA_RANKS[-1]} at most, not {highest}.")
    return rank


class VLLMEngine(CancelOnly):
    """load: reads the model's tokenizer and defaults, in a thread. arguments: vLLM's engine arguments by name (dtype,
    tensor_parallel_size, max_model_len ...). limit: the most generations at once; more are refused as overloaded. lora:
    LoRA adapters, each as `name=folder`."""

    def __init__(
        self,
        load: Callable[[], UpstreamModel],
        arguments: dict[str, Any] | None = None,
        limit: int = UpstreamSettings().in_flight,
        lora: Iterable[str] = (),
    ) -> None:
        self._load = load
        self._arguments = arguments or {}
        self._limit = limit
        self._status = EngineStatus(state="starting")
        self._upstream: Upstream | None = None
        self._llm: Any = None
        self._lora = tuple(lora)
        self._adapters: dict[str, Any] = {}
        """vLLM's LoRARequest of each adapter."""
        self._adapter_ids = itertools.count(1)
        self._running: dict[str, bool] = {}
        self._generated = 0
        self._prompted = 0
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        if self._upstream is None:
            raise EngineError("unavailable", self._status.message or "vLLM is not loaded yet.", retryable=True)
        return self._upstream.info

    @property
    def status(self) -> EngineStatus:
        if self._status.state == "ready" and self._llm.errored:
            return EngineStatus(state="failed", message="vLLM's engine died; start this server again.")
        return self._status

    async def start(self) -> None:
        self._status = EngineStatus(state="loading", progress=0.0, message="vLLM")
        try:
            model = await asyncio.to_thread(self._load)
            self._llm = await asyncio.to_thread(open_engine, model.source, self._arguments)
            for source in self._lora:
                name, _, folder = source.partition("=")
                await self._load_adapter(name, folder)
        except EngineError as error:
            self._status = EngineStatus(state="failed", message=error.message)
            raise
        self._upstream = describe(self._llm, model)
        info = self._upstream.info
        parts = ", ".join(f"{name} {value}" for name, value in info.details.items() if name != "slow")
        logger.info("%s: %s", info.model, parts)
        for sentence in info.details["slow"]:
            logger.warning("%s", sentence)
        self._status = EngineStatus(state="ready", progress=1.0)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._status = EngineStatus(state="stopped")
        if self._llm is not None:
            await self._llm.abort(list(self._running))
            await asyncio.to_thread(self._llm.shutdown)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter for generations that name it. It replaces one of the same name, with which running
        generations continue. Raises EngineError with one sentence."""
        if not self.info.adapters:
            message = "This engine was started without LoRA adapters: start it with --lora NAME=FOLDER."
            raise EngineError("invalid_request", message)
        await self._load_adapter(name, folder)

    async def _load_adapter(self, name: str, folder: str) -> None:
        adapter = await asyncio.to_thread(lora_request, name, next(self._adapter_ids), folder)
        try:
            await self._llm.add_lora(adapter)
        except Exception as error:
            message = f"vLLM cannot load the adapter {folder}: {_sentence(error)}"
            raise EngineError("unavailable", message) from error
        self._adapters[name] = adapter

    async def remove_adapter(self, name: str) -> None:
        """Accept no more generations for an adapter; running ones finish with it."""
        if self._adapters.pop(name, None) is None:
            raise EngineError("invalid_request", f"This engine has no adapter {name}.")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        admit(request, self, self._running, self._limit)
        adapter = self._adapters.get(request.adapter)
        if request.adapter and adapter is None:
            raise EngineError("invalid_request", f"This engine has no adapter {request.adapter}.", param="model")
        assert self._upstream is not None
        upstream = self._upstream
        grammar = await translate(request.constraint, upstream.served.grammar, upstream.model.controls)
        outgoing = upstream.outgoing(request, bounded(request, upstream), grammar)
        output = Output(upstream, outgoing)
        if output.ended:
            yield output.finished()
            return
        rest = as_prompt(msgspec.structs.replace(request, sampling=outgoing.sampling))
        params = sampling_params(rest.sampling, grammar_words(grammar))
        self._running[request.request_id] = False
        prompt: dict[str, object] = {"prompt_token_ids": list(rest.prompt_token_ids)}
        if salt := cache_salt(request.tenant, request.cache_salt):
            prompt["cache_salt"] = salt
        # vLLM serves the lowest number first.
        stream = self._llm.generate(
            prompt, params, request.request_id, lora_request=adapter, priority=-request.priority
        )
        try:
            async for step in stream:
                tokens = output.take(piece_of(step, request.sampling.logprobs))
                if tokens:
                    self._running[request.request_id] = True
                    yield Delta(tuple(tokens))
                if output.over:
                    break
            yield output.finished()
        except EngineError:
            raise
        except Exception as error:
            if is_bad_request(error):
                raise EngineError("invalid_request", _sentence(error)) from error
            # vLLM's EngineDeadError, or any other exception that vLLM raises.
            if self._closed:
                raise EngineError("unavailable", "The engine was closed.", retryable=True) from error
            kind: ErrorKind = "connection" if output.count > 0 else "unavailable"
            raise EngineError(kind, f"vLLM: {_sentence(error)}", retryable=True) from error
        finally:
            await stream.aclose()
            if not output.ended:
                await self._llm.abort(request.request_id)
            del self._running[request.request_id]
            self._prompted += len(request.prompt_token_ids)
            self._generated += output.count - len(request.generated)

    def metrics(self) -> dict[str, float]:
        running = sum(self._running.values())
        return {
            "num_requests_running": float(running),
            "num_requests_waiting": float(len(self._running) - running),
            "prompt_tokens_total": float(self._prompted),
            "generation_tokens_total": float(self._generated),
        }


def lora_request(name: str, number: int, folder: str) -> object:
    """Build vLLM's LoRARequest for a folder with an adapter. Raises EngineError if its files are not usable."""
    from vllm.lora.request import LoRARequest

    from agent_server.generation.lora.lora import check_adapter

    check_adapter(folder)
    return LoRARequest(name, number, str(Path(folder).expanduser()))


def open_engine(source: str, arguments: dict[str, object]) -> object:
    """Load the model; blocks until it is loaded. Raises EngineError."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise EngineError("unavailable", MISSING) from error
    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(model=source, **arguments))
    except Exception as error:
        message = f"vLLM cannot load {source} (--engine embedded does without it): {_sentence(error)}"
        raise EngineError("unavailable", message) from error


def is_bad_request(error: Exception) -> bool:
    """Return whether vLLM refused the request, rather than failed."""
    from vllm import exceptions

    names = ("VLLMClientError", "VLLMValidationError")
    # Which of these classes exist depends on vLLM's version.
    refusals = [refusal for name in names if (refusal := getattr(exceptions, name, None)) is not None]
    return isinstance(error, (ValueError, *refusals))


def describe(llm: Any, model: UpstreamModel) -> Upstream:
    """Describe the loaded engine in the form in which servers are described over HTTP."""
    from vllm.platforms import current_platform

    from agent_server.generation.device import NO_COMPILER, find_compiler

    config = llm.model_config
    compiler = find_compiler()
    slow = [] if compiler else [NO_COMPILER]
    if config.enforce_eager:
        slow.append("Steps are not captured in CUDA graphs: enforce_eager is set, or the setting cuda_graphs is off.")
    lengths = [length for length in (config.max_model_len, model.context_length) if length]
    served = UpstreamInfo(
        model=model.name,
        context_length=config.max_model_len,
        vocab_size=config.get_vocab_size(),
        grammar="llguidance",
    )
    info = EngineInfo(
        model=model.name,
        context_length=min(lengths),
        vocab_size=config.get_vocab_size(),
        sampling=frozenset(VLLM.words),
        supports_constraints=True,
        supports_pause=False,
        supports_modify=False,
        continues="plain",
        adapters=llm.vllm_config.lora_config is not None,
        details={
            "engine": "vllm",
            "device": current_platform.device_type,
            "dtype": str(config.dtype).removeprefix("torch."),
            "cuda_graphs": current_platform.is_cuda() and not config.enforce_eager,
            "compiler": compiler,
            "slow": slow if current_platform.is_cuda() else [],
            "ids": True,
        },
    )
    return Upstream(dialect=VLLM(), served=served, model=model, info=info)


def sampling_params(sampling: Any, grammar: dict[str, Any] | None) -> Any:
    """Build vLLM's own SamplingParams from the fields that its HTTP endpoint takes."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    words = {**sampling_fields(VLLM.words, sampling), **SPELLING}
    if "logit_bias" in words:
        words["logit_bias"] = dict(sampling.logit_bias)
    if grammar is not None:
        words["structured_outputs"] = StructuredOutputsParams(**grammar)
    return SamplingParams(
        **{name: list(value) if isinstance(value, tuple) else value for name, value in words.items()},
        output_kind=RequestOutputKind.DELTA,
    )


def piece_of(step: Any, alternatives: int | None) -> Piece:
    """Return the new tokens of a vLLM RequestOutput."""
    output = step.outputs[0]
    piece = Piece(
        ids=list(output.token_ids),
        finish=output.finish_reason,
        stop=output.stop_reason,
        cached=step.num_cached_tokens,
    )
    if alternatives is not None and output.logprobs is not None:
        rows = [(number, row) for number, row in zip(output.token_ids, output.logprobs, strict=True)]
        piece.logprobs = [row[number].logprob for number, row in rows]
        ranked = (
            sorted(((number, each.logprob) for number, each in row.items()), key=lambda pair: -pair[1])
            for _, row in rows
        )
        piece.alternatives = [pairs[:alternatives] for pairs in ranked]
    return piece


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:MAX_MESSAGE]
