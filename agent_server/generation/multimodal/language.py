"""The text model within a model for pictures or sounds, with the interface of a text model."""

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
    """A multimodal model that is called like a text model. With `kv`, its forward runs only the text model, on ids or
    embeddings; without it, the whole model.

    whole: the model. layered: its layers get inputs of their own for each token (Gemma 3n). text_tokens: the number of
    ids that are text; Gemma 3n's encoders have embeddings of their own for higher ids.
    """

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
        """Set the attention of the text model; the encoders keep theirs."""
        self.decoder.set_attn_implementation(name)

    @contextlib.contextmanager
    def own_attention(self) -> Iterator[None]:
        """Let `whole` run with the attention that it was loaded with."""
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
        """Return the inputs of each layer, `[1, tokens, layers, width]`, for a model that is `layered` (Gemma 3n)."""
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

    def text_model_inputs(self, **named: Tensor) -> dict[str, Any]:
        """Return the arguments with which the whole model's forward calls its text model."""
        captured: dict[str, Any] = {}

        def take(module: torch.nn.Module, args: object, kwargs: dict[str, Any]) -> None:
            captured.update(kwargs)
            raise _ReachedError

        hook = self.decoder.register_forward_pre_hook(take, with_kwargs=True)
        try:
            with self.own_attention(), contextlib.suppress(_ReachedError):
                self.whole(use_cache=False, **named)
        finally:
            hook.remove()
        return captured


class _ReachedError(Exception):
    """Raised at the call of the text model, to end the forward there."""


class _Output:
    """The part of transformers' output that is used."""

    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def has_vision(model: PreTrainedModel) -> bool:
    """Return whether the model accepts pictures and has the parts of transformers' image-text models."""
    return callable(getattr(model, "get_image_features", None)) and model.get_output_embeddings() is not None


def has_audio(model: PreTrainedModel) -> bool:
    """Return whether the model accepts sounds: its configuration has an encoder for them and a placeholder token."""
    config = model.config
    has_token = any(getattr(config, name, None) is not None for name in ("audio_token_id", "audio_token_index"))
    return has_token and has_sound_tower(config) and model.get_output_embeddings() is not None


def has_sound_tower(config: PreTrainedConfig) -> bool:
    return any(getattr(config, name, None) is not None for name in ("audio_config", "encoder_config"))


def image_token(config: PreTrainedConfig) -> int:
    """Return the token that is replaced by a picture's features."""
    token = getattr(config, "image_token_id", None)
    return int(config.image_token_index if token is None else token)
