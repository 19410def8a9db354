"""The towers: prepared pictures and sounds → embeddings in the text model's space, kept for a while by content."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import put
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.language import InnerTextModel

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
        self._cache: OrderedDict[bytes, Features] = OrderedDict()
        self._room = kept_bytes

    def features(self, item: PreparedMedia) -> Features:
        """Of one picture or sound; computed once while it is kept."""
        encoded = self._cache.pop(item.digest, None)
        if encoded is None:
            self.encoded += 1
            encoded = self._merged(item) if item.kind == "audio" or self.model.layered else self._encode_picture(item)
            self._room -= encoded.nbytes
        self._cache[item.digest] = encoded
        while self._room < 0 and len(self._cache) > 1:
            self._room += self._cache.popitem(last=False)[1].nbytes
        return encoded

    def _encode_picture(self, picture: PreparedMedia) -> Features:
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
