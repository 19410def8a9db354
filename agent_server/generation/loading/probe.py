"""Test whether a model's attention, pictures and sounds work in packed batches, instead of relying on its name.

The model computes two short sequences as transformers runs it, and again packed and in chunks, through `attention.py`
and a small memory. If not all layers attend through that interface, or if the logits differ, it does not fit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import GenerationRequest, Picture, Sound
from agent_server.generation.attention.attention import NAME, Call, attend, attending, window_mask
from agent_server.generation.attention.batches import KVCache, LayerShape
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.faults import first_line
from agent_server.generation.loading.gguf_blocks import BlockExperts, BlockLinear, exact_products, has_blocks
from agent_server.generation.multimodal.inputs import MediaInputs
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Multimodal, Readers, has_bidirectional_pictures
from agent_server.generation.recorded.flat import Forward
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan
from agent_server.generation.scheduling.slabs import SlabMemory
from events.options import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger("agent_server.generation")
LENGTH = 8
"""Length of the longer test prompt: they are computed at every start, and a large model takes long for each token."""
LONGEST = 96
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
LOW_PRECISION = 0.1
"""Largest difference of the logits, relative to the largest logit, that is attributed to rounding in 16 bits."""


class UnpackableModel(Exception):
    """The model cannot be served in packed batches. The message is a clause without a full stop."""


class DifferentLogits(UnpackableModel):
    def __init__(self) -> None:
        super().__init__("packed attention gives different logits")


class _LayerRecorder:
    """A batch of one sequence that attends without a cache and records the shapes of the layers."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def attend(self, layer: int, call: Call) -> Tensor:
        if layer in self.layers:
            raise UnpackableModel("a layer attends more than once")
        self.layers[layer] = LayerShape(
            kv_heads=call.keys.shape[1],
            key_dim=call.keys.shape[-1],
            value_dim=call.values.shape[-1],
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks is not None,
        )
        tokens = len(call.queries)
        mask = window_mask(0, tokens, call.window, call.queries.dtype, call.queries.device)
        queries, keys, values = (t.transpose(0, 1)[None] for t in (call.queries, call.keys, call.values))
        # Models may view the heads as one dimension, and torch's attention has another layout on CUDA than on a CPU.
        return attend(queries, keys, values, mask, call)[0].transpose(0, 1).contiguous()


def fit(model: Any) -> list[LayerShape]:
    """Switch the model to packed attention and return the shapes of its layers. If that does not work, restore the
    model and raise UnpackableModel."""
    try:
        return _fit(model)
    except DifferentLogits:
        # Products with weights in blocks round their inputs to 8 bits, which small models amplify: Gemma 3 270M to a
        # tenth of the largest logit. Without that rounding a difference is one of the attention.
        if not has_blocks(model):
            raise
        with exact_products(model):
            return _fit(model)


