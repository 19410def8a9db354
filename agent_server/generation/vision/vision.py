"""What a model that sees has beside its text model, and a request's pictures made ready for it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from agent_server.engine.protocol import EngineError, GenerationRequest, Picture
from agent_server.generation.faults import first_line
from agent_server.generation.vision.encoder import PictureEncoder
from agent_server.generation.vision.inputs import PictureInputs, PreparedPicture
from agent_server.generation.vision.language import VisionTextModel
from agent_server.generation.vision.placing import Misplaced, PlacedPrompt, lay_out
from agent_server.generation.vision.reader import PictureReader

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger("agent_server.generation")
Ready = Callable[[GenerationRequest, PictureInputs], None]
Failed = Callable[[EngineError], None]


class Vision:
    """model: whose text model the packed runner calls. whole: a picture's tokens see each other."""

    def __init__(self, model: VisionTextModel, reader: PictureReader, *, whole: bool | None = None) -> None:
        self.model = model
        self.reader = reader
        self.encoder = PictureEncoder(model.whole)
        self.feature = _image_token(model.config)
        self.whole = sees_whole(model) if whole is None else whole
        self._rope: Any = getattr(model.whole.base_model, "get_rope_index", None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pictures")

    @property
    def counts_three(self) -> bool:
        """Whether positions have three dimensions (M-RoPE)."""
        return self._rope is not None

    def begin(self, request: GenerationRequest, ready: Ready, failed: Failed) -> None:
        """Prepare a request's pictures in a thread; one of the two is then called there."""
        self._thread.submit(self._prepare, request, ready, failed)

    def _prepare(self, request: GenerationRequest, ready: Ready, failed: Failed) -> None:
        try:
            expanded, inputs = self.prepare(request)
        except EngineError as error:
            failed(error)
        except Exception as error:  # a processor may raise anything; what it cannot read is the request's error
            logger.debug("A picture cannot be prepared.", exc_info=error)
            message = f"The model's processor cannot read a picture ({first_line(error)})."
            failed(EngineError("invalid_request", message, param="messages"))
        else:
            ready(expanded, inputs)

    def prepare(self, request: GenerationRequest) -> tuple[GenerationRequest, PictureInputs]:
        """The request with the pictures' tokens in its prompt, and its pictures. Raises EngineError, and whatever a
        processor raises."""
        pictures = [self._prepared(picture) for picture in request.pictures]
        layout = self._laid_out(request.prompt_token_ids, pictures)
        expanded = msgspec.structs.replace(request, prompt_token_ids=tuple(layout.ids), pictures=())
        return expanded, self.inputs(layout, pictures)

    def inputs(self, layout: PlacedPrompt, pictures: list[PreparedPicture]) -> PictureInputs:
        """What the sequence carries. Positions by the model's own rule, where it has one."""
        if self._rope is None:
            return PictureInputs(layout, pictures, whole=self.whole)
        positions, shift = self._positions(layout, pictures)
        return PictureInputs(layout, pictures, positions, shift, self.whole)

    def _prepared(self, picture: Picture) -> PreparedPicture:
        prepared = self.reader.prepare(picture)
        if self.feature not in prepared.ids:
            raise EngineError("internal", "The model's processor gives a picture no tokens.")
        return prepared

    def _laid_out(self, prompt: tuple[int, ...], pictures: list[PreparedPicture]) -> PlacedPrompt:
        expansions, digests = [each.ids for each in pictures], [each.digest for each in pictures]
        try:
            return lay_out(prompt, self.reader.placeholder, expansions, digests, self.feature, self.reader)
        except Misplaced as error:
            raise EngineError("invalid_request", f"{str(error).capitalize()}.", param="messages") from error

    def _positions(self, layout: PlacedPrompt, pictures: list[PreparedPicture]) -> tuple[Tensor, int]:
        ids = torch.tensor([layout.ids])
        grids = [picture.tensors["image_grid_thw"] for picture in pictures if "image_grid_thw" in picture.tensors]
        positions, shift = self._rope(
            input_ids=ids,
            mm_token_type_ids=(ids == self.feature).int(),
            image_grid_thw=torch.cat(grids) if grids else None,
            attention_mask=torch.ones_like(ids),
        )
        return positions[:, 0].cpu(), int(shift)


def _image_token(config: PreTrainedConfig) -> int:
    token = getattr(config, "image_token_id", None)
    return int(config.image_token_index if token is None else token)


def sees_whole(model: VisionTextModel) -> bool:
    """Whether the model is told which tokens are a picture's, so that they may see each other (Gemma 3)."""
    return "token_type_ids" in inspect.signature(model.whole.forward).parameters
