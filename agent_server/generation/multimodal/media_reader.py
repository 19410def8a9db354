"""The base of the readers of pictures and of sounds: their placeholder in a prompt."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from agent_server.model_files import control_tokens

TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})


class UnreadableMedia(Exception):
    """Pictures, or sounds, cannot be read for a model. The message is a clause."""


class MediaReader:
    """Turns media of one kind into tokens and tensors. word: the text of its placeholder token, as the chat template
    writes it. placeholder: that token's id."""

    def __init__(self, tokenizer: Tokenizer, word: str) -> None:
        self.word = word
        self.tokenizer = tokenizer
        number = tokenizer.token_to_id(word)
        if number is None:
            raise UnreadableMedia(f"{word} is not a token of its vocabulary")
        self.placeholder: int = number
        self._control = frozenset(control_tokens(tokenizer))

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def is_control(self, token: int) -> bool:
        return token in self._control


def tensors(inputs: Any) -> dict[str, Tensor]:
    """Return a processor's outputs without those for the text."""
    return {name: torch.as_tensor(value) for name, value in inputs.items() if name not in TEXT_INPUTS}
