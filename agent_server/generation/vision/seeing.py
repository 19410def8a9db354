"""A step in which some sequence computes its pictures: embeddings instead of ids."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import put, send
from agent_server.generation.sequence import Sequence
from agent_server.generation.step_plan import Chunk, StepPlan
from agent_server.generation.vision.encoder import Features
from agent_server.generation.vision.inputs import PictureInputs
from agent_server.generation.vision.vision import Vision


def shows(plan: StepPlan) -> bool:
    """Whether a chunk has tokens of a picture, or before one."""
    return any(chunk.sequence.media is not None and chunk.start < chunk.sequence.media.end for chunk in plan.chunks)


def seen(vision: Vision, plan: StepPlan, order: list[Sequence], last: Tensor) -> dict[str, object]:
    """The text model's arguments for a step: embeddings `[1, tokens, width]`, positions, and what else it takes. As for
    every step, the sequences that decode come first, in `order`, then the chunks; `last` has each row's newest
    token."""
    step = _Step(vision, len(order))
    for chunk in plan.chunks:
        step.add(chunk)
    device = last.device
    ids = send(step.ids, torch.int64, device)
    positions = torch.cat([_decoding(order), *step.positions], 1)
    if order:
        ids = torch.cat([last.index_select(0, send([s.row for s in order], torch.int64, device)), ids])
    embedded = vision.model.embed(ids[None])
    if step.places:
        at = send(step.places, torch.int64, device)
        embedded = embedded.index_copy(1, at, torch.cat(step.features)[None].to(embedded.dtype))
    named: dict[str, Any] = {"inputs_embeds": embedded, "position_ids": _shaped(vision, put(positions, device))}
    return named | (step.deeper(embedded) if step.levels else {})


def _decoding(order: list[Sequence]) -> Tensor:
    """`[3, sequences]`"""
    return torch.tensor([s.computed - 1 + s.shift for s in order], dtype=torch.int64).expand(3, -1)


def _shaped(vision: Vision, positions: Tensor) -> Tensor:
    return positions[:, None] if vision.counts_three else positions[:1]


class _Step:
    """ids: of the chunks. places: where features go in the batch, with `features` for them in order; levels: the same
    features for the text model's first layers."""

    def __init__(self, vision: Vision, decodes: int) -> None:
        self.vision = vision
        self.at = decodes
        self.ids: list[int] = []
        self.positions: list[Tensor] = []
        self.places: list[int] = []
        self.features: list[Tensor] = []
        self.levels: list[list[Tensor]] = []

    def add(self, chunk: Chunk) -> None:
        media, sequence = chunk.sequence.media, chunk.sequence
        end = chunk.start + chunk.length
        if isinstance(media, PictureInputs):
            self.ids += media.ids(chunk.start, end)
            self.ids += chunk.tokens(sequence.prompt_length)
            self.positions.append(media.places(chunk.start, end))
            self._show(media, chunk.start, end)
        else:
            self.ids += chunk.tokens()
            self.positions.append(torch.arange(chunk.start, end).expand(3, -1))
        self.at += chunk.length

    def _show(self, media: PictureInputs, start: int, end: int) -> None:
        for span in media.spans(start, end):
            first, last = bisect_left(span.places, start), bisect_left(span.places, end)
            if first == last:
                continue
            found = self.vision.encoder.features(media.pictures[span.picture])
            if len(found.embeddings) != len(span.places):
                raise ValueError(f"a picture has {len(span.places)} places and {len(found.embeddings)} features")
            self._take(found, first, last, [self.at + place - start for place in span.places[first:last]])

    def _take(self, found: Features, first: int, last: int, places: list[int]) -> None:
        self.places += places
        self.features.append(found.embeddings[first:last])
        self.levels = self.levels or [[] for _ in found.deeper]
        for level, deeper in zip(self.levels, found.deeper, strict=True):
            level.append(deeper[first:last])

    def deeper(self, embedded: Tensor) -> dict[str, object]:
        """DeepStack's arguments (Qwen3-VL)."""
        mask = torch.zeros(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
        mask[0, send(self.places, torch.int64, embedded.device)] = True
        return {
            "visual_pos_masks": mask,
            "deepstack_visual_embeds": [torch.cat(level) for level in self.levels],
        }
