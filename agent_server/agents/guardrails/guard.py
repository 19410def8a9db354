"""Guards: the protocol, guards built from patterns, hooks and files, and several combined into one."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import tomllib
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, get_args

import re2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapters.errors import RequestError
from agent_server.bounded import BoundedCache
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.observability.audit import note

log = logging.getLogger("agent_server.guardrails")
Where = Literal["prompt", "text", "reasoning", "arguments", "results"]
"""What a guard checks: a client's input, the model's text, its reasoning, its calls' arguments, or tools' results."""
WHERE: tuple[Where, ...] = get_args(Where)
MESSAGE = "This was blocked by a guard of this server."
LARGE = 64 * 1024
"""How many characters are checked on the event loop before it yields, or before the check moves to a thread."""


MAX_CLEARED = 1024
"""How many allowed documents are remembered: a conversation sends its documents again with every turn."""


class Forbidden(RequestError):
    """A guard blocked something. The message is for the client and does not reveal what was found."""

    def __init__(self, where: Where, message: str) -> None:
        super().__init__("content_filter", message)
        self.where: Where = where


class Watch(Protocol):
    """A guard's check of one message while it is being written."""

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        """Check the next characters. Returns how many characters of the message may be sent, and whether what follows
        them is forbidden. last: the message ends here, so nothing needs to wait."""

    def restart(self) -> None:
        """Start the next message. A match may span both messages, because some clients show them as one text."""


class Guard(Protocol):
    """Checks texts.

    name: for the operator, in logs and the audit log. on: what it checks. message: for the client when it blocks
    something; "" for a general sentence. stops: False only records what it finds. newest: of a prompt, check only what
    follows the last answer.
    """

    @property
    def name(self) -> str: ...
    @property
    def on(self) -> frozenset[Where]: ...
    @property
    def message(self) -> str: ...
    @property
    def stops(self) -> bool: ...
    @property
    def newest(self) -> bool: ...

    def watch(self) -> Watch: ...

    async def forbids(self, text: str) -> bool:
        """Whether a complete text is forbidden."""


class Guards:
    """All guards of an agent: the server's and its own."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._guards = tuple(guards)
        self._by_kind: Mapping[Where, tuple[Guard, ...]] = {
            where: tuple(each for each in self._guards if where in each.on) for where in WHERE
        }
        self._cleared: BoundedCache[bytes, bool] = BoundedCache(MAX_CLEARED)

    def of(self, where: Where) -> Sequence[Guard]:
        return self._by_kind[where]

    def and_also(self, guards: Iterable[Guard]) -> Guards:
        return Guards((*self._guards, *guards))

    async def check(self, text: str, where: Where) -> None:
        """Check a complete text. Raises Forbidden."""
        for guard in self._by_kind[where]:
            await check_text(guard, text, where)

    async def check_prompt(self, everything: Iterable[str], newest: str) -> None:
        """Check a client's input. newest: the part that follows the last answer. Raises Forbidden."""
        thorough = [guard for guard in self._by_kind["prompt"] if not guard.newest]
        characters = 0
        for text in everything if thorough else ():
            for guard in thorough:
                await check_text(guard, text, "prompt")
            if (characters := characters + len(text)) > LARGE:
                characters = 0
                await asyncio.sleep(0)
        for guard in self._by_kind["prompt"]:
            if guard.newest and newest:
                await check_text(guard, newest, "prompt")

    async def check_document(self, pages: Sequence[tuple[str, str]], where: Where) -> None:
        """Check a document. Raises Forbidden.

        Guards with fixed patterns check it as a whole, so that a page break cannot split a phrase; the others check one
        page at a time. A document that was allowed is not checked again.

        pages: (text in the prompt, the page's own text) for each page.
        """
        if not (guards := self._by_kind[where]):
            return
        document = "\n".join(own_text for _, own_text in pages)
        prompt_text = "\n".join(page for page, _ in pages)
        if len(prompt_text) > LARGE:
            key = await REQUEST_THREADS.run(_digest, where, prompt_text)
        else:
            key = _digest(where, prompt_text)
        if self._cleared.get(key):
            return
        headings = "\n".join(page.removesuffix(own_text) for page, own_text in pages)
        for guard in guards:
            for text in [page for page, _ in pages] if guard.newest else (document, headings):
                await check_text(guard, text, where)
        self._cleared.put(key, True)


