"""The text model inside of a model that sees, called as text models are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class VisionTextModel(torch.nn.Module):
    """`whole`: a model of transformers' image-text kind. With `kv`, the text model alone runs, on ids or embeddings;
    without it, the whole one as it is."""

    def __init__(self, whole: PreTrainedModel) -> None:
        super().__init__()
        self.whole = whole
        self.decoder = whole.get_decoder()
        self.head = whole.get_output_embeddings()
        self.plain = self.decoder.config._attn_implementation
        self.config = whole.config
        self.generation_config = whole.generation_config

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.whole.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.whole.device
        return device

    def num_parameters(self) -> int:
        return int(self.whole.num_parameters())

    def set_attn_implementation(self, name: str) -> None:
        """Of the text model; the vision tower keeps its own."""
        self.decoder.set_attn_implementation(name)

    @contextlib.contextmanager
    def by_itself(self) -> Iterator[None]:
        """Within it, `whole` runs as transformers runs it."""
        packed = self.decoder.config._attn_implementation
        self.set_attn_implementation(self.plain)
        try:
            yield
        finally:
            self.set_attn_implementation(packed)

    def embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.decoder.get_input_embeddings()(ids)
        return embedded

    def forward(
        self,
        input_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        kv: object = None,
        **named: Any,
    ) -> Any:
        if kv is None:
            return self.whole(input_ids=input_ids, logits_to_keep=logits_to_keep, **named)
        hidden = self.decoder(input_ids=input_ids, kv=kv, **named).last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            hidden = hidden.index_select(1, logits_to_keep)
        return _Output(self.head(hidden))


class _Output:
    """As transformers' output, as far as it is read."""

    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def sees(model: PreTrainedModel) -> bool:
    """Whether it is a model of pictures and text whose parts are where transformers has them."""
    return callable(getattr(model, "get_image_features", None)) and model.get_output_embeddings() is not None
