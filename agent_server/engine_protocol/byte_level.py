"""Token ids → text for byte-level vocabularies (GPT-2's and those modelled on it), whose tokens are bytes of UTF-8.

The text of such a token depends only on earlier bytes of the same character, so most tokens need one dictionary
look-up. `tokenizers.DecodeStream` decodes a window of tokens twice for each token. Both give the same text.
"""

from __future__ import annotations

import codecs
from typing import Any

from tokenizers import Tokenizer, decoders


def _bytes_of_characters() -> dict[str, int]:
    """Character → byte, as GPT-2's vocabulary spells bytes: printable Latin-1 stands for itself, the other bytes are
    numbered from U+0100 on (`bytes_to_unicode` in GPT-2's encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _bytes_of_characters()


class ByteLevelTexts:
    """Shared by all decoders of one tokenizer. `texts`: id → text of the tokens that are whole characters."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.texts: dict[int, str] = {}

    @staticmethod
    def fit(tokenizer: Any) -> bool:
        """Whether this tokenizer decodes bytes and does nothing else."""
        return isinstance(tokenizer, Tokenizer) and isinstance(tokenizer.decoder, decoders.ByteLevel)

    def bytes_of(self, token_id: int) -> bytes:
        """A token's bytes. Some added tokens are not spelled in GPT-2's characters: their spelling is encoded as UTF-8.
        An id that is not in the vocabulary gives no bytes."""
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            return bytes([_BYTES[character] for character in token])
        except KeyError:
            return str(token).encode()


class ByteLevelDetokenizer:
    """One generation's decoder. It needs no tokens of the prompt, since an answer does not complete a character of
    it."""

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
        # Only a token that begins and ends between characters always has the same text.
        if whole and not self._held:
            self._texts[token_id] = text
        return text

    def flush(self) -> str:
        self._held = False
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
