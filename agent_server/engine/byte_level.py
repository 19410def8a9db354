"""Token ids → text where every token is bytes of UTF-8, as with GPT-2's vocabulary and those made after its pattern.

Such a token's text depends on nothing but bytes of the same character before it, so that most tokens are one look-up,
where `tokenizers.DecodeStream` decodes a window of tokens twice for each. What comes out is what the tokenizer itself
makes of the same ids.
"""

from __future__ import annotations

import codecs
from typing import Any

from tokenizers import Tokenizer, decoders


def _bytes_of_characters() -> dict[str, int]:
    """The characters by which GPT-2's vocabulary spells bytes: printable Latin-1 is itself, the rest is counted on from
    U+0100 (`bytes_to_unicode` in its encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _bytes_of_characters()


class ByteLevelTexts:
    """What is shared by all decoders of one tokenizer: the texts of tokens that are whole characters by themselves."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.texts: dict[int, str] = {}

    @staticmethod
    def fit(tokenizer: Any) -> bool:
        """Whether this tokenizer decodes bytes and does nothing else."""
        return isinstance(tokenizer, Tokenizer) and isinstance(tokenizer.decoder, decoders.ByteLevel)

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes; those of its spelling where it is not spelled in bytes, as some added tokens are not. An
        id that no token has is nothing."""
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            return bytes([_BYTES[character] for character in token])
        except KeyError:
            return str(token).encode()


class ByteLevelDetokenizer:
    """One generation's decoder. It needs no context: what the prompt ends with is complete, or broken for good."""

    __slots__ = ("_decoder", "_held", "_shared", "_texts")

    def __init__(self, shared: ByteLevelTexts) -> None:
        self._shared = shared
        self._texts = shared.texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = False

    def push(self, token_id: int) -> str:
        if not self._held and (text := self._texts.get(token_id)) is not None:
            return text
        return self._decode(token_id)

    def _decode(self, token_id: int) -> str:
        data = self._shared.bytes_of(token_id)
        whole = not self._held
        text = self._decoder.decode(data)
        self._held = bool(self._decoder.getstate()[0])
        if whole and not self._held:
            self._texts[token_id] = text
        return text

    def flush(self) -> str:
        self._held = False
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
