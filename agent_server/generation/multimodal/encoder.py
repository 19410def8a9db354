"""The towers: prepared pictures and sounds → embeddings in the text model's space, kept for a while by content."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import put, send
from agent_server.generation.multimodal.inputs import MediaInputs, PreparedMedia
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Multimodal
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan

KEPT_BYTES = 128 * 2**20
"""Of embeddings, on the model's device, for chunks of a picture or sound and for the turns that follow."""


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """embeddings: `[places, width]`. deeper: the same for the first layers of the text model, which they are added to
    (DeepStack, Qwen3-VL). layered: `[places, layers, width]`, what each layer is handed in a token's place (Gemma
    3n)."""

    embeddings: Tensor
    deeper: tuple[Tensor, ...] = ()
    layered: Tensor | None = None

    @property
    def nbytes(self) -> int:
        layered = () if self.layered is None else (self.layered,)
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.embeddings, *self.deeper, *layered))


class MediaEncoder:
    """`model`: one that has `get_image_features`, or takes sounds."""

    def __init__(self, model: InnerTextModel, kept_bytes: int = KEPT_BYTES) -> None:
        self.model = model
        self.encoded = 0
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self._room = kept_bytes

    def features(self, item: PreparedMedia) -> Features:
        """Of one picture or sound; computed once while it is kept."""
        found = self._kept.pop(item.digest, None)
        if found is None:
            found = self._encode(item)
            self._room -= found.nbytes
        self._kept[item.digest] = found
        while self._room < 0 and len(self._kept) > 1:
            self._room += self._kept.popitem(last=False)[1].nbytes
        return found

    def _encode(self, item: PreparedMedia) -> Features:
        self.encoded += 1
        return self._merged(item) if item.kind == "audio" or self.model.layered else self._seen(item)

    def _seen(self, picture: PreparedMedia) -> Features:
        output = self.model.whole.get_image_features(**self._placed(picture), return_dict=True)
        deeper, dtype = getattr(output, "deepstack_features", None) or (), self.model.dtype
        return Features(_rows(output.pooler_output, dtype), tuple(_rows(level, dtype) for level in deeper))

    def _merged(self, item: PreparedMedia) -> Features:
        """By the model's own forward, as far as its text model: families cut, fill up and frame the features of a sound
        in ways of their own."""
        ids = torch.tensor([item.ids], device=self.model.device)
        handed = self.model.handed(input_ids=ids, attention_mask=torch.ones_like(ids), **self._placed(item))
        places, dtype = list(item.places), self.model.dtype
        layered = handed["per_layer_inputs"][0, places].to(dtype) if self.model.layered else None
        return Features(handed["inputs_embeds"][0, places].to(dtype), layered=layered)

    def _placed(self, item: PreparedMedia) -> dict[str, Tensor]:
        device, dtype = self.model.device, self.model.dtype
        return {
            name: put(tensor, device).to(dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in item.tensors.items()
        }


def _rows(features: Any, dtype: torch.dtype) -> Tensor:
    """`[places, width]` of a tensor for each crop of the picture, or of all of them as one."""
    if isinstance(features, Tensor):
        return features.reshape(-1, features.shape[-1]).to(dtype)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in features]).to(dtype)


def has_media(plan: StepPlan) -> bool:
    """Whether a chunk has tokens of a picture or sound, or before one."""
    return any(chunk.sequence.media is not None and chunk.start < chunk.sequence.media.end for chunk in plan.chunks)


