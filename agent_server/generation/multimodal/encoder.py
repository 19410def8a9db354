"""Run a model's encoders: prepared pictures and sounds → embeddings in the text model's space, cached by content."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.device import put
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.language import InnerTextModel

CACHE_BYTES = 128 * 2**20
"""The size of the cache of embeddings on the model's device, for later chunks of a picture or sound and later turns."""


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """The encoder's output for one picture or sound. embeddings: `[places, width]`. deeper: the same for the first
    layers of the text model, to whose hidden states they are added (DeepStack, Qwen3-VL). layered: `[places, layers,
    width]`, the inputs of each layer (Gemma 3n)."""

    embeddings: Tensor
    deeper: tuple[Tensor, ...] = ()
    layered: Tensor | None = None

    @property
    def nbytes(self) -> int:
        layered = () if self.layered is None else (self.layered,)
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.embeddings, *self.deeper, *layered))


class MediaEncoder:
    """The encoders of a model for pictures or sounds. encoded: how often an encoder ran."""

    def __init__(self, model: InnerTextModel, cache_bytes: int = CACHE_BYTES) -> None:
        self.model = model
        self.encoded = 0
        self._cache: OrderedDict[bytes, Features] = OrderedDict()
        self._room = cache_bytes

    def features(self, item: PreparedMedia) -> Features:
        """Return the features of a picture or sound, from the cache if they are there."""
        encoded = self._cache.pop(item.digest, None)
        if encoded is None:
            self.encoded += 1
            device, dtype = self.model.device, self.model.dtype
            inputs = {
                name: put(tensor, device).to(dtype if tensor.is_floating_point() else tensor.dtype)
                for name, tensor in item.tensors.items()
            }
            if item.kind == "image" and not self.model.layered:
                output = self.model.whole.get_image_features(**inputs, return_dict=True)
                deeper = getattr(output, "deepstack_features", None) or ()
                encoded = Features(_rows(output.pooler_output, dtype), tuple(_rows(level, dtype) for level in deeper))
            else:
                # The model's own forward up to its text model: families crop, pad and frame the features of a sound in
                # different ways.
                ids = torch.tensor([item.ids], device=device)
                text_inputs = self.model.text_model_inputs(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)
                places = list(item.places)
                layered = text_inputs["per_layer_inputs"][0, places].to(dtype) if self.model.layered else None
                encoded = Features(text_inputs["inputs_embeds"][0, places].to(dtype), layered=layered)
            self._room -= encoded.nbytes
        self._cache[item.digest] = encoded
        while self._room < 0 and len(self._cache) > 1:
            self._room += self._cache.popitem(last=False)[1].nbytes
        return encoded


def _rows(features: Any, dtype: torch.dtype) -> Tensor:
    """Return `[places, width]` from one tensor, or from one for each crop of the picture."""
    if isinstance(features, Tensor):
        return features.reshape(-1, features.shape[-1]).to(dtype)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in features]).to(dtype)