@torch.inference_mode()
def _fit(model: Any) -> list[LayerShape]:
    before = model.config._attn_implementation
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    foreign = kinds - {"full_attention", "sliding_attention"}
    if foreign:
        raise UnpackableModel(f"it has layers of the kind {min(foreign)}")
    if getattr(text, "is_encoder_decoder", False):
        raise UnpackableModel("it has an encoder")
    shorter, longer = prompts = _prompts(model)
    can_keep = "logits_to_keep" in signature(model.forward).parameters
    # One forward for both: the shorter prompt is completed to the length of the other one.
    rows = _ids(model, [[*shorter, longer[-1]], longer])
    logits = model(input_ids=rows, use_cache=False, **({"logits_to_keep": 2} if can_keep else {})).logits
    expected = [logits[0, -2].float(), logits[1, -1].float()]
    last = {"logits_to_keep": 1} if can_keep else {}
    try:
        model.set_attn_implementation(NAME)
        # Record the shapes of the layers, all of which must use the attention interface.
        recorder = _LayerRecorder()
        start = prompts[0][:2]
        positions = torch.arange(len(start), device=model.device)[None]
        mask = torch.zeros(1, 1, 1, 1, device=model.device)
        named = {"position_ids": positions, "attention_mask": mask, "use_cache": False, "kv": recorder, **last}
        with attending(recorder):
            model(input_ids=_ids(model, [start]), **named)
        if sorted(recorder.layers) != list(range(text.num_hidden_layers)):
            raise UnpackableModel("not every layer attends through the attention interface")
        layers = [recorder.layers[index] for index in range(text.num_hidden_layers)]
        for layer, kind in zip(layers, getattr(text, "layer_types", None) or [], strict=False):
            if (kind == "sliding_attention") != (layer.window is not None):
                raise UnpackableModel("its windows are not passed to the attention")
        actual = _packed_logits(model, layers, prompts)
        for one, other in zip(expected, actual, strict=True):
            compare(one, other, precision(model))
    except Exception as error:
        model.set_attn_implementation(before)
        if isinstance(error, UnpackableModel):
            raise
        logger.debug("Packed attention fails.", exc_info=error)
        raise UnpackableModel(f"packed attention fails ({type(error).__name__}: {first_line(error)})") from error
    return layers


def rope_switch(config: object) -> int | None:
    """Return the length beyond which all positions are encoded differently; None for models without one.

    longrope has factors for short and for long texts, and chooses by the length of the whole text.
    """
    kinds, original = _rotary(config)
    return original if "longrope" in kinds else None


def check_positions(config: PreTrainedConfig, context: int) -> None:
    """Raise UnpackableModel if rotary embeddings depend on the longest sequence in a batch, which cannot be packed.

    This is the case for longrope beyond the original length, and for dynamic NTK beyond the length that the model was
    trained for, for which transformers uses `max_position_embeddings` whatever else the configuration says.
    """
    kinds, original = _rotary(config)
    trained = getattr(config.get_text_config(), "max_position_embeddings", None)
    if ("longrope" in kinds and not (original and context <= original)) or (
        "dynamic" in kinds and not (trained and context <= trained)
    ):
        raise UnpackableModel("its positions depend on the length of the whole batch")


def _rotary(config: PreTrainedConfig) -> tuple[set[str], int | None]:
    """Return the kinds of rotary embeddings, and the length of the original training."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    kinds = {str(part["rope_type"]) for part in parts if part.get("rope_type")}
    lengths = [
        part["original_max_position_embeddings"] for part in parts if part.get("original_max_position_embeddings")
    ]
    return kinds, min(lengths, default=None) or getattr(text, "original_max_position_embeddings", None)


def check_windows(config: PreTrainedConfig, layers: list[LayerShape], context: int) -> None:
    """Raise UnpackableModel if the configuration has a window that no layer passes to the attention. Such a window is
    in the masks, which packed attention ignores, and the test prompts may be too short to reveal it."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    declared_full = set(getattr(text, "layer_types", None) or ()) == {"full_attention"}
    if window and window < context and all(layer.window is None for layer in layers) and not declared_full:
        raise UnpackableModel("its windows are not passed to the attention")


def _ids(model: Any, rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, device=model.device)


def _prompts(model: Any) -> tuple[list[int], list[int]]:
    """Return two test prompts, the second with one token more. Both are longer than a small window; no prompt of
    LONGEST tokens fills a large one."""
    text = model.config.get_text_config()
    window = getattr(text, "sliding_window", None) or 0
    length = max(LENGTH, window + 8 if 0 < window <= LONGEST - 8 else 0)
    count = model.text_tokens if isinstance(model, InnerTextModel) else text.vocab_size
    shorter, longer = ([(7919 * (index + start) + 11) % count for index in range(length)] for start in (0, 3))
    return shorter[:-1], longer


