"""The media of requests to a multimodal model: their preparation in a thread, and a step with their embeddings."""

from __future__ import annotations

import inspect
import logging
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import EngineError, GenerationRequest
from agent_server.generation.device import put, send
from agent_server.generation.faults import first_line
from agent_server.generation.multimodal.encoder import MediaEncoder
from agent_server.generation.multimodal.inputs import MediaInputs, MisplacedMedia, PlacedPrompt, PreparedMedia, lay_out
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.media_reader import MediaReader
from agent_server.generation.multimodal.picture_reader import PictureReader
from agent_server.generation.multimodal.sound_reader import SoundReader
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan

logger = logging.getLogger("agent_server.generation")
OnReady = Callable[[GenerationRequest, MediaInputs], None]
OnFailed = Callable[[EngineError], None]


@dataclass(frozen=True, slots=True)
class Readers:
    """A model's readers of pictures and sounds; None for a kind that it does not accept."""

    pictures: PictureReader | None = None
    sounds: SoundReader | None = None

    def __bool__(self) -> bool:
        return bool(self.by_kind)

    @property
    def by_kind(self) -> dict[str, MediaReader]:
        """The readers by kind, as named in `EngineInfo.placeholders`."""
        both = {"image": self.pictures, "audio": self.sounds}
        return {kind: reader for kind, reader in both.items() if reader is not None}


class Multimodal:
    """The media of one model's requests. bidirectional: a picture's tokens attend to each other; None to find out from
    the model."""

    def __init__(self, model: InnerTextModel, readers: Readers, *, bidirectional: bool | None = None) -> None:
        self.model = model
        self.pictures = readers.pictures
        self.sounds = readers.sounds
        self.readers = readers.by_kind
        self.words = next(iter(self.readers.values()))
        self.encoder = MediaEncoder(model)
        self.bidirectional = has_bidirectional_pictures(model) if bidirectional is None else bidirectional
        self._rope: Any = getattr(model.whole.base_model, "get_rope_index", None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="media")

    @property
    def counts_three(self) -> bool:
        """Whether positions have three dimensions (M-RoPE)."""
        return self._rope is not None

    def begin(self, request: GenerationRequest, on_ready: OnReady, on_failed: OnFailed) -> None:
        """Prepare a request's media in a thread, and call one of the callbacks there."""

        def prepare() -> None:
            try:
                expanded, inputs = self.prepare(request)
            except EngineError as error:
                on_failed(error)
            else:
                on_ready(expanded, inputs)

        self._thread.submit(prepare)

    def prepare(self, request: GenerationRequest) -> tuple[GenerationRequest, MediaInputs]:
        """Return the request with the media's tokens in its prompt, and its media. Raises EngineError."""
        media: dict[int, list[PreparedMedia]] = {}
        if self.pictures is not None:
            read = self.pictures.prepare
            media[self.pictures.placeholder] = [_read("picture", read, picture) for picture in request.pictures]
        if self.sounds is not None:
            media[self.sounds.placeholder] = [_read("sound", self.sounds.prepare, sound) for sound in request.sounds]
        try:
            layout, items = lay_out(request.prompt_token_ids, media, self.words)
        except MisplacedMedia as error:
            raise EngineError("invalid_request", f"{str(error).capitalize()}.", param="messages") from error
        expanded = msgspec.structs.replace(request, prompt_token_ids=tuple(layout.ids), pictures=(), sounds=())
        return expanded, self.inputs(layout, items)

    def inputs(self, layout: PlacedPrompt, items: list[PreparedMedia]) -> MediaInputs:
        """Return the media of a sequence. Positions are computed by the model's own rule, if it has one."""
        if self._rope is None:
            return MediaInputs(layout, items, bidirectional=self.bidirectional)
        ids = torch.tensor([layout.ids])
        grids = [item.tensors["image_grid_thw"] for item in items if "image_grid_thw" in item.tensors]
        positions, shift = self._rope(
            input_ids=ids,
            mm_token_type_ids=self.kinds(ids),
            image_grid_thw=torch.cat(grids) if grids else None,
            attention_mask=torch.ones_like(ids),
        )
        return MediaInputs(layout, items, positions[:, 0].cpu(), int(shift), self.bidirectional)

    def kinds(self, ids: Tensor) -> Tensor:
        """Return 1 for a picture's places, and 0 for all other tokens."""
        feature = -1 if self.pictures is None else self.pictures.feature
        return (ids == feature).int()