def embedded_step(multimodal: Multimodal, plan: StepPlan, order: list[Sequence], last: Tensor) -> dict[str, object]:
    """The text model's arguments for a step: embeddings `[1, tokens, width]`, positions, and what else it takes. As for
    every step, the sequences that decode come first, in `order`, then the chunks; `last` has each row's newest
    token."""
    step = _Step(multimodal, len(order))
    for chunk in plan.chunks:
        step.add(chunk)
    device = last.device
    ids = send(step.ids, torch.int64, device)
    positions = torch.cat([_decoding(order), *step.positions], 1)
    if order:
        ids = torch.cat([last.index_select(0, send([s.row for s in order], torch.int64, device)), ids])
    embedded = multimodal.model.embed(ids[None])
    if step.places:
        at = send(step.places, torch.int64, device)
        embedded = embedded.index_copy(1, at, torch.cat(step.features)[None].to(embedded.dtype))
    named: dict[str, Any] = {"inputs_embeds": embedded, "position_ids": _shaped(multimodal, put(positions, device))}
    if multimodal.model.layered:
        named["per_layer_inputs"] = step.layered(multimodal.model.per_layer(ids[None]))
    return named | (step.deeper(embedded) if step.levels else {})


def _decoding(order: list[Sequence]) -> Tensor:
    """`[3, sequences]`"""
    return torch.tensor([s.computed - 1 + s.shift for s in order], dtype=torch.int64).expand(3, -1)


def _shaped(multimodal: Multimodal, positions: Tensor) -> Tensor:
    return positions[:, None] if multimodal.counts_three else positions[:1]


class _Step:
    """ids: of the chunks. places: where features go in the batch, with `features` for them in order. per_layer: what
    layers are handed there. levels: features for the text model's first layers, with their places in `leveled`."""

    def __init__(self, multimodal: Multimodal, decodes: int) -> None:
        self.multimodal = multimodal
        self.at = decodes
        self.ids: list[int] = []
        self.positions: list[Tensor] = []
        self.places: list[int] = []
        self.features: list[Tensor] = []
        self.per_layer: list[Tensor] = []
        self.leveled: list[int] = []
        self.levels: list[list[Tensor]] = []

    def add(self, chunk: Chunk) -> None:
        media, sequence = chunk.sequence.media, chunk.sequence
        end = chunk.start + chunk.length
        if isinstance(media, MediaInputs):
            self.ids += media.ids(chunk.start, end)
            self.ids += chunk.tokens(sequence.prompt_length)
            self.positions.append(media.places(chunk.start, end))
            self._place(media, chunk.start, end)
        else:
            self.ids += chunk.tokens()
            self.positions.append(torch.arange(chunk.start, end).expand(3, -1))
        self.at += chunk.length

    def _place(self, media: MediaInputs, start: int, end: int) -> None:
        for span in media.spans(start, end):
            first, last = bisect_left(span.places, start), bisect_left(span.places, end)
            if first == last:
                continue
            item = media.items[span.item]
            found = self.multimodal.encoder.features(item)
            if len(found.embeddings) != len(span.places):
                raise ValueError(f"{item.kind}: {len(span.places)} places and {len(found.embeddings)} features")
            self._take(found, first, last, [self.at + place - start for place in span.places[first:last]])

    def _take(self, found: Features, first: int, last: int, places: list[int]) -> None:
        self.places += places
        self.features.append(found.embeddings[first:last])
        if found.layered is not None:
            self.per_layer.append(found.layered[first:last])
        if not found.deeper:
            return
        self.leveled += places
        self.levels = self.levels or [[] for _ in found.deeper]
        for level, deeper in zip(self.levels, found.deeper, strict=True):
            level.append(deeper[first:last])

    def layered(self, tokens: Tensor) -> Tensor:
        """What layers are handed of the step's tokens, with that of media in their places."""
        if not self.places:
            return tokens
        at = send(self.places, torch.int64, tokens.device)
        return tokens.index_copy(1, at, torch.cat(self.per_layer)[None].to(tokens.dtype))

    def deeper(self, embedded: Tensor) -> dict[str, object]:
        """DeepStack's arguments (Qwen3-VL)."""
        mask = torch.zeros(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
        mask[0, send(self.leveled, torch.int64, embedded.device)] = True
        return {
            "visual_pos_masks": mask,
            "deepstack_visual_embeds": [torch.cat(level) for level in self.levels],
        }
