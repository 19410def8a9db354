"""Keeps text from clients from becoming control tokens, while the model still sees it as it was written.

A tokenizer turns the text `<|im_end|>` into one control token anywhere in a text, also in a user's message, a tool's
result or a schema. Therefore, before the template is rendered, every control token that is spelled in a client's data
is replaced by a *stand-in*: digits that no template changes. After rendering, the stand-ins are replaced by the text
again, and the stretches that contain them are encoded by a tokenizer without control tokens, which shares the
vocabulary. Everything else is encoded as usual, so a prompt without such text has the same token ids as with plain
encoding.

`model_files.control_tokens` defines which added tokens count: not runs of white space (OLMo's), nor the words that a
vocabulary has in addition to its merges (Gemma's runs of spaces and HTML tags), which ordinary text needs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from agent_server.model_files import control_tokens, without_control_tokens
from agent_server.models.prompting.encoding import TextTokens, can_be_sliced, encoded
from agent_server.models.prompting.segments import Cuts, Key, LiteralFinder, SegmentCache, key_of

_STAND_IN_DIGITS = 7
STAND_IN_TOKENS = 32
"""More than the digits of a stand-in."""
_SCHEMA_WORDS = frozenset(
    {"type", "properties", "description", "items", "required", "enum", "title", "default", "format", "anyOf", "oneOf"}
    | {"allOf", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "pattern", "nullable", "const"}
    | {"additionalProperties", "examples", "function", "name", "parameters", "arguments", "strict", "role", "content"}
    | {"tool_calls", "tool_call_id", "id"}
)


class ControlTokens:
    """The control tokens of one tokenizer, and the encoding of text with and without them."""

    def __init__(self, tokenizer: Tokenizer, templates: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        tokens_by_id = control_tokens(tokenizer, templates)
        self.ids: Mapping[str, int] = {token.content: number for number, token in tokens_by_id.items() if token.content}
        self._numbers = frozenset(tokens_by_id)
        self._contents = "\0".join(self.ids)
        self._literals = LiteralFinder(self.ids)
        self._cuts = Cuts(tokenizer, tokens_by_id)
        self.segment_cache = SegmentCache()
        normalized = any(token.normalized or token.lstrip or token.rstrip for token in tokens_by_id.values())
        self._ask_tokenizer = normalized and tokenizer.normalizer is not None
        self.sliced = can_be_sliced(tokenizer)
        self._plain_tokenizer = without_control_tokens(tokenizer, self._numbers)
        self._joins_prefix: bool | None = None

    def is_control(self, number: int) -> bool:
        return number in self._numbers

    def may_be_spelled_in(self, texts: Iterable[str]) -> bool:
        """Return whether `spans` may find a control token in one of the texts."""
        return self._ask_tokenizer or bool(self._literals.find("\0".join(texts)))

    def are_named_by(self, text: str) -> bool:
        """Return whether a text of several characters occurs in a control token (`think` in `<think>`)."""
        return len(text) > 1 and text in self._contents

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the (start, end) of each control token that a text spells, in order and without overlaps."""
        spelled = self._literals.find(text)
        if not self._ask_tokenizer or not text:
            return spelled
        # A tokenizer that normalises text may find a control token in text that is spelled differently.
        recognised = self._encoded(self._tokenizer, text).spans.values()
        # Sort the spans and merge overlapping ones.
        spans = sorted({*spelled, *(span for span in recognised if span[1] > span[0])})
        joined: list[tuple[int, int]] = []
        for start, end in spans:
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def encode(
        self, text: str, stand_ins: Mapping[str, str] | None = None, pattern: str = "", most: int | None = None
    ) -> list[int]:
        """Encode a rendered text. Its stand-ins, matched by `pattern`, become text and never control tokens. Cached
        segments are not encoded again. most: see `encoded`."""
        stand_ins = stand_ins or {}
        if stand_ins and self._cuts.digits:
            return [number for _, ids in self._stretches(text, stand_ins, pattern, most) for number in ids]
        starts = self._cuts.starts(text)
        segments = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
        keys = [key_of(segment, stand_ins, pattern) for segment in segments]
        cached = self.segment_cache.get(keys)
        ids: list[int] = []
        place = 0
        while place < len(cached):
            if (segment_ids := cached[place]) is not None:
                ids += segment_ids
                place += 1
                continue
            end = next((later for later in range(place, len(cached)) if cached[later] is not None), len(cached))
            new_ids = self._encode_segments(keys[place:end], segments[place:end], stand_ins, pattern, most)
            if new_ids is None:
                return [number for _, piece in self._stretches(text, stand_ins, pattern, most) for number in piece]
            ids += new_ids
            place = end
        return ids

    def _encode_segments(
        self,
        keys: Sequence[Key],
        segments: Sequence[str],
        stand_ins: Mapping[str, str],
        pattern: str,
        most: int | None,
    ) -> list[int] | None:
        """Encode consecutive segments and cache their ids. Return None if the tokenizer does not recognise control
        tokens where they are spelled, so that it is unknown where the text can be cut."""
        starts = [0, *accumulate(map(len, segments))][:-1]
        begins = frozenset(starts)
        pieces: dict[int, list[int]] = {}
        for start, ids in self._stretches("".join(segments), stand_ins, pattern, most):
            segment_start = start if start in begins or not pieces else next(reversed(pieces))
            pieces.setdefault(segment_start, []).extend(ids)
        if list(pieces) != starts:
            return None
        for key, ids in zip(keys, pieces.values(), strict=True):
            self.segment_cache.put(key, ids)
        return [number for ids in pieces.values() for number in ids]

    def _stretches(
        self, text: str, stand_ins: Mapping[str, str], pattern: str, most: int | None
    ) -> list[tuple[int, list[int]]]:
        """Return the text's ids from each control token up to the next, with the position in the text where they
        begin."""
        # A stand-in has a token for each of its digits at most.
        allowance = STAND_IN_TOKENS * len(stand_ins)
        encoding = self._encoded(self._tokenizer, text, None if most is None else most + allowance)
        every = encoding.ids
        stretches: list[tuple[int, list[int]]] = []
        ids: list[int] = []
        # After the last control token: the index in the ids, the position in the text, and where its stretch begins.
        first = start = begins = 0
        for place, (end, after) in [*encoding.spans.items(), (len(every), (len(text), len(text)))]:
            piece = text[start:end]
            restored = restore(piece, stand_ins, pattern)
            ids += every[first:place] if restored == piece else self.plain(restored, first=start == 0, most=most)
            if ids or begins < end:
                stretches.append((begins, ids))
            ids, begins = every[place : place + 1], end
            first, start = place + 1, after
        return stretches

    def plain(self, text: str, first: bool = False, most: int | None = None) -> list[int]:
        """Encode a text without control tokens, whatever it spells.

        first: the text begins the prompt (some tokenizers put a space before the first word only). most: see `encoded`.
        """
        ids: list[int] = []
        waiting = [text]
        while waiting:
            part = waiting.pop()
            encoding = self._unmarked(part, first=first and not ids, most=most)
            waiting.extend(reversed(_within(part, encoding.spans.values())))
            ids += encoding.ids if not encoding.spans else ()
        return ids

    def _unmarked(self, text: str, *, first: bool, most: int | None) -> TextTokens:
        """Encode a text without the added control tokens. The spans have those that the base vocabulary contains."""
        tokenizer = self._plain_tokenizer
        # A tokenizer that puts a space before the first word must not do so in the middle of a prompt, so the text is
        # encoded after a line break, whose ids are then removed.
        if text and not first and self._adds_prefix():
            anchor = tokenizer.encode("\n", add_special_tokens=False).ids
            joined = self._encoded(tokenizer, "\n" + text, None if most is None else most + len(anchor))
            if joined.ids[: len(anchor)] == anchor:
                spans = {place - len(anchor): (start - 1, end - 1) for place, (start, end) in joined.spans.items()}
                return TextTokens(joined.ids[len(anchor) :], spans)
        return self._encoded(tokenizer, text, most)

    def _encoded(self, tokenizer: Tokenizer, text: str, most: int | None = None) -> TextTokens:
        return encoded(tokenizer, text, marked=self._numbers, sliced=self.sliced, most=most)

    def _adds_prefix(self) -> bool:
        """Return whether the plain tokenizer encodes the start of a text differently from text after a control
        token."""
        if self._joins_prefix is None:
            content = next(iter(self.ids), None)
            alone = self._plain_tokenizer.encode("a b", add_special_tokens=False).ids
            after = self._tokenizer.encode(f"{content}a b", add_special_tokens=False).ids if content else [0, *alone]
            self._joins_prefix = list(after[1:]) != list(alone)
        return self._joins_prefix


