"""Load a folder or a hub name into a core that is ready to generate, with progress and one-sentence errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import SOUND_RATE, EngineError, EngineInfo, EngineStatus
from agent_server.generation.core.constraint import Compiler, ConstraintError
from agent_server.generation.core.generation import HONOURED, CoreLimits, Defaults
from agent_server.generation.core.step import Core
from agent_server.generation.core.threads import ThreadChoice
from agent_server.generation.device import (
    DTYPES,
    NO_COMPILER,
    choose_cache_dtype,
    choose_device,
    choose_dtype,
    find_compiler,
    indexed,
    weight_bytes,
)
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.faults import first_line
from agent_server.generation.loading.draft_model import DRAFT_TOKENS, load_draft, make_draft
from agent_server.generation.loading.linear_layers import parameter_count
from agent_server.generation.loading.memory_plan import (
    InsufficientMemory,
)
from agent_server.generation.loading.probe import UnpackableModel, fit_media
from agent_server.generation.loading.runner_choice import SMALL_PARAMETERS, choose_runner, is_small
from agent_server.generation.loading.weights import (
    SEVERAL_GPUS,
    Report,
    check_files,
    check_memory,
    check_source,
    in_blocks,
    load_weights,
    read_configuration,
)
from agent_server.generation.lora.lora import Loras
from agent_server.generation.multimodal.language import InnerTextModel, has_audio, has_vision, image_token
from agent_server.generation.multimodal.media_reader import UnreadableMedia
from agent_server.generation.multimodal.multimodal import Multimodal, Readers
from agent_server.generation.multimodal.picture_reader import load_picture_reader
from agent_server.generation.multimodal.sound_reader import load_sound_reader
from agent_server.generation.sampling.fused_sampler import FusedSampler, make_sampler
from agent_server.generation.sampling.sampler import Sampler
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.scheduler import Scheduler
from agent_server.model_files import ModelFiles, control_tokens, load_model_files

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

PACKED_ONLY = frozenset({"prompt_logprobs", "num_speculative_tokens"})
"""Parameters that only packed batches support."""


def engine_info(
    config: EngineConfig,
    core: Core,
    model: PreTrainedModel | InnerTextModel,
    device: torch.device,
    *,
    context: int,
    vocab_size: int,
    batching: str,
    slow: list[str],
) -> EngineInfo:
    """Describe the engine for the server, its clients and the operator. context: in tokens. batching: how and why
    sequences share a step if they are not packed; empty if they are. slow: a sentence about each part that is slower
    than it could be."""
    runner, scheduler = core.runner, core.scheduler
    packed = runner if isinstance(runner, PackedRunner) else None
    readers = {} if core.multimodal is None else core.multimodal.readers
    sounds = None if core.multimodal is None else core.multimodal.sounds
    fused = packed is not None and packed.flat is not None and isinstance(packed.memory, PagedMemory)
    # The model's own caches are not allocated in advance and do not count.
    cache_tensors = () if packed is None else (*packed.cache.keys, *packed.cache.values)
    memory_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *cache_tensors))
    return EngineInfo(
        model=config.name or config.model,
        context_length=context,
        vocab_size=vocab_size,
        sampling=HONOURED if packed is not None else HONOURED - PACKED_ONLY,
        supports_constraints=core.compiler is not None,
        continues="exact",
        cache_hold_seconds=config.kept_seconds if config.kept_percent else 0.0,
        adapters=packed is not None,
        tells_progress=True,
        placeholders={kind: reader.placeholder for kind, reader in readers.items()},
        sound_rate=SOUND_RATE if sounds is None else sounds.rate,
        sound_seconds=0 if sounds is None else sounds.seconds,
        details={
            "engine": "embedded",
            "device": str(device),
            "attention": "torch" if packed is None or packed.kernel is None else packed.kernel.name,
            "fused_layers": fused,
            "cuda_graphs": packed is not None and packed.graphs is not None,
            "fused_sampler": isinstance(core.sampler, FusedSampler),
            "compiler": find_compiler(),
            "slow": slow,
            "architecture": type(getattr(model, "whole", model)).__name__,
            "parameters": parameter_count(model),
            "memory_bytes": memory_bytes,
            "dtype": str(model.dtype).removeprefix("torch."),
            "batching": batching or "packed",
            "kv_cache_dtype": config.kv_cache_dtype,
            "kv_cache_tokens": runner.memory.longest if packed is None else packed.cache.tokens,
            "step_tokens": scheduler.step_tokens,
            "chunk_tokens": scheduler.chunk_tokens or scheduler.step_tokens,
            "quantized": config.quantize or "no",
            "flat": packed is not None and packed.flat is not None,
            "draft": config.draft or "no",
        },
    )


logger = logging.getLogger("agent_server.generation")
MakeCompiler = Callable[[ModelFiles, int], Compiler | None]
DEFAULT_CONTEXT = 4096
UNSUPPORTED = (
    "bad_words_ids", "begin_suppress_tokens", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "guidance_scale", "max_time", "min_length", "min_new_tokens", "no_repeat_ngram_size", "penalty_alpha",
    "sequence_bias", "stop_strings", "top_h", "watermarking_config",
)  # fmt: skip
"""Settings of a generation_config that no sampler here supports."""
NUMBERS = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "max_new_tokens")
"""Numeric settings of a generation_config, which transformers does not check."""
STEP_TOKENS, CUDA_STEP_TOKENS = 512, 4096
"""Tokens of a step if the settings name none."""


def load(config: EngineConfig, report: Report, compiler: MakeCompiler | None = None) -> tuple[Core, EngineInfo]:
    """Load the model. Raises EngineError, whose message is a sentence for the person who started the server.

    compiler: makes the compiler of constraints from the model's files and the size of the vocabulary.
    """
    try:
        report(EngineStatus(state="loading", progress=0.0, message="configuration"))
        check_source(config.model)
        settings = read_configuration(config.model, trusted=config.trust_remote_code)
        device = choose_device(config.device)
        unpacked = check_files(config.model, settings, device)
        slow = [unpacked] if unpacked and device.type == "cuda" else []
        if unpacked and not slow:
            logger.info("%s", unpacked)
        if device.type == "cuda":  # the device of this thread's streams, events and graphs
            torch.cuda.set_device(device)
        if config.quantize and device.type != "cpu":
            raise EngineError(
                "unavailable",
                f"--quantize {config.quantize} is for CPUs, not for {device}. Serve an FP8 or AWQ checkpoint of the "
                "model with --engine vllm, which has kernels for them.",
            )
        # Half precision pays if the checkpoint is stored in it, and if the model is large enough to be faster. It does
        # not pay for matrices in blocks: ggml rounds float32 activations to 8 bits, whatever they were before.
        stored = getattr(settings.get_text_config(), "dtype", None) or settings.dtype
        parameters = weight_bytes(Path(config.model).expanduser(), torch.float32) // torch.float32.itemsize
        gains = not 0 < parameters < SMALL_PARAMETERS and not in_blocks(config, device, whole=True)
        dtype = choose_dtype(config.dtype, device, halved=gains and stored in (torch.bfloat16, torch.float16))
        check_memory(config, dtype, device)
        model = load_weights(config, settings, device, dtype, report)
        stored = settings.get_text_config().dtype if config.dtype == "auto" else None
        cache_dtype = choose_cache_dtype(config.kv_cache_dtype, computed=model.dtype, stored=stored, device=device)
        cache_dtype_name = next(name for name, each in DTYPES.items() if each == cache_dtype)
        config = config.model_copy(update={"kv_cache_dtype": cache_dtype_name})
        report(EngineStatus(state="loading", progress=0.95, message="tokenizer"))
        try:
            files = load_model_files(config.model, trusted=config.trust_remote_code)
        except FileNotFoundError as error:
            message = f"{config.model} has no tokenizer that can be read: {first_line(error)}"
            raise EngineError("unavailable", message) from error
        draft = load_draft(config, files, device, dtype, report)
        return assemble(config, model, files, device, compiler, report, _readers(config, model, files), draft, slow)
    except EngineError:
        raise
    except InsufficientMemory as error:
        raise EngineError("out_of_memory", f"{config.model} does not fit: {error}{SEVERAL_GPUS}") from None
    except (torch.OutOfMemoryError, MemoryError):
        raise EngineError("out_of_memory", f"Too little memory to load {config.model}.") from None
    except ImportError as error:
        raise EngineError(
            "unavailable", f"{config.model} needs a package that is not installed: {first_line(error)}"
        ) from error
    except Exception as error:
        raise EngineError("unavailable", f"Cannot load {config.model}: {first_line(error)}") from error


def _readers(config: EngineConfig, model: PreTrainedModel, files: ModelFiles) -> Readers:
    """Load the readers of the model's pictures and sounds. If one is not available, the log says why."""
    name, tokenizer = config.name or config.model, files.tokenizer
    pictures, sounds = None, None
    if has_vision(model):
        try:
            pictures = load_picture_reader(config.model, tokenizer, image_token(model.config))
        except UnreadableMedia as reason:
            logger.warning("%s takes no pictures: %s.", name, reason)
    if has_audio(model):
        try:
            sounds = load_sound_reader(config.model, tokenizer)
        except UnreadableMedia as reason:
            logger.warning("%s takes no sounds: %s.", name, reason)
    return Readers(pictures, sounds)


