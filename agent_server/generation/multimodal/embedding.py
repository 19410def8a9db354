"""A step in which some sequence computes its pictures or sounds: embeddings instead of ids."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import put, send
from agent_server.generation.multimodal.encoder import Features
from agent_server.generation.multimodal.inputs import MediaInputs
from agent_server.generation.multimodal.multimodal import Multimodal
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.step_plan import Chunk, StepPlan


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