@torch.inference_mode()
def fit_flat(model: Any, layers: list[LayerShape], flat: Forward, reasons: list[str] | None = None) -> bool:
    """Return whether the recording of a packed model reproduces its logits, in a batch and for a single sequence.
    reasons: gets the reason if it does not."""
    prompts = _prompts(model)
    try:
        for some in (prompts, prompts[:1]):
            expected, actual = _packed_logits(model, layers, some), _packed_logits(model, layers, some, flat)
            for one, other in zip(expected, actual, strict=True):
                compare(one, other, precision(model))
    except Exception as error:
        logger.info("The recorded forward is not used: %s", first_line(error))
        if reasons is not None:
            reasons.append(first_line(error))
        return False
    return True


def _packed_logits(
    model: Any, layers: list[LayerShape], prompts: Items[list[int]], flat: Forward | None = None
) -> list[Tensor]:
    """Return the last logits of each prompt, computed in one batch: a part of each prompt, then the rest, and the last
    token as in decoding."""
    memory: SlabMemory | PagedMemory = SlabMemory(1024, 128) if model.device.type == "cpu" else PagedMemory(65, 16)
    cache = KVCache(layers, memory.longest + 16, model.dtype, model.device)
    runner = PackedRunner(model, memory, cache, model.device, flat=flat)
    last = torch.tensor([prompt[-1] for prompt in prompts], device=model.device)
    sequences = []
    for number, prompt in enumerate(prompts):
        sequence = Sequence(number, prompt, len(prompt), LONGEST * 2, row=number, state="running")
        memory.admit(sequence, alone=False)
        sequences.append(sequence)
    for part in ((0, 4), (4, None)):
        chunks = []
        for sequence in sequences:
            start, end = part[0], part[1] or sequence.prompt_length - 1
            sequence.computed = end
            chunks.append(Chunk(sequence, start, end - start, False))
        runner.forward(StepPlan([], chunks), last)
    for sequence in sequences:
        sequence.computed += 1
    order, logits = runner.forward(StepPlan(list(sequences), []), last)
    return [logits[order.index(sequence)] for sequence in sequences]


def precision(model: Any) -> torch.dtype:
    """Return the dtype in which the model's products are computed."""
    for module in model.modules():
        if isinstance(module, BlockExperts) or (isinstance(module, BlockLinear) and not module.exact):
            return torch.bfloat16
    dtype: torch.dtype = model.dtype
    return dtype


def compare(expected: Tensor, actual: Tensor, dtype: torch.dtype) -> None:
    """Raise UnpackableModel unless the logits are equal except for rounding. dtype: of the model's products."""
    scale = expected.abs().max().clamp_min(1e-6)
    difference = float((expected - actual).abs().max() / scale)
    if not difference <= TOLERANCE.get(dtype, LOW_PRECISION):
        raise DifferentLogits


SIZE = 80, 64
"""Width and height of the test picture."""
SECONDS = 2
"""Length of the test sound."""
BEFORE, AFTER = 5, 7
"""Tokens of text before and after the test picture or sound."""


@torch.inference_mode()
def fit_media(model: InnerTextModel, layers: list[LayerShape], readers: Readers) -> Multimodal:
    """Return the multimodal part for these readers, after a test that compares chunked computation with transformers'
    own forward. Raises UnpackableModel."""
    first = has_bidirectional_pictures(model)
    try:
        return _try_media(Multimodal(model, readers, bidirectional=first), layers)
    except UnpackableModel:
        if readers.pictures is None:
            raise
        return _try_media(Multimodal(model, readers, bidirectional=not first), layers)