# assembly


def assemble(
    config: EngineConfig,
    model: PreTrainedModel,
    files: ModelFiles,
    device: torch.device,
    make_compiler: MakeCompiler | None,
    report: Report = lambda status: None,
    readers: Readers | None = None,
    draft: PreTrainedModel | None = None,
    slow: Iterable[str] = (),
) -> tuple[Core, EngineInfo]:
    """Build the core for a loaded model, on its device and in evaluation mode. readers: those of pictures and sounds.
    draft: a smaller model for speculative decoding. slow: a sentence about each part that is known to be slower than it
    could be; those that are found here join them."""
    slow = list(slow)
    device = indexed(device)
    model = InnerTextModel(model) if has_vision(model) or has_audio(model) else model
    text = model.config.get_text_config()
    threads = _choose_threads(config, model, device)
    context = _context_length(config, getattr(text, "max_position_embeddings", None) or 0)
    vocabulary = TokenizerVocabulary(files.tokenizer)
    sampler = make_sampler(config.max_batch, text.vocab_size, device, slow)
    budget = config.step_tokens or (CUDA_STEP_TOKENS if device.type == "cuda" else STEP_TOKENS)
    # LoRA weights are loaded before the free memory is divided.
    loras = Loras(model, config.model)
    for entry in config.lora:
        name, _, folder = entry.partition("=")
        loras.load(name, folder)
    drafts = (
        None
        if draft is None
        else make_draft(config, draft, device, slow, context=context, vocab_size=text.vocab_size, step_tokens=budget)
    )
    runner, note, budget = choose_runner(config, model, context, sampler, budget, slow, readers)
    packed = runner if isinstance(runner, PackedRunner) else None
    if packed is not None:
        packed.loras = loras
        loras.attach(model)
    elif config.lora:
        raise EngineError("unavailable", f"{config.model} takes no --lora: it is decoded {note}; give --adapter.")
    multimodal = _multimodal(config, model, packed, readers) if readers else None
    scheduler = Scheduler(
        runner.memory,
        max_running=config.max_batch,
        step_tokens=budget,
        chunked=runner.chunked,
        turns_ahead=config.turns_ahead,
        chunk_tokens=config.chunk_tokens,
    )
    if packed is not None and config.cuda_graphs and packed.capturable:
        _capture_steps(config, packed, scheduler, sampler, context, report, slow)
    compiler = (make_compiler or _compiler)(files, text.vocab_size)
    defaults = defaults_of(model, files.stop_token_ids)
    speculative_tokens = config.num_speculative_tokens or (DRAFT_TOKENS if config.draft else 0)
    if speculative_tokens and packed is not None:
        defaults = replace(defaults, num_speculative_tokens=speculative_tokens)
    elif speculative_tokens:
        slow.append(f"{config.name or config.model} does not speculate: tokens cannot be removed from its own caches.")
    core = Core(
        runner=runner,
        scheduler=scheduler,
        sampler=sampler,
        vocabulary=vocabulary,
        defaults=defaults,
        limits=CoreLimits(context, text.vocab_size, config.max_queued),
        compiler=compiler,
        multimodal=multimodal,
        loras=None if packed is None else loras,
        draft_model=drafts if packed is not None else None,
        overlap=device.type == "cuda" if config.overlap is None else config.overlap,
        run_ahead=config.run_ahead and packed is not None,
        threads=threads,
        record=None if packed is None else packed.record,
    )
    runner.memory.leases.limit(config.kept_percent / 100)
    if device.type == "cuda":
        if not find_compiler():
            slow.insert(0, NO_COMPILER)
        if packed is not None and packed.capturable and not config.cuda_graphs:
            slow.append("Steps are not captured in CUDA graphs: the setting cuda_graphs is off.")
        if config.lora:
            slow.append("Steps with a LoRA adapter are neither fused nor captured in CUDA graphs.")
    slow = list(dict.fromkeys(slow))  # the draft model's are often the same
    info = engine_info(
        config, core, model, device, context=context, vocab_size=text.vocab_size, batching=note, slow=slow
    )
    parts = ", ".join(f"{name} {value}" for name, value in info.details.items() if name != "slow")
    logger.info("%s: %s", info.model, parts)
    for sentence in slow:
        logger.warning("%s", sentence)
    return core, info


