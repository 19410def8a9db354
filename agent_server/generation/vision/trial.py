"""Whether a model that sees gives its own logits for a picture in packed batches: found out by trying."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from agent_server.engine.protocol import GenerationRequest, Picture
from agent_server.generation.faults import first_line
from agent_server.generation.kv_cache import KVCache, LayerShape
from agent_server.generation.pages import PagedMemory
from agent_server.generation.probe import Unfit, compare
from agent_server.generation.runner import PackedRunner
from agent_server.generation.sequence import Sequence
from agent_server.generation.slabs import SlabMemory
from agent_server.generation.step_plan import Chunk, StepPlan
from agent_server.generation.vision.inputs import PictureInputs
from agent_server.generation.vision.language import VisionTextModel
from agent_server.generation.vision.reader import PictureReader
from agent_server.generation.vision.vision import Vision, sees_whole
from events.options import SamplingParams

logger = logging.getLogger("agent_server.generation")
SIZE = 80, 64
BEFORE, BEHIND = 5, 7
"""Tokens of text before and behind the picture that a model is tried with."""


@torch.inference_mode()
def fit_vision(model: VisionTextModel, layers: list[LayerShape], reader: PictureReader) -> Vision:
    """What runs the model's pictures, after one was tried: in chunks, and beside the model as transformers runs it.
    Raises Unfit."""
    first = sees_whole(model)
    try:
        return _tried(Vision(model, reader, whole=first), layers)
    except Unfit:
        return _tried(Vision(model, reader, whole=not first), layers)


def _tried(vision: Vision, layers: list[LayerShape]) -> Vision:
    try:
        expanded, inputs = vision.prepare(_request(vision))
        wanted = _alone(vision, expanded.prompt_token_ids, inputs)
        compare(wanted, _packed(vision, layers, inputs), vision.model.dtype)
    except Unfit:
        raise
    except Exception as error:  # a model's or processor's code may raise anything
        logger.debug("A picture fails.", exc_info=error)
        raise Unfit(f"a picture fails ({type(error).__name__}: {first_line(error)})") from error
    return vision


def _request(vision: Vision) -> GenerationRequest:
    width, height = SIZE
    pixels = bytes(
        (7 * x * (channel + 1) + 5 * y) % 256 for y in range(height) for x in range(width) for channel in range(3)
    )
    count = vision.model.config.get_text_config().vocab_size
    ids = [(7919 * index + 11) % count for index in range(BEFORE + BEHIND)]
    special = {vision.reader.placeholder, vision.feature}
    ids = [next(t for t in range(token, 2 * count) if t % count not in special) % count for token in ids]
    return GenerationRequest(
        request_id="trial",
        prompt_token_ids=(*ids[:BEFORE], vision.reader.placeholder, *ids[BEFORE:]),
        sampling=SamplingParams(),
        pictures=(Picture(width=width, height=height, pixels=pixels, digest=b"trial"),),
    )


def _alone(vision: Vision, ids: Items[int], inputs: PictureInputs) -> Tensor:
    """The last logits by transformers' own forward."""
    whole, device = vision.model.whole, vision.model.device
    tensors = {
        name: tensor.to(device, whole.dtype if tensor.is_floating_point() else None)
        for name, tensor in inputs.pictures[0].tensors.items()
    }
    rows = torch.tensor([list(ids)], device=device)
    kinds = (rows == vision.feature).int()
    if vision.counts_three:
        tensors["mm_token_type_ids"] = kinds
    if sees_whole(vision.model):
        tensors["token_type_ids"] = kinds
    with vision.model.by_itself():
        logits: Tensor = whole(input_ids=rows, use_cache=False, **tensors).logits[0, -1]
    return logits.float()


def _packed(vision: Vision, layers: list[LayerShape], inputs: PictureInputs) -> Tensor:
    """The last logits in packed batches: the prompt in three chunks that cut the picture where it may be cut, and the
    last token as in decoding."""
    model = vision.model
    count = len(inputs.layout.ids)
    on_cpu = model.device.type == "cpu"
    size = max(1024, 1 << count.bit_length())
    memory: SlabMemory | PagedMemory = SlabMemory(size, 128) if on_cpu else PagedMemory(size // 16 + 1, 16)
    cache = KVCache(layers, memory.longest + 16, model.dtype, model.device)
    runner = PackedRunner(model, memory, cache, model.device, vision=vision)
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
