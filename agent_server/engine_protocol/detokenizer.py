"""Token ids → text while they are generated, and stop strings.

A character whose bytes are spread over several tokens is delivered with the last of them. Special tokens keep their
literal spelling, because the output parser reads them. A stop string is found wherever token boundaries fall within it,
and no part of it is delivered.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer, decoders
from tokenizers.decoders import DecodeStream

from agent_server.engine_protocol.protocol import Alternative, Token


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


CONTEXT_TOKENS = 6
"""Tokens of the prompt's end that a decoder is given first: without them a tokenizer may strip the answer's leading
space."""
KEPT_TOKENS = 64
"""The context is cut down to CONTEXT_TOKENS when it exceeds this, so that the list is not cut for every token."""
MAX_HELD_TOKENS = 12
"""No character has more tokens than this. If no text came by then, the bytes are invalid and are shown as U+FFFD."""
MAX_CACHED_SPELLINGS = 65536


class Detokenizer(Protocol):
    """One generation's decoder."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while bytes are held back."""

    def flush(self) -> str:
        """The text that is still held back, with incomplete bytes as U+FFFD. The decoder can be used again
        afterwards."""


class Vocabulary(Protocol):
    """Text ↔ token ids."""

    @property
    def size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens are recognised by their spelling; no token is added before or after."""

    def spell(self, token_id: int) -> str:
        """The text of one token alone, with incomplete bytes as U+FFFD."""

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A decoder for the tokens that follow `context`, the end of the prompt."""


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
    """`tokenizers.DecodeStream` with a bound on the tokens that it holds back, and a flush at the end."""

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(context[-KEPT_TOKENS:])
        self._held: list[int] = []
        self._restart()

    def _restart(self) -> None:
        """Begin a new stream after the context."""
        # DecodeStream would deliver a context that ends within a character a second time, so it begins before that one.
        while self._context and self._decode(self._context[-CONTEXT_TOKENS:]).endswith("\ufffd"):
            self._context.pop()
        del self._context[:-CONTEXT_TOKENS]
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=False)

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        try:
            text: str | None = self._stream.step(self._tokenizer, token_id)
        except Exception:  # DecodeStream raises when a token changes text that it has already delivered
            return self.flush()
        if text:
            self._settle()
            return text
        return self.flush() if len(self._held) >= MAX_HELD_TOKENS else ""

    def _settle(self) -> None:
        self._context += self._held
        if len(self._context) > KEPT_TOKENS:
            del self._context[:-CONTEXT_TOKENS]
        self._held.clear()

    def flush(self) -> str:
        if not self._held:
            return ""
        del self._context[:-CONTEXT_TOKENS]
        before = self._decode(self._context)
        after = self._decode(self._context + self._held)
        # A decoder shows all bytes of a run as U+FFFD when its last character is incomplete, also those of characters
        # before that were delivered: then what is held is decoded by itself.
        text = after[len(before) :] if after.startswith(before) else self._decode(self._held)
        self._settle()
        self._restart()
        return text

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class ByteVocabulary:
    """A vocabulary that needs no files: ids 0 to 255 are bytes of UTF-8, the ids above are `specials` in order."""

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
    """Finds one string in a text that comes in pieces, with the algorithm of Knuth, Morris and Pratt: amortised O(1)
    for each character."""

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
        """True if the whole string has been found with this character. `matched`: how many of its first characters the
        text ends with."""
        if self.matched == len(self.text):
            self.matched = self._fallback[-1]
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


class OutputText:
    """One generation's ids → the Tokens that may be delivered.

    A token whose text may be the beginning of a stop string waits until that is decided. When a stop string is
    complete, `stopped` is set to it, and the tokens that hold a part of it are released with the text before it. Of
    several stop strings the one that ends first counts; if two end with the same character, the longer one. The first
    `min_tokens` tokens are not searched.

    generated: tokens that were delivered before. They are not released again, but a character or a stop string may
    begin in them, and `stopped` may be set by them alone.
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
        self._waiting: list[Token] = []
        self.count = 0
        self.stopped: str | None = None
        self.restrict(stop, min_tokens)
        for token_id in generated:
            # Take a token that another engine delivered.
            self.count += 1
            text = self._decoder.push(token_id)
            if self.stopped is None and self.count > self._min_tokens:
                self._match(text)

    def restrict(self, stop: Iterable[str], min_tokens: int) -> None:
        """Use other stop strings from the next token on. Text that is still waiting may be the beginning of one."""
        self._stops = [StopString(text) for text in dict.fromkeys(stop)]
        self._min_tokens = min_tokens
        for character in "".join(token.text for token in self._waiting):
            for string in self._stops:
                string.push(character)

    def drain(self) -> list[Token]:
        """All waiting tokens, for a generation that ends without another token."""
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
        """Take one token and return the tokens that may be delivered. `ends`: it is an end-of-sequence or stop token,
        which is reported without its text. `last`: no token follows, so no token is held back."""
        self.count += 1
        text = self._decoder.flush() if ends else self._decoder.push(token_id)
        if last and not ends:
            text += self._decoder.flush()
        token = Token(token_id, text, logprob, self._spelled(alternatives))
        return self._release(token, last or ends) if self._stops or self._waiting else [token]

    def _spelled(self, alternatives: Sequence[tuple[int, float]] | None) -> tuple[Alternative, ...] | None:
        if alternatives is None:
            return None
        return tuple(Alternative(number, self._vocabulary.spell(number), value) for number, value in alternatives)

    def _release(self, token: Token, last: bool) -> list[Token]:
        self._waiting.append(token)
        if self.count > self._min_tokens:
            cut = self._match(token.text)
            if cut is not None:
                return self._cut(cut)
        held = 0 if last else max((stop.matched for stop in self._stops), default=0)
        return self._take(held)

    def _match(self, text: str) -> int | None:
        """The number of characters, counted back from the end of all text so far, at which the stop string starts; None
        if no stop string is complete."""
        for index, character in enumerate(text):
            complete = [len(stop.text) for stop in self._stops if stop.push(character)]
            if complete:
                longest = max(complete)
                self.stopped = next(stop.text for stop in self._stops if (stop.matched == len(stop.text) == longest))
                return longest + len(text) - index - 1
        return None

    def _cut(self, characters: int) -> list[Token]:
        """Release all waiting tokens, without that many characters at the end of their text."""
        cut: list[Token] = []
        for token in reversed(self._waiting):
            kept = max(0, len(token.text) - characters)
            characters -= len(token.text) - kept
            cut.append(Token(token.id, token.text[:kept], token.logprob, token.alternatives))
        self._waiting = []
        return cut[::-1]

    def _take(self, held: int) -> list[Token]:
        """Release the waiting tokens that end before the last `held` characters. Those characters may begin in tokens
        that were delivered already."""
        keep = len(self._waiting)
        while held > 0 and keep > 0:
            keep -= 1
            held -= len(self._waiting[keep].text)
        released, self._waiting = self._waiting[:keep], self._waiting[keep:]
        return released