def _choose_threads(config: EngineConfig, model: PreTrainedModel, device: torch.device) -> ThreadChoice | None:
    """Set the number of torch's threads, or return what chooses it while the model runs."""
    if config.threads or (device.type == "cpu" and is_small(model)):
        # A small model uses one thread: its operations end before a second thread has started, and waiting for that
        # thread costs more than it saves, especially on a machine with other work.
        torch.set_num_threads(config.threads or 1)
        return None
    return ThreadChoice(torch.get_num_threads()) if device.type == "cpu" else None


def _context_length(config: EngineConfig, longest: int) -> int:
    """Return the tokens of a conversation. longest: what the model is made for, 0 if that is not known. Raises
    EngineError."""
    if longest and config.max_context > longest:
        raise EngineError(
            "unavailable",
            f"--max-context {config.max_context} is more than the {longest} tokens that the model is made for "
            "(max_position_embeddings in its config.json); give at most that.",
        )
    return config.max_context or longest or DEFAULT_CONTEXT


def _capture_steps(
    config: EngineConfig,
    runner: PackedRunner,
    scheduler: Scheduler,
    sampler: Sampler,
    context: int,
    report: Report,
    slow: list[str],
) -> None:
    """Capture the runner's steps in CUDA graphs. Chunks of prompts get the size of the captured ones."""

    def on_progress(share: float) -> None:
        report(EngineStatus(state="loading", progress=0.95 + 0.05 * share, message="graphs"))

    chunk_tokens, step_tokens = config.chunk_tokens, scheduler.step_tokens
    runner.capture(sampler.last, context, on_progress, slow, chunk_tokens=chunk_tokens, step_tokens=step_tokens)
    scheduler.chunk_tokens = runner.graphs.chunk_tokens if runner.graphs is not None else chunk_tokens


