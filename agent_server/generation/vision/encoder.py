"""The vision tower: prepared pictures → embeddings in the text model's space, kept for a while by content."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_server.generation.device import put
from agent_server.generation.vision.inputs import PreparedPicture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEPT_BYTES = 128 * 2**20
"""Of embeddings, on the model's device, for chunks of a picture and for the turns that follow."""


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """embeddings: `[places, width]`. deeper: the same for the first layers of the text model, which they are added to
    (DeepStack, Qwen3-VL)."""

    embeddings: Tensor
    deeper: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.embeddings, *self.deeper))


class PictureEncoder:
    """`model`: one that has `get_image_features`."""

    def __init__(self, model: PreTrainedModel, kept_bytes: int = KEPT_BYTES) -> None:
        self.model = model
        self.encoded = 0
        self._kept: OrderedDict[bytes, Features] = OrderedDict()
        self._room = kept_bytes

    def features(self, picture: PreparedPicture) -> Features:
        """Of one picture; computed once while it is kept."""
        found = self._kept.pop(picture.digest, None)
        if found is None:
            found = self._encode(picture)
            self._room -= found.nbytes
        self._kept[picture.digest] = found
        while self._room < 0 and len(self._kept) > 1:
            self._room += self._kept.popitem(last=False)[1].nbytes
        return found

    def _encode(self, picture: PreparedPicture) -> Features:
        self.encoded += 1
        device, dtype = self.model.device, self.model.dtype
        tensors = {
            name: put(tensor, device).to(dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in picture.tensors.items()
        }
        output = self.model.get_image_features(**tensors, return_dict=True)
        deeper = getattr(output, "deepstack_features", None) or ()
        return Features(_rows(output.pooler_output, dtype), tuple(_rows(level, dtype) for level in deeper))


def _rows(features: Any, dtype: torch.dtype) -> Tensor:
    """`[places, width]` of a tensor for each crop of the picture, or of all of them as one."""
    if isinstance(features, Tensor):
        return features.reshape(-1, features.shape[-1]).to(dtype)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in features]).to(dtype)
