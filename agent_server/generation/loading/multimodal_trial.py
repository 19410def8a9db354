"""Whether a model gives its own logits for a picture or a sound in packed batches: found out by trying."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import GenerationRequest, Picture, Sound
from agent_server.generation.attention.kv_cache import KVCache, LayerShape
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.faults import first_line
from agent_server.generation.loading.probe import Unfit, compare
from agent_server.generation.multimodal.inputs import MediaInputs
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Multimodal, Readers, sees_whole
from agent_server.generation.multimodal.sound_reader import SoundReader
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.slabs import SlabMemory
from agent_server.generation.scheduling.step_plan import Chunk, StepPlan
from events.options import SamplingParams

logger = logging.getLogger("agent_server.generation")
SIZE = 80, 64
SECONDS = 2
BEFORE, BEHIND = 5, 7
"""Tokens of text before and behind the picture or sound that a model is tried with."""


@torch.inference_mode()
def fit_media(model: InnerTextModel, layers: list[LayerShape], readers: Readers) -> Multimodal:
    """What runs the model's pictures or sounds, after one was tried: in chunks, and beside the model as transformers
    runs it. Raises Unfit."""
    first = sees_whole(model)
    try:
        return _tried(Multimodal(model, readers, whole=first), layers)
    except Unfit:
        if readers.pictures is None:
            raise
        return _tried(Multimodal(model, readers, whole=not first), layers)


def _tried(multimodal: Multimodal, layers: list[LayerShape]) -> Multimodal:
    for kind in multimodal.readers:
        noun = "picture" if kind == "image" else "sound"
        try:
            expanded, inputs = multimodal.prepare(_request(multimodal, kind))
            wanted = _alone(multimodal, expanded.prompt_token_ids, inputs)
            compare(wanted, _packed(multimodal, layers, inputs), multimodal.model.dtype)
        except Unfit:
            raise
        except Exception as error:  # a model's or processor's code may raise anything
            logger.debug("A %s fails.", noun, exc_info=error)
            raise Unfit(f"a {noun} fails ({type(error).__name__}: {first_line(error)})") from error
    return multimodal


def _request(multimodal: Multimodal, kind: str) -> GenerationRequest:
    count = multimodal.model.text_tokens
    ids = [(7919 * index + 11) % count for index in range(BEFORE + BEHIND)]
    special = [token for token in range(count) if multimodal.words.is_control(token)]
    plain = frozenset(range(count)).difference(special)
    ids = [next(t for t in range(token, 2 * count) if t % count in plain) % count for token in ids]
    placeholder = multimodal.readers[kind].placeholder
    return GenerationRequest(
        request_id="trial",
        prompt_token_ids=(*ids[:BEFORE], placeholder, *ids[BEFORE:]),
        sampling=SamplingParams(),
        pictures=(_picture(),) if kind == "image" else (),
        sounds=(_sound(multimodal.sounds),) if multimodal.sounds is not None and kind == "audio" else (),
    )


def _picture() -> Picture:
    width, height = SIZE
    pixels = bytes(
        (7 * x * (channel + 1) + 5 * y) % 256 for y in range(height) for x in range(width) for channel in range(3)
    )
    return Picture(width=width, height=height, pixels=pixels, digest=b"trial")


def _sound(reader: SoundReader) -> Sound:
    """A tone that rises."""
    rising = torch.arange(SECONDS * reader.rate, dtype=torch.float64) / reader.rate
    samples = (8000 * torch.sin(2 * torch.pi * (200 + 300 * rising) * rising)).to(torch.int16)
    return Sound(samples=samples.numpy().astype("<i2").tobytes(), rate=reader.rate, digest=b"trial sound")


def _alone(multimodal: Multimodal, ids: Items[int], inputs: MediaInputs) -> Tensor:
    """The last logits by transformers' own forward."""
    whole, device = multimodal.model.whole, multimodal.model.device
    tensors = {
        name: tensor.to(device, whole.dtype if tensor.is_floating_point() else None)
        for name, tensor in inputs.items[0].tensors.items()
    }
    rows = torch.tensor([list(ids)], device=device)
    kinds = multimodal.kinds(rows)
    if multimodal.counts_three:
        tensors["mm_token_type_ids"] = kinds
    if sees_whole(multimodal.model):
        tensors["token_type_ids"] = kinds
    with multimodal.model.by_itself():
        mask = torch.ones_like(rows)
        logits: Tensor = whole(input_ids=rows, attention_mask=mask, use_cache=False, **tensors).logits[0, -1]
    return logits.float()


def _packed(multimodal: Multimodal, layers: list[LayerShape], inputs: MediaInputs) -> Tensor:
    """The last logits in packed batches: the prompt in three chunks that cut the picture or sound where it may be cut,
    and the last token as in decoding."""
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
    for wanted in (count // 3, 2 * count // 3, count - 1):
        length = inputs.length(sequence.computed, wanted - sequence.computed)
        if length > 0:
            start = sequence.computed
            sequence.computed += length
            runner.run(StepPlan([], [Chunk(sequence, start, length, False)]), last)
    sequence.computed += 1
    _, logits = runner.run(StepPlan([sequence], []), last)
    return logits[0]