def _try_media(multimodal: Multimodal, layers: list[LayerShape]) -> Multimodal:
    for kind in multimodal.readers:
        noun = "picture" if kind == "image" else "sound"
        try:
            count = multimodal.model.text_tokens
            ids = [(7919 * index + 11) % count for index in range(BEFORE + AFTER)]
            special = [token for token in range(count) if multimodal.words.is_control(token)]
            plain = frozenset(range(count)).difference(special)
            ids = [next(t for t in range(token, 2 * count) if t % count in plain) % count for token in ids]
            placeholder = multimodal.readers[kind].placeholder
            pictures: list[Picture] = []
            sounds: list[Sound] = []
            if kind == "image":
                width, height = SIZE
                points = ((x, y, channel) for y in range(height) for x in range(width) for channel in range(3))
                pixels = bytes((7 * x * (channel + 1) + 5 * y) % 256 for x, y, channel in points)
                pictures.append(Picture(width=width, height=height, pixels=pixels, digest=b"trial"))
            elif multimodal.sounds is not None:  # a rising tone
                rate = multimodal.sounds.rate
                rising = torch.arange(SECONDS * rate, dtype=torch.float64) / rate
                tone = (8000 * torch.sin(2 * torch.pi * (200 + 300 * rising) * rising)).to(torch.int16)
                samples = tone.numpy().astype("<i2").tobytes()
                sounds.append(Sound(samples=samples, rate=rate, digest=b"trial sound"))
            request = GenerationRequest(
                request_id="trial",
                prompt_token_ids=(*ids[:BEFORE], placeholder, *ids[BEFORE:]),
                sampling=SamplingParams(),
                pictures=tuple(pictures),
                sounds=tuple(sounds),
            )
            expanded, inputs = multimodal.prepare(request)
            expected = _reference_logits(multimodal, expanded.prompt_token_ids, inputs)
            compare(expected, _packed_media(multimodal, layers, inputs), multimodal.model.dtype)
        except UnpackableModel:
            raise
        except Exception as error:  # a model's or processor's code may raise anything
            logger.debug("A %s fails.", noun, exc_info=error)
            raise UnpackableModel(f"a {noun} fails ({type(error).__name__}: {first_line(error)})") from error
    return multimodal


def _reference_logits(multimodal: Multimodal, ids: Items[int], inputs: MediaInputs) -> Tensor:
    """Return the last logits of transformers' own forward."""
    whole, device = multimodal.model.whole, multimodal.model.device
    tensors = {
        name: tensor.to(device, whole.dtype if tensor.is_floating_point() else None)
        for name, tensor in inputs.items[0].tensors.items()
    }
    rows = torch.tensor([list(ids)], device=device)
    kinds = multimodal.kinds(rows)
    if multimodal.counts_three:
        tensors["mm_token_type_ids"] = kinds
    if has_bidirectional_pictures(multimodal.model):
        tensors["token_type_ids"] = kinds
    with multimodal.model.own_attention():
        mask = torch.ones_like(rows)
        logits: Tensor = whole(input_ids=rows, attention_mask=mask, use_cache=False, **tensors).logits[0, -1]
    return logits.float()


def _packed_media(multimodal: Multimodal, layers: list[LayerShape], inputs: MediaInputs) -> Tensor:
    """Return the last logits in packed batches: the prompt in three chunks, which divide the picture or sound only
    where allowed, and the last token as in decoding."""
    model = multimodal.model
    count = len(inputs.layout.ids)
    on_cpu = model.device.type == "cpu"
    size = max(1024, 1 << count.bit_length())
    memory: SlabMemory | PagedMemory = SlabMemory(size, 128) if on_cpu else PagedMemory(size // 16 + 1, 16)
    cache = KVCache(layers, memory.longest + 16, model.dtype, model.device)
    runner = PackedRunner(model, memory, cache, model.device, multimodal=multimodal)
    tokens = [*inputs.layout.keys]
    sequence = Sequence(0, tokens, count, count + 1, row=0, state="running", media=inputs, shift=inputs.shift)
    memory.admit(sequence, alone=True)
    last = torch.tensor(inputs.layout.ids[-1:], device=model.device)
    for target in (count // 3, 2 * count // 3, count - 1):
        length = inputs.length(sequence.computed, target - sequence.computed)
        if length > 0:
            start = sequence.computed
            sequence.computed += length
            runner.forward(StepPlan([], [Chunk(sequence, start, length, False)]), last)
    sequence.computed += 1
    _, logits = runner.forward(StepPlan([sequence], []), last)
    return logits[0]
