"""Turn pictures into tokens and the inputs of a model's encoder, with the model's own processor.

transformers creates the processors of some families only with torchvision, although their image processors run without
it. For those, `KINDS` has the rule for the number of a picture's tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from agent_server.engine_protocol.protocol import Picture
from agent_server.generation.faults import first_line
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.media_reader import MediaReader, UnreadableMedia, tensors

logger = logging.getLogger("agent_server.generation")
Read = Callable[[Image.Image], tuple[list[int], dict[str, Tensor]]]
"""A picture → its tokens, and the arguments of the model's `get_image_features`."""


class PictureReader(MediaReader):
    """Reads pictures for one model. feature: the token that is replaced by the encoder's features."""

    def __init__(self, tokenizer: Tokenizer, word: str, read: Read, feature: int) -> None:
        super().__init__(tokenizer, word)
        self.feature = feature
        self._read = read

    def prepare(self, picture: Picture) -> PreparedMedia:
        """Prepare a picture, which takes tens of milliseconds for a photograph. Raises ValueError for one that the
        processor refuses, such as one that is a hundred times as wide as it is high."""
        image = Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)
        ids, named = self._read(image)
        places = tuple(index for index, token in enumerate(ids) if token == self.feature)
        return PreparedMedia("image", picture.digest, tuple(ids), places, named)


def load_picture_reader(model: str, tokenizer: Tokenizer, feature: int) -> PictureReader:
    """Return the reader for a model's folder or hub name. feature: as in PictureReader. Raises UnreadableMedia."""
    from transformers import AutoImageProcessor, AutoProcessor
    from transformers.processing_utils import ProcessorMixin

    try:
        processor = AutoProcessor.from_pretrained(model, trust_remote_code=False)
        word = processor.image_token

        def read_by_processor(image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
            inputs = processor(text=[word], images=[image], return_tensors="pt", add_special_tokens=False)
            return inputs["input_ids"][0].tolist(), tensors(inputs)

        return PictureReader(tokenizer, word, read_by_processor, feature)
    except (ImportError, AttributeError) as error:
        logger.debug("transformers has no processor here: %s", first_line(error))
    except (OSError, ValueError) as error:
        raise UnreadableMedia(f"its processor cannot be made ({first_line(error)})") from error

    # The processor needs torchvision; its image processor does not.
    settings, _ = ProcessorMixin.get_processor_dict(model)
    images = AutoImageProcessor.from_pretrained(model, backend="pil")
    kind = str(settings.get("processor_class") or "")
    if kind not in KINDS:
        raise UnreadableMedia(f"its processor ({kind or 'without a name'}) needs torchvision")
    word, options, expand = KINDS[kind](settings, images)

    def read_by_rule(image: Image.Image) -> tuple[list[int], dict[str, Tensor]]:
        inputs = images(images=[image], return_tensors="pt", **options)
        return list(tokenizer.encode(expand(inputs), add_special_tokens=False).ids), tensors(inputs)

    return PictureReader(tokenizer, word, read_by_rule, feature)


Rule = tuple[str, dict[str, Any], Callable[[Any], str]]
"""The placeholder for a picture, options of the image processor, and a function from its output to the picture's
text."""


def _qwen(settings: dict[str, Any], images: Any) -> Rule:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL: one token for each square of merged patches."""
    word, merged = str(settings.get("image_token") or "<|image_pad|>"), int(images.merge_size) ** 2
    return word, {}, lambda inputs: word * (int(inputs["image_grid_thw"][0].prod()) // merged)


def _pixtral(settings: dict[str, Any], images: object) -> Rule:
    """Pixtral, Mistral 3: rows of tokens with a break token after each row but the last, which has an end token."""
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