def _read(noun: str, read: Callable[[Any], PreparedMedia], item: object) -> PreparedMedia:
    """Prepare a picture or sound. Raises EngineError for whatever the processor raises, as an error of the request."""
    try:
        prepared = read(item)
    except Exception as error:
        logger.debug("A %s cannot be prepared.", noun, exc_info=error)
        message = f"The model's processor cannot read a {noun} ({first_line(error)})."
        raise EngineError("invalid_request", message, param="messages") from error
    if not prepared.places:
        raise EngineError("internal", f"The model's processor gives a {noun} no tokens.")
    return prepared


def has_bidirectional_pictures(model: InnerTextModel) -> bool:
    """Return whether the model's forward has an argument for which tokens are a picture's, so that these attend to each
    other (Gemma 3)."""
    return "token_type_ids" in inspect.signature(model.whole.forward).parameters


def has_media(plan: StepPlan) -> bool:
    """Return whether a chunk has tokens of a picture or sound, or tokens before one."""
    return any(chunk.sequence.media is not None and chunk.start < chunk.sequence.media.end for chunk in plan.chunks)


def embedded_step(multimodal: Multimodal, plan: StepPlan, order: list[Sequence], last: Tensor) -> dict[str, object]:
    """Return the text model's arguments for a step: embeddings `[1, tokens, width]`, positions, and further inputs of
    its layers. Decoding sequences come first, in `order`, then the chunks. last: each row's newest token."""
    step = _Step(multimodal, len(order))
    for chunk in plan.chunks:
        step.add(chunk)
    device = last.device
    ids = send(step.ids, torch.int64, device)
    decoding = torch.tensor([s.computed - 1 + s.shift for s in order], dtype=torch.int64).expand(3, -1)
    positions = put(torch.cat([decoding, *step.positions], 1), device)
    if order:
        ids = torch.cat([last.index_select(0, send([s.row for s in order], torch.int64, device)), ids])
    embedded = multimodal.model.embed(ids[None])
    if step.places:
        at = send(step.places, torch.int64, device)
        embedded = embedded.index_copy(1, at, torch.cat(step.features)[None].to(embedded.dtype))
    position_ids = positions[:, None] if multimodal.counts_three else positions[:1]
    named: dict[str, Any] = {"inputs_embeds": embedded, "position_ids": position_ids}
    if multimodal.model.layered:
        named["per_layer_inputs"] = step.layered(multimodal.model.per_layer(ids[None]))
    return named | (step.deeper(embedded) if step.levels else {})


class _Step:
    """The chunks of a step. ids: their tokens. positions: `[3, tokens]` of each chunk. places: the indices in the batch
    that get `features`, in order. per_layer: inputs of the layers at these places. levels: features for the text
    model's first layers, at the places `leveled`."""

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
            self.positions.append(media.positions_of(chunk.start, end))
            start = chunk.start
            for span in media.spans(start, end):
                first, last = bisect_left(span.places, start), bisect_left(span.places, end)
                if first == last:
                    continue
                item = media.items[span.item]
                features = self.multimodal.encoder.features(item)
                if len(features.embeddings) != len(span.places):
                    raise ValueError(f"{item.kind}: {len(span.places)} places and {len(features.embeddings)} features")
                places = [self.at + place - start for place in span.places[first:last]]
                self.places += places
                self.features.append(features.embeddings[first:last])
                if features.layered is not None:
                    self.per_layer.append(features.layered[first:last])
                if features.deeper:
                    self.leveled += places
                    self.levels = self.levels or [[] for _ in features.deeper]
                    for level, deeper in zip(self.levels, features.deeper, strict=True):
                        level.append(deeper[first:last])
        else:
            self.ids += chunk.tokens()
            self.positions.append(torch.arange(chunk.start, end).expand(3, -1))
        self.at += chunk.length

    def layered(self, tokens: Tensor) -> Tensor:
        """Replace the layers' inputs at the places of media. tokens: the inputs of all tokens as if they were text."""
        if not self.places:
            return tokens
        at = send(self.places, torch.int64, tokens.device)
        return tokens.index_copy(1, at, torch.cat(self.per_layer)[None].to(tokens.dtype))

    def deeper(self, embedded: Tensor) -> dict[str, object]:
        """Return the arguments of DeepStack (Qwen3-VL)."""
        mask = torch.zeros(embedded.shape[:2], dtype=torch.bool, device=embedded.device)
        mask[0, send(self.leveled, torch.int64, embedded.device)] = True
        return {
            "visual_pos_masks": mask,
            "deepstack_visual_embeds": [torch.cat(level) for level in self.levels],
        }