def _within(text: str, spans: Iterable[tuple[int, int]]) -> list[str]:
    """Cut the text within each span, so that the control token it spells is split; a single character is left out."""
    parts: list[str] = []
    position = 0
    for start, end in spans:
        cut = start + 1 if end - start > 1 else start
        parts.append(text[position:cut])
        position = cut if end - start > 1 else max(end, start + 1)
    return [part for part in (*parts, text[position:]) if part] if parts else []


def restore(text: str, stand_ins: Mapping[str, str], pattern: str) -> str:
    """Replace every stand-in by the text that it stands for."""
    return re.sub(pattern, lambda match: stand_ins.get(match.group(), match.group()), text) if stand_ins else text


class ControlTokenEscaper:
    """Replaces control tokens in one request's data by stand-ins.

    A stand-in is a number that occurs nowhere in the data. It begins with a 9 and has no further 9 in its nonce, so
    that digits next to it cannot be mistaken for its beginning.

    data: JSON-like. characters: the length of all its texts, keys included.
    """

    def __init__(self, controls: ControlTokens, *data: object) -> None:
        self._controls = controls
        texts, names = _texts_and_names(data)
        self.characters = sum(map(len, texts))
        self._nonce = _nonce(texts)
        self._spells_controls = controls.may_be_spelled_in(texts)
        self._names_controls = any(map(controls.are_named_by, names))
        self.stand_ins: dict[str, str] = {}
        self.pattern = f"{self._nonce}[0-9]{{{_STAND_IN_DIGITS}}}"

    def cover(self, text: str) -> str:
        """Replace every control token that a text spells by a stand-in."""
        spans = self._controls.spans(text)
        if not spans:
            return text
        parts: list[str] = []
        position = 0
        for start, end in spans:
            parts += [text[position:start], self.stand_in(text[start:end])]
            position = end
        return "".join([*parts, text[position:]])

    def stand_in(self, text: str) -> str:
        """Create a stand-in for this text."""
        name = f"{self._nonce}{len(self.stand_ins):0{_STAND_IN_DIGITS}d}"
        self.stand_ins[name] = text
        return name

    def cover_all(self, value: object) -> Any:
        """Cover every string in a part of the data, including keys."""
        if not self._spells_controls:
            return value
        if isinstance(value, str):
            return self.cover(value)
        if isinstance(value, (dict, Mapping)):
            return {self.cover(str(key)): self.cover_all(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.cover_all(item) for item in value]
        return value

    def cover_names(self, value: object) -> Any:
        """Replace whole keys and names in the data that could form control tokens together with the template's own
        text: the key `think` in a template that writes `<{{ key }}>`."""
        if isinstance(value, str) or not self._names_controls:
            return value
        if isinstance(value, (dict, Mapping)):
            covered = {}
            for key, item in value.items():
                name = self.stand_in(key) if key not in _SCHEMA_WORDS and self._controls.are_named_by(key) else key
                whole = key == "name" and isinstance(item, str) and self._controls.are_named_by(item)
                covered[name] = self.stand_in(item) if whole else self.cover_names(item)
            return covered
        if isinstance(value, (list, tuple)):
            return [self.cover_names(item) for item in value]
        return value

    def restore(self, text: str) -> str:
        return restore(text, self.stand_ins, self.pattern)


def _texts_and_names(data: object) -> tuple[list[str], set[str]]:
    """Return every text in JSON-like data, including keys, and those that are the data's own names: keys that are not
    the words of schemas and messages, and what is called `name`."""
    texts: list[str] = []
    keys: set[str] = set()
    named: set[str] = set()
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, (list, tuple)):
            pending += value
        elif isinstance(value, (dict, Mapping)):
            texts += map(str, value)
            keys.update(map(str, value))
            pending += value.values()
            if isinstance(name := value.get("name"), str):
                named.add(name)
    return texts, (keys - _SCHEMA_WORDS) | named


def _nonce(texts: Iterable[str]) -> str:
    """ "9" and ten digits from 0 to 8 that none of the texts contains. The same texts give the same nonce."""
    text_with_nines = "\n".join(text for text in texts if "9" in text)
    return _nonce_outside(text_with_nines) if text_with_nines else NONCE


def _nonce_outside(text: str) -> str:
    seed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    while True:
        nonce = "9" + "".join(str(byte % 9) for byte in seed[:10])
        if nonce not in text:
            return nonce
        seed = hashlib.sha256(seed).digest()


NONCE = _nonce_outside("")