def _digest(where: Where, text: str) -> bytes:
    return blake2b(f"{where}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


async def check_text(guard: Guard, text: str, where: Where) -> None:
    if text and await guard.forbids(text):
        report(guard, where)


def report(guard: Guard, where: Where) -> None:
    """Record that a guard found something. Raises Forbidden if the guard stops what it finds."""
    log.warning("the guard %s found something in: %s%s", guard.name, where, "" if guard.stops else " (let through)")
    note("content.withheld" if guard.stops else "content.found", guard=guard.name, where=where)
    if guard.stops:
        raise Forbidden(where, guard.message or MESSAGE)


Hook = Callable[[str], bool | Awaitable[bool]]
EVERY = 200
WINDOW = 8000
"""How many of the last characters of an unfinished message a hook gets."""
_SENTENCE_END = re.compile(r"[.!?…。！？\n]['\")\]]?(?:\s|$)")


class HookGuard:
    """A guard that calls a function.

    forbids: takes a text and returns whether it is forbidden; an exception ends the run. every: call it after this many
    characters even if no sentence has ended; 0: only for complete messages.
    """

    newest = True

    def __init__(
        self,
        name: str,
        forbids: Hook,
        *,
        on: Iterable[Where] = WHERE,
        every: int = EVERY,
        message: str = "",
        stops: bool = True,
    ) -> None:
        if every < 0:
            raise ValueError(f"the guard {name}: every must be 0 or more, not {every}")
        self.name = name
        self.on = frozenset(on)
        self.every = every
        self.message = message
        self.stops = stops
        self._forbids = forbids

    def watch(self) -> HookWatch:
        return HookWatch(self.forbids, self.every)

    async def forbids(self, text: str) -> bool:
        answer = self._forbids(text)
        return bool(await answer if inspect.isawaitable(answer) else answer)


class HookWatch:
    def __init__(self, forbids: Callable[[str], Awaitable[bool]], every: int) -> None:
        self._forbids = forbids
        self._every = every
        self._text = ""
        self._length = self._cleared = 0

    def restart(self) -> None:
        self._text = ""
        self._length = self._cleared = 0

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        self._text = (self._text + delta)[-max(WINDOW, self._fresh + len(delta)) :]
        self._length += len(delta)
        every, fresh = self._every, self._fresh
        due = last or (every and (fresh >= every or _SENTENCE_END.search(delta) is not None))
        if fresh and due:
            if await self._forbids(self._text):
                return self._cleared, True
            self._cleared = self._length
        return self._cleared, False

    @property
    def _fresh(self) -> int:
        """The number of characters that the hook has not checked yet."""
        return self._length - self._cleared


def as_guard(value: object) -> Guard:
    """Convert a function to a guard; a guard is returned unchanged. Raises TypeError for anything else."""
    if hasattr(value, "watch") and hasattr(value, "forbids"):
        return cast(Guard, value)
    if not callable(value):
        raise TypeError(
            f"{type(value).__name__} is not a guard. Use a PatternGuard, a HookGuard or a function of a text"
        )
    return HookGuard(getattr(value, "__name__", type(value).__name__), value)


class GuardFileError(ValueError):
    """An error in a file of guards, as a sentence for the operator."""


class _Entry(BaseModel):
    """The settings of every guard. action: `stop`, or `note` to log a finding and let it through."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100)]
    on: Annotated[tuple[Where, ...], Field(min_length=1)] = WHERE
    message: Annotated[str, Field(max_length=500)] = ""
    action: Literal["stop", "note"] = "stop"


class PatternEntry(_Entry):
    patterns: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    ignore_case: bool = True

    def guard(self) -> Guard:
        return PatternGuard(
            self.name,
            patterns=self.patterns,
            phrases=self.phrases,
            on=self.on,
            ignore_case=self.ignore_case,
            message=self.message,
            stops=self.action == "stop",
        )


class ModelGuardEntry(_Entry):
    """A guard model.

    model: its name among the served ones, "" for the first. instructions: the system message; empty for a model whose
    template contains the instructions. forbids: a text that its answer contains if the checked text is forbidden.
    every: as for hooks.
    """

    on: Annotated[tuple[Where, ...], Field(min_length=1)] = ("prompt", "text")
    model: str = ""
    instructions: str = ""
    forbids: Annotated[str, Field(min_length=1)] = "unsafe"
    every: Annotated[int, Field(ge=0)] = EVERY
    max_tokens: Annotated[int, Field(gt=0, le=256)] = 16


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    guard: tuple[PatternEntry, ...] = ()
    model: tuple[ModelGuardEntry, ...] = ()


def load_guard_file(path: Path) -> tuple[list[Guard], list[ModelGuardEntry]]:
    """Load the guards of a file, and the guard models that it names. Raises GuardFileError."""
    try:
        file = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
        guards = [each.guard() for each in file.guard]
    except OSError as error:
        raise GuardFileError(f"The guards in {path} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GuardFileError(f"The guards in {path} cannot be used: {where}: {first['msg']}.") from None
    except ValueError as error:  # TOML's and the patterns' errors
        raise GuardFileError(f"The guards in {path} cannot be used: {error}.") from None
    if not guards and not file.model:
        raise GuardFileError(f"{path} has no guards. Add a table [[guard]] or [[model]].")
    return guards, list(file.model)


_UNBOUNDED = int(codes.MAXREPEAT)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_ANCHORS = {
    codes.AT_BEGINNING: "^", codes.AT_BEGINNING_STRING: r"\A", codes.AT_END: "$",
    codes.AT_BOUNDARY: r"\b", codes.AT_NON_BOUNDARY: r"\B",
}  # fmt: skip
_FLAGS = {codes.SRE_FLAG_IGNORECASE: "i", codes.SRE_FLAG_MULTILINE: "m", codes.SRE_FLAG_DOTALL: "s"}
Items = Sequence[tuple[Any, Any]]


class UncheckablePattern(ValueError):
    """A pattern that cannot be checked incrementally."""


def prefix_regex(pattern: str) -> str:
    """An RE2 expression for every non-empty prefix of a match of `pattern`.

    Raises UncheckablePattern for a pattern that RE2 and Python do not write alike, or that matches only the empty text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = parser.parse(pattern)
    except (codes.error, RecursionError, OverflowError, Warning) as error:
        raise UncheckablePattern(f"{pattern} cannot be parsed: {error}") from None
    prefix = _prefix_of_sequence(list(parsed))
    if prefix is None:
        raise UncheckablePattern(f"{pattern} matches no character")
    return _with_flags(parsed.state.flags, 0, prefix)


def _prefix_of_sequence(items: Items) -> str | None:
    """The prefixes of a sequence: prefixes of its first item, or the whole item followed by prefixes of the rest. None
    if there are none."""
    expression: str | None = None
    for operation, argument in reversed(items):
        whole, prefix = _whole(operation, argument), _prefix_of_item(operation, argument)
        if expression is None or prefix is None:
            expression = prefix if expression is None else f"{whole}{expression}"
        elif prefix == whole:
            expression = f"{whole}(?:{expression})?"
        else:
            expression = f"(?:{prefix}|{whole}{expression})"
    return expression


def _prefix_of_item(operation: Any, argument: Any) -> str | None:
    """The prefixes of one item; None for one that matches no characters."""
    if operation is codes.AT:
        return None
    if operation in _REPEATS:
        _, largest, inner = argument
        prefix = _prefix_of_sequence(list(inner))
        if largest == 0 or prefix is None:
            return None
        times = "*" if largest == _UNBOUNDED else f"{{0,{largest - 1}}}"
        return f"(?:{_sequence(inner)}){times}{prefix}"
    if operation is codes.SUBPATTERN:
        _, added, removed, inner = argument
        prefix = _prefix_of_sequence(list(inner))
        return None if prefix is None else _with_flags(added, removed, prefix)
    if operation is codes.BRANCH:
        each = [prefix for branch in argument[1] if (prefix := _prefix_of_sequence(list(branch))) is not None]
        return f"(?:{'|'.join(each)})" if each else None
    return _whole(operation, argument)


def _whole(operation: Any, argument: Any) -> str:
    if operation is codes.LITERAL:
        return _character(argument)
    if operation is codes.NOT_LITERAL:
        return f"[^{_character(argument)}]"
    if operation is codes.ANY:
        return "."
    if operation is codes.IN:
        members = ""
        for kind, member in argument:
            if kind is codes.NEGATE:
                members += "^"
            elif kind is codes.LITERAL:
                members += _character(member)
            elif kind is codes.RANGE:
                members += f"{_character(member[0])}-{_character(member[1])}"
            else:
                members += _CATEGORIES[member]
        return f"[{members}]"
    if operation is codes.AT and argument in _ANCHORS:
        return _ANCHORS[argument]
    if operation in _REPEATS:
        smallest, largest, inner = argument
        bound = "" if largest == _UNBOUNDED else largest
        return f"(?:{_sequence(inner)}){{{smallest},{bound}}}"
    if operation is codes.SUBPATTERN:
        _, added, removed, inner = argument
        return _with_flags(added, removed, _sequence(inner))
    if operation is codes.BRANCH:
        return "(?:" + "|".join(_sequence(each) or "(?:)" for each in argument[1]) + ")"
    raise UncheckablePattern(f"has {str(operation).lower()}, which RE2 does not support")


def _sequence(items: Any) -> str:
    return "".join(_whole(*item) for item in items)


def _character(code: int) -> str:
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"


def _with_flags(added: int, removed: int, inner: str) -> str:
    on = "".join(letter for flag, letter in _FLAGS.items() if added & flag)
    off = "".join(letter for flag, letter in _FLAGS.items() if removed & flag)
    return f"(?{on}{'-' + off if off else ''}:{inner})"


MAX_HELD = 8192
"""How many characters may wait for the end of a match. An undecided match that is longer counts as a match."""

WHITE_SPACE = "[\\s\\x0b\\x1c-\\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
"""The white space at which Python splits words (`str.split`); RE2's `\\s` covers only ASCII."""


class PatternGuard:
    """Forbids texts that contain one of the patterns or phrases. Raises ValueError for one that cannot be used.

    phrases: matched literally, except that a space matches any white space. ignore_case: for both.
    """

    newest = False

    def __init__(
        self,
        name: str,
        *,
        patterns: Sequence[str] = (),
        phrases: Sequence[str] = (),
        on: Iterable[Where] = WHERE,
        ignore_case: bool = True,
        message: str = "",
        stops: bool = True,
    ) -> None:
        if not patterns and not phrases:
            raise ValueError(f"the guard {name} has neither patterns nor phrases")
        self.name = name
        self.on = frozenset(on)
        self.message = message
        self.stops = stops
        sources = list(patterns)
        for phrase in phrases:
            words = phrase.split()
            if not words:
                raise ValueError("a phrase is empty")
            escaped = ("".join(re.escape(each) if each.isascii() else each for each in word) for word in words)
            sources.append(WHITE_SPACE.join(escaped))
        for source in sources:
            # Refuse a pattern that would forbid everything.
            if _compiled(name, source).search("") is not None:
                raise ValueError(f"the guard {name}: {source} matches the empty text, so it would forbid every text")
        flag = "(?i)" if ignore_case else ""
        match_pattern = flag + "|".join(f"(?:{each})" for each in sources)
        prefix_pattern = "|".join(prefix_regex(flag + each) for each in sources)
        self.full_match = _compiled(name, match_pattern)
        self.partial_match = _compiled(name, rf"(?:{prefix_pattern})\z")
        self.any_match = _compiled(name, rf"{match_pattern}|(?:{prefix_pattern})\z")
        """Either of them. Most deltas have neither, so one search decides for them."""

    def watch(self) -> PatternWatch:
        return PatternWatch(self)

    async def forbids(self, text: str) -> bool:
        if len(text) > LARGE:
            return await REQUEST_THREADS.run(lambda: self.full_match.search(encodable(text)) is not None)
        return self.full_match.search(encodable(text)) is not None


class PatternWatch:
    def __init__(self, guard: PatternGuard) -> None:
        self._guard = guard
        self._text = ""
        """The text in which a match may still start, and the character before it, which \\b and ^ look at."""
        self._first = 0
        """The index in it from which a match may start."""
        self._offset = 0
        """The index in the message at which it starts; negative if that is in the message before."""

    def restart(self) -> None:
        self._offset = -len(self._text)

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        self._text += encodable(delta)
        text, first, keep = self._text, self._first, len(self._text)
        if self._guard.any_match.search(text, first) is not None:
            match = self._guard.full_match.search(text, first)
            # Whether a match at the very end counts depends on what follows: \b, $, or more of the match.
            if match is not None and (last or match.end() < len(text)):
                return max(self._offset + match.start(), 0), True
            partial = self._guard.partial_match.search(text, first)
            keep = len(text) if partial is None else partial.start()
        if len(text) - keep > MAX_HELD:
            return max(self._offset + keep, 0), True
        end = self._offset + len(text)
        free = max(self._offset + keep, 0)
        drop = max(keep - 1, 0)
        self._text, self._first, self._offset = text[drop:], keep - drop, self._offset + drop
        return (end if last else free), False


def encodable(text: str) -> str:
    """The text without lone surrogates, which UTF-8, and therefore RE2, cannot represent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _compiled(name: str, source: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as error:
        detail = error.args[0] if error.args else error
        reason = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
        raise ValueError(f"the guard {name}: RE2 does not accept {source[:200]}: {reason}") from None
