"""The text model inside of a model that sees or hears, called as text models are."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class InnerTextModel(torch.nn.Module):
    """`whole`: a model of transformers' image-text or multimodal kind. With `kv`, the text model alone runs, on ids or
    embeddings; without it, the whole one as it is. text_tokens: ids below it are text's; Gemma 3n's towers have
    embeddings of their own for those above."""

    def __init__(self, whole: PreTrainedModel) -> None:
        super().__init__()
        self.whole = whole
        self.decoder = whole.get_decoder()
        self.head = whole.get_output_embeddings()
        self._selects = "logits_to_keep" in inspect.signature(whole.forward).parameters
        self.plain = self.decoder.config._attn_implementation
        self.config = whole.config
        text = whole.config.get_text_config()
        self.layered = bool(getattr(text, "hidden_size_per_layer_input", 0))
        towers = (getattr(whole.config, name, None) for name in ("vision_config", "audio_config"))
        offsets = (getattr(tower, "vocab_offset", None) for tower in towers)
        self.text_tokens = min([text.vocab_size, *(offset for offset in offsets if offset)])
        self._cap = getattr(text, "final_logit_softcapping", None)
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
        """Of the text model; the towers keep their own."""
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

    def per_layer(self, ids: Tensor) -> Tensor:
        """`[1, tokens, layers, width]`: what each layer is handed of a token, of models that are `layered` (Gemma
        3n)."""
        inputs: Tensor = self.decoder.get_per_layer_inputs(ids)
        return inputs

    def forward(
        self,
        input_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        kv: object = None,
        **named: Any,
    ) -> Any:
        if kv is None:
            if self._selects:
                return self.whole(input_ids=input_ids, logits_to_keep=logits_to_keep, **named)
            output = self.whole(input_ids=input_ids, **named)
            selection = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            output.logits = output.logits[:, selection]
            return output
        hidden = self.decoder(input_ids=input_ids, kv=kv, **named).last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            hidden = hidden.index_select(1, logits_to_keep)
        logits = self.head(hidden)
        return _Output(logits if self._cap is None else self._cap * torch.tanh(logits / self._cap))

    def handed(self, **named: Tensor) -> dict[str, Any]:
        """What the whole model's forward hands to its text model."""
        captured: dict[str, Any] = {}

        def take(module: torch.nn.Module, args: object, kwargs: dict[str, Any]) -> None:
            captured.update(kwargs)
            raise _ReachedError

        hook = self.decoder.register_forward_pre_hook(take, with_kwargs=True)
        try:
            with self.by_itself(), contextlib.suppress(_ReachedError):
                self.whole(use_cache=False, **named)
        finally:
            hook.remove()
        return captured


class _ReachedError(Exception):
    """The text model is reached; there is nothing more to do."""


class _Output:
    """As transformers' output, as far as it is read."""

    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def has_vision(model: PreTrainedModel) -> bool:
    """Whether the model reads pictures, with its parts where transformers has them."""
    return callable(getattr(model, "get_image_features", None)) and model.get_output_embeddings() is not None


def has_audio(model: PreTrainedModel) -> bool:
    """Whether the model reads sounds: its configuration has an encoder for them and a placeholder token."""
    config = model.config
    has_token = any(getattr(config, name, None) is not None for name in ("audio_token_id", "audio_token_index"))
    return has_token and has_sound_tower(config) and model.get_output_embeddings() is not None


def has_sound_tower(config: PreTrainedConfig) -> bool:
    return any(getattr(config, name, None) is not None for name in ("audio_config", "encoder_config"))


def image_token(config: PreTrainedConfig) -> int:
    """In whose places a picture's features stand."""
    token = getattr(config, "image_token_id", None)
    return int(config.image_token_index if token is None else token)
