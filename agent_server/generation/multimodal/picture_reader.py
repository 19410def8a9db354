"""Pictures → what the model reads of them, by the model's own processor.

transformers builds the processors of some families only where torchvision is installed, though their image processors
run without it; for those, `KINDS` has the rule by which a picture's tokens are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from agent_server.engine_protocol.protocol import Picture
from agent_server.generation.faults import first_line
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.media_reader import MediaReader, Unreadable, tensors

logger = logging.getLogger("agent_server.generation")
Read = Callable[[Image.Image], tuple[list[int], dict[str, Tensor]]]
"""A picture → the tokens that stand for it, and the arguments of the model's `get_image_features`."""


class PictureReader(MediaReader):
    """feature: the token in whose places the vision tower's features stand."""

    def __init__(self, tokenizer: Tokenizer, word: str, read: Read, feature: int) -> None:
        super().__init__(tokenizer, word)
        self.feature = feature
        self._read = read

    def prepare(self, picture: Picture) -> PreparedMedia:
        """Takes tens of milliseconds for a photograph. Raises ValueError for a picture that the processor refuses, for
        example one that is a hundred times as wide as it is high."""
        image = Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)
        ids, named = self._read(image)
        places = tuple(index for index, token in enumerate(ids) if token == self.feature)
        return PreparedMedia("image", picture.digest, tuple(ids), places, named)


def load_picture_reader(model: str, tokenizer: Tokenizer, feature: int) -> PictureReader:
    """The reader of a folder or a hub name. Raises Unreadable."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(model, trust_remote_code=False)
        return PictureReader(tokenizer, processor.image_token, partial(_by_processor, processor), feature)
    except (ImportError, AttributeError) as error:
        logger.debug("transformers has no processor here: %s", first_line(error))
    except (OSError, ValueError) as error:
        raise Unreadable(f"its processor cannot be made ({first_line(error)})") from error
    return _by_rule(model, tokenizer, feature)


def _by_processor(processor: Any, image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
    inputs = processor(text=[processor.image_token], images=[image], return_tensors="pt", add_special_tokens=False)
    return inputs["input_ids"][0].tolist(), tensors(inputs)


# families whose processors ask for torchvision


def _by_rule(model: str, tokenizer: Tokenizer, feature: int) -> PictureReader:
    from transformers import AutoImageProcessor
    from transformers.processing_utils import ProcessorMixin

    settings, _ = ProcessorMixin.get_processor_dict(model)
    images = AutoImageProcessor.from_pretrained(model, backend="pil")
    kind = str(settings.get("processor_class") or "")
    if kind not in KINDS:
        raise Unreadable(f"its processor ({kind or 'without a name'}) needs torchvision")
    word, options, expand = KINDS[kind](settings, images)

    def read(image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
        inputs = images(images=[image], return_tensors="pt", **options)
        return list(tokenizer.encode(expand(inputs), add_special_tokens=False).ids), tensors(inputs)

    return PictureReader(tokenizer, word, read, feature)


Rule = tuple[str, dict[str, Any], Callable[[Any], str]]
"""The word for a picture, options of the image processor, and its output → the text that stands for the picture."""


def _qwen(settings: dict[str, Any], images: Any) -> Rule:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL: a token for each square of merged patches."""
    word, merged = str(settings.get("image_token") or "<|image_pad|>"), int(images.merge_size) ** 2
    return word, {}, lambda inputs: word * (int(inputs["image_grid_thw"][0].prod()) // merged)


def _pixtral(settings: dict[str, Any], images: object) -> Rule:
    """Pixtral, Mistral 3: rows of tokens, each with a break behind it, the last one with the end."""
    word = str(settings.get("image_token") or "[IMG]")
    row_end = str(settings.get("image_break_token") or "[IMG_BREAK]")
    end = str(settings.get("image_end_token") or "[IMG_END]")
    side = int(settings.get("patch_size", 16)) * int(settings.get("spatial_merge_size", 1))

    def expand(inputs: dict[str, Any]) -> str:
        height, width = (int(size) // side for size in inputs["image_sizes"][0])
        return row_end.join([word * width] * height) + end

    return word, {"patch_size": side}, expand


KINDS: dict[str, Callable[[dict[str, Any], Any], Rule]] = {
    "Qwen2VLProcessor": _qwen,
    "Qwen2_5_VLProcessor": _qwen,
    "Qwen3VLProcessor": _qwen,
    "PixtralProcessor": _pixtral,
}