def _multimodal(
    config: EngineConfig, model: InnerTextModel, runner: PackedRunner | None, readers: Readers
) -> Multimodal | None:
    """Return the multimodal part, without pictures or sounds that do not reproduce the model's own logits. The log says
    why."""
    name = config.name or config.model
    working: dict[str, Multimodal] = {}
    for noun, alone in (("pictures", Readers(pictures=readers.pictures)), ("sounds", Readers(sounds=readers.sounds))):
        try:
            if alone and runner is None:
                raise UnpackableModel("it is decoded one sequence at a time")
            if alone and runner is not None:
                working[noun] = fit_media(model, runner.cache.layers, alone)
        except UnpackableModel as reason:
            logger.warning("%s takes no %s: %s.", name, noun, reason)
    if runner is None or not working:
        return None
    bidirectional = working["pictures"].bidirectional if "pictures" in working else None
    usable = Readers(
        readers.pictures if "pictures" in working else None, readers.sounds if "sounds" in working else None
    )
    runner.multimodal = Multimodal(model, usable, bidirectional=bidirectional)
    return runner.multimodal


def _compiler(files: ModelFiles, vocab_size: int) -> Compiler | None:
    """Return the grammar compiler for this vocabulary; None if its tokenizer is not supported."""
    from agent_server.generation.core.grammar import GrammarBackend

    try:
        controls = control_tokens(files.tokenizer, files.templates.values())
        return Compiler(GrammarBackend(files.tokenizer, vocab_size, files.stop_token_ids, controls))
    except ConstraintError as error:
        logger.warning("%s Output will not be constrained.", error)
        return None


def defaults_of(model: PreTrainedModel, ends: Iterable[int] = ()) -> Defaults:
    """Read the defaults in the model's generation_config; greedy only if it says so. ends: further tokens that end a
    generation."""
    generation: GenerationConfig | None = model.generation_config
    values = generation.to_diff_dict() if generation is not None else {}
    for name in NUMBERS:
        if not isinstance(values.get(name), int | float | None):
            raise EngineError(
                "unavailable",
                f"generation_config.json has {name}={values[name]!r}, which is not a number; download it again.",
            )
    eos = values.get("eos_token_id", getattr(model.config, "eos_token_id", None))
    if ignored := [f"{name}={values[name]}" for name in UNSUPPORTED if values.get(name)]:
        logger.warning(
            "generation_config.json asks for %s, which is not applied: answers differ from those of transformers.",
            ", ".join(ignored),
        )
    return Defaults(
        eos=frozenset([eos] if isinstance(eos, int) else eos or ()) | frozenset(ends),
        temperature=0.0 if values.get("do_sample") is False else values.get("temperature", 1.0),
        top_p=values.get("top_p"),
        top_k=values.get("top_k"),
        min_p=values.get("min_p"),
        typical_p=values.get("typical_p"),
        repetition_penalty=values.get("repetition_penalty"),
        max_tokens=values.get("max_new_tokens"),
        suppressed=tuple(values.get("suppress_tokens") or ()),
    )
