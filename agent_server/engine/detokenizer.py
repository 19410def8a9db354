"""Token ids → text as it is generated, and stop strings.

A character whose bytes are spread over several tokens appears with the last of them. Special tokens keep their
literal spelling, because the output parser reads them. A stop string is found wherever the token boundaries fall, and
none of it is ever released.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenizers.decoders import DecodeStream

from agent_server.engine.byte_level import ByteLevelDetokenizer, ByteLevelTexts
from agent_server.engine.protocol import Alternative, Token

CONTEXT_TOKENS = 6
"""Prompt tokens that a decoder sees first, so that a leading space is kept where the tokenizer would strip it."""
KEPT_TOKENS = 64
"""Tokens of context that may pile up before they are cut down to those; a list is not cut for every token."""
MAX_HELD_TOKENS = 12
"""No character needs more tokens than this; beyond it the bytes are broken and are shown as U+FFFD."""
MAX_CACHED_SPELLINGS = 65536


class Detokenizer(Protocol):
    """One generation's decoder."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while bytes are held back."""

    def flush(self) -> str:
        """What is still held back, broken bytes as U+FFFD; the decoder is then as good as new."""


class Vocabulary(Protocol):
    """Text ↔ token ids."""

    @property
    def size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens recognised by their spelling, nothing added around it."""

    def spell(self, token_id: int) -> str:
        """One token by itself; bytes that are no character as U+FFFD."""

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        """A decoder for what follows `context`, the end of the prompt."""


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
    """`tokenizers.DecodeStream`, with the bytes it holds back bounded and flushed."""

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(context[-CONTEXT_TOKENS:])
        self._held: list[int] = []
        self._restart()

    def _restart(self) -> None:
        """A new stream after the context; one that ends within a character would be sent again as a whole."""
        del self._context[:-CONTEXT_TOKENS]
        if self._decode(self._context).endswith("\ufffd"):
            self._context = []
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=False)

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        try:
            text: str | None = self._stream.step(self._tokenizer, token_id)
        except Exception:  # the decoder rewrote what it had already given out
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
        self._settle()
        self._restart()
        shared = next(
            (at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before)
        )
        return after[shared:]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


class ByteVocabulary:
    """Ids 0 to 255 are bytes of UTF-8, the ids above are `specials` in order: a vocabulary that needs no files."""

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
    """Finds one string in a text that comes in pieces, by Knuth, Morris and Pratt: O(1) a character, amortised."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _fallbacks(text)

    def push(self, character: str) -> bool:
        """True when the string ends with this character; `matched` is how much of it the text ends with."""
        if self.matched == len(self.text):
            self.matched = self._fallback[-1]
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    table, length = [0], 0
    for character in text[1:]:
        while length and text[length] != character:
            length = table[length - 1]
        length += text[length] == character
        table.append(length)
    return table


class OutputText:
    """One generation's ids → Tokens that may be delivered.

    Tokens whose text may turn out to be the beginning of a stop string wait until that is decided, each with its own
    text. When a stop string is complete, `stopped` is that string, and the tokens that it touches are released with
    the text that precedes it. Of several stop strings the one that ends first counts, of two that end together the
    longer. Up to `min_tokens` nothing is matched.

    generated: tokens that were delivered before. They come out no more, but a character or a stop string may have
    begun in them, and `stopped` may be set at once.
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
            self._pass(token_id)

    def _pass(self, token_id: int) -> None:
        """Take a token that was delivered before."""
        self.count += 1
        text = self._decoder.push(token_id)
        if self.stopped is None and self.count > self._min_tokens:
            self._match(text)

    def restrict(self, stop: Iterable[str], min_tokens: int) -> None:
        """New stop strings from the next token on; text that already waits may be their beginning."""
        self._stops = [StopString(text) for text in dict.fromkeys(stop)]
        self._min_tokens = min_tokens
        for character in "".join(token.text for token in self._waiting):
            for string in self._stops:
                string.push(character)

    def drain(self) -> list[Token]:
        """Everything that waits, for a generation that ends without another token."""
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
        """Take one token; return those that may go out. `ends`: it is an end-of-sequence or stop token, which is
        reported without its text. `last`: nothing follows, so that nothing is held back."""
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
        """Characters, counted from the end of everything so far, from the start of the stop string on."""
        for index, character in enumerate(text):
            found = [len(stop.text) for stop in self._stops if stop.push(character)]
            if found:
                longest = max(found)
                self.stopped = next(stop.text for stop in self._stops if _complete(stop, longest))
                return longest + len(text) - index - 1
        return None

    def _cut(self, characters: int) -> list[Token]:
        """Drop that many characters at the end of the waiting text; every waiting token goes out."""
        cut: list[Token] = []
        for token in reversed(self._waiting):
            kept = max(0, len(token.text) - characters)
            characters -= len(token.text) - kept
            cut.append(Token(token.id, token.text[:kept], token.logprob, token.alternatives))
        self._waiting = []
        return cut[::-1]

    def _take(self, held: int) -> list[Token]:
        """The waiting tokens that end before the last `held` characters, which may reach into what was delivered."""
        keep = len(self._waiting)
        while held > 0 and keep > 0:
            keep -= 1
            held -= len(self._waiting[keep].text)
        released, self._waiting = self._waiting[:keep], self._waiting[keep:]
        return released


def _complete(stop: StopString, length: int) -> bool:
    return stop.matched == len(stop.text) == length
