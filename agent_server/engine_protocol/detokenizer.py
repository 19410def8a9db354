"""Token ids → text while they are generated, and stop strings.

A character whose bytes span several tokens is delivered with the last of them. Special tokens keep their literal
spelling, because the output parser reads them. Stop strings are matched across token boundaries, and no part of one is
delivered.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer, decoders
from tokenizers.decoders import DecodeStream

from agent_server.engine_protocol.protocol import Alternative, Token

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(_OTHERS)}
"""Character → byte as in GPT-2's vocabulary: printable Latin-1 represents itself, the other bytes are numbered from
U+0100 on (`bytes_to_unicode` in GPT-2's encoder.py)."""


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a token of byte-level BPE. Added tokens that are not spelled in GPT-2's characters are
    encoded as UTF-8."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()


class ByteLevelTexts:
    """State shared by all decoders of one tokenizer. `texts`: id → text of the tokens that are whole characters."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.texts: dict[int, str] = {}

    @staticmethod
    def fit(tokenizer: Any) -> bool:
        """Return whether this tokenizer's decoder only converts bytes."""
        return isinstance(tokenizer, Tokenizer) and isinstance(tokenizer.decoder, decoders.ByteLevel)

    def bytes_of(self, token_id: int) -> bytes:
        """Return a token's bytes, empty for an id outside of the vocabulary."""
        return byte_level_bytes(self._tokenizer.id_to_token(token_id) or "")


class ByteLevelDetokenizer:
    """One generation's decoder. It needs no tokens of the prompt, since an answer never completes a character of the
    prompt."""

    __slots__ = ("_decoder", "_incomplete", "_shared", "_texts")

    def __init__(self, shared: ByteLevelTexts) -> None:
        self._shared = shared
        self._texts = shared.texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._incomplete = False

    def push(self, token_id: int) -> str:
        if not self._incomplete and (text := self._texts.get(token_id)) is not None:
            return text
        return self._decode(token_id)

    def _decode(self, token_id: int) -> str:
        data = self._shared.bytes_of(token_id)
        whole = not self._incomplete
        text = self._decoder.decode(data)
        self._incomplete = bool(self._decoder.getstate()[0])
        # Only a token that begins and ends at character boundaries always has the same text.
        if whole and not self._incomplete:
            self._texts[token_id] = text
        return text

    def flush(self) -> str:
        self._incomplete = False
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


CONTEXT_TOKENS = 6
"""Tokens from the end of the prompt that a decoder gets first: without them a tokenizer may strip the answer's leading
space."""
MAX_CONTEXT_TOKENS = 64
"""The context is cut to CONTEXT_TOKENS when it exceeds this, so that the list is not cut for every token."""
MAX_PENDING_TOKENS = 12
"""No character has more tokens than this. If they produce no text, the bytes are invalid and become U+FFFD."""
MAX_CACHED_SPELLINGS = 65536


class Detokenizer(Protocol):
    """One generation's decoder."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, empty while a character is incomplete."""

    def flush(self) -> str:
        """Return the remaining text, with incomplete bytes as U+FFFD. The decoder can be used again afterwards."""


class Vocabulary(Protocol):
    """Text ↔ token ids."""

    @property
    def size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Encode `text`. Special tokens are recognised by their spelling; no tokens are added before or after."""

    def spell(self, token_id: int) -> str:
        """Return the text of one token alone, with incomplete bytes as U+FFFD."""

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """Create a decoder for the tokens that follow `context`, the end of the prompt."""


class TokenizerVocabulary:
    """The vocabulary of a `tokenizers.Tokenizer` (the fast tokenizers of transformers have one as
    `backend_tokenizer`)."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._spellings: dict[int, str] = {}
        self._bytes = ByteLevelTexts(tokenizer) if ByteLevelTexts.fit(tokenizer) else None

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def spell(self, token_id: int) -> str:
        text = self._spellings.get(token_id)
        if text is None:
            text = self.tokenizer.decode([token_id], skip_special_tokens=False)
            if len(self._spellings) < MAX_CACHED_SPELLINGS:
                self._spellings[token_id] = text
        return text

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        if self._bytes is not None:
            return ByteLevelDetokenizer(self._bytes)
        return StreamDetokenizer(self.tokenizer, context)


class StreamDetokenizer:
    """`tokenizers.DecodeStream` with a limit on pending tokens and with a flush at the end."""

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(context[-MAX_CONTEXT_TOKENS:])
        self._pending: list[int] = []
        self._restart()

    def _restart(self) -> None:
        """Start a new stream after the context."""
        # DecodeStream would repeat a context that ends within a character, so the context is cut before it.
        while self._context and self._decode(self._context[-CONTEXT_TOKENS:]).endswith("\ufffd"):
            self._context.pop()
        del self._context[:-CONTEXT_TOKENS]
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=False)

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        try:
            text: str | None = self._stream.step(self._tokenizer, token_id)
        except Exception:  # DecodeStream raises if a token changes text that it has already delivered
            return self.flush()
        if text:
            self._settle()
            return text
        return self.flush() if len(self._pending) >= MAX_PENDING_TOKENS else ""

    def _settle(self) -> None:
        self._context += self._pending
        if len(self._context) > MAX_CONTEXT_TOKENS:
            del self._context[:-CONTEXT_TOKENS]
        self._pending.clear()

    def flush(self) -> str:
        if not self._pending:
            return ""
        del self._context[:-CONTEXT_TOKENS]
        before = self._decode(self._context)
        after = self._decode(self._context + self._pending)
        # If the last character is incomplete, a decoder may turn the whole run of bytes into U+FFFD, including
        # characters that were delivered before. The pending tokens are then decoded separately.
        text = after[len(before) :] if after.startswith(before) else self._decode(self._pending)
        self._settle()
        self._restart()
        return text

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class ByteVocabulary:
    """A vocabulary that needs no files: ids 0 to 255 are UTF-8 bytes, and the ids above are `specials` in order."""

    def __init__(self, specials: Sequence[str] = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")) -> None:
        self.specials: Mapping[str, int] = {text: 256 + index for index, text in enumerate(specials)}
        self._texts = {number: text for text, number in self.specials.items()}
        self.size = 256 + len(self.specials)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            at, special = min(((text.find(s), s) for s in self.specials if s in text), default=(len(text), ""))
            ids += text[:at].encode()
            if special:
                ids.append(self.specials[special])
            text = text[at + len(special) :]
        return ids

    def spell(self, token_id: int) -> str:
        return self._texts.get(token_id) or bytes([token_id % 256]).decode(errors="replace")

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        return ByteDetokenizer(self._texts)


class ByteDetokenizer:
    """The decoder of a ByteVocabulary."""

    def __init__(self, specials: Mapping[int, str]) -> None:
        self._specials = specials
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        special = self._specials.get(token_id)
        if special is not None:
            return self.flush() + special
        return self._decoder.decode(bytes([token_id % 256]))

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class StopString:
    """Finds one string in a stream of characters with the algorithm of Knuth, Morris and Pratt: amortised O(1) for each
    character."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # For each prefix of `text`, the length of its longest proper prefix that is also its suffix.
        table, length = [0], 0
        for character in text[1:]:
            while length and text[length] != character:
                length = table[length - 1]
            length += text[length] == character
            table.append(length)
        self._fallback = table

    def push(self, character: str) -> bool:
        """Advance by a character and return whether it completes the string. `matched`: the length of the prefix of the
        string that the text ends with."""
        if self.matched == len(self.text):
            self.matched = self._fallback[-1]
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


class OutputText:
    """Converts one generation's ids to the Tokens that may be delivered.

    A token whose text may begin a stop string is withheld until that is decided. When a stop string is complete,
    `stopped` is set to it, and the tokens that contain a part of it are released with the text before it. Of several
    stop strings the one that ends first counts; if two end with the same character, the longer one. The first
    `min_tokens` tokens are not searched.

    generated: tokens that another engine has delivered. They are not released again, but a character or a stop string
    may begin in them, and they alone may set `stopped`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        context: Sequence[int],
        stop: Iterable[str],
        min_tokens: int,
        generated: Iterable[int] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._decoder = vocabulary.detokenizer(context)
        self._withheld: list[Token] = []
        self.count = 0
        self.stopped: str | None = None
        self.restrict(stop, min_tokens)
        for token_id in generated:
            self.count += 1
            text = self._decoder.push(token_id)
            if self.stopped is None and self.count > self._min_tokens:
                self._match(text)

    def restrict(self, stop: Iterable[str], min_tokens: int) -> None:
        """Use other stop strings from the next token on. They may begin in text that is still withheld."""
        self._stops = [StopString(text) for text in dict.fromkeys(stop)]
        self._min_tokens = min_tokens
        for character in "".join(token.text for token in self._withheld):
            for string in self._stops:
                string.push(character)

    def drain(self) -> list[Token]:
        """Return all withheld tokens, for a generation that ends without another token."""
        return self._take(0)

    def push(
        self,
        token_id: int,
        logprob: float | None = None,
        alternatives: Sequence[tuple[int, float]] | None = None,
        *,
        ends: bool = False,
        last: bool = False,
    ) -> list[Token]:
        """Add a token and return the tokens that may be delivered. ends: it is an end-of-sequence or stop token, which
        is reported without its text. last: no token follows, so no token is withheld."""
        self.count += 1
        text = self._decoder.flush() if ends else self._decoder.push(token_id)
        if last and not ends:
            text += self._decoder.flush()
        spelled: tuple[Alternative, ...] | None = None
        if alternatives is not None:
            spelled = tuple(Alternative(id, self._vocabulary.spell(id), value) for id, value in alternatives)
        token = Token(token_id, text, logprob, spelled)
        if not self._stops and not self._withheld:
            return [token]
        self._withheld.append(token)
        if self.count > self._min_tokens:
            cut = self._match(token.text)
            if cut is not None:
                # Release everything without the characters that belong to the stop string.
                released: list[Token] = []
                for each in reversed(self._withheld):
                    length = max(0, len(each.text) - cut)
                    cut -= len(each.text) - length
                    released.append(Token(each.id, each.text[:length], each.logprob, each.alternatives))
                self._withheld = []
                return released[::-1]
        withheld = 0 if last or ends else max((stop.matched for stop in self._stops), default=0)
        return self._take(withheld)

    def _match(self, text: str) -> int | None:
        """Search new text for stop strings. Return the distance in characters from the start of a complete stop string
        to the end of all text so far, or None if none is complete."""
        for index, character in enumerate(text):
            complete = [len(stop.text) for stop in self._stops if stop.push(character)]
            if complete:
                longest = max(complete)
                self.stopped = next(stop.text for stop in self._stops if (stop.matched == len(stop.text) == longest))
                return longest + len(text) - index - 1
        return None

    def _take(self, withheld: int) -> list[Token]:
        """Release the tokens that end before the last `withheld` characters. Those characters may begin in tokens that
        were already delivered."""
        keep = len(self._withheld)
        while withheld > 0 and keep > 0:
            keep -= 1
            withheld -= len(self._withheld[keep].text)
        released, self._withheld = self._withheld[:keep], self._withheld[keep:]
        return released
