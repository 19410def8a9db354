"""Guards: the protocol, guards from patterns, from hooks and from a file, and several combined into one."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import tomllib
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, get_args

import re2
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapters.errors import RequestError
from agent_server.observability.audit import note

log = logging.getLogger("agent_server.guardrails")
Where = Literal["prompt", "text", "reasoning", "arguments", "results"]
"""What is read: what a client sends, the model's text, its reasoning and its calls' arguments, and tools' results."""
WHERE: tuple[Where, ...] = get_args(Where)
MESSAGE = "A guard of this server does not let this through."
LARGE = 64 * 1024
"""Characters that are read on the event loop before others get a turn."""


CLEARED = 1024
"""Documents that are remembered as let through: conversations send theirs again with every turn."""


class Forbidden(RequestError):
    """A guard stopped something. The message is for the client, and says nothing of what was found."""

    def __init__(self, where: Where, message: str) -> None:
        super().__init__("content_filter", message)
        self.where: Where = where


class Watch(Protocol):
    """A guard's reading of one message as it is written."""

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        """(how many characters of the message may leave, whether what follows them is forbidden). last: the message
        ends here, so nothing more need be waited for."""

    def restart(self) -> None:
        """Another message follows. What it says may go on with what the one before it said last: some clients see
        both as one."""


class Guard(Protocol):
    """Reads what is sent and said.

    name: for the operator, in logs and the audit log. on: what it reads. message: told to the client of what it
    stopped; "" for a sentence that fits all. stops: False only notes what it finds. newest: of a prompt it reads only
    what follows the last answer.
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
        """Whether a whole text may not go on."""


class Guards:
    """All guards of an agent: the server's and its own."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._guards = tuple(guards)
        self._by: Mapping[Where, tuple[Guard, ...]] = {
            where: tuple(each for each in self._guards if where in each.on) for where in WHERE
        }
        self._cleared: OrderedDict[bytes, None] = OrderedDict()

    def of(self, where: Where) -> Sequence[Guard]:
        return self._by[where]

    def and_also(self, guards: Iterable[Guard]) -> Guards:
        return Guards((*self._guards, *guards))

    async def check(self, text: str, where: Where) -> None:
        """Read a whole text. Raises Forbidden."""
        for guard in self._by[where]:
            await judge(guard, text, where)

    async def check_prompt(self, everything: Iterable[str], newest: str) -> None:
        """Read what a client sent. newest: what follows the last answer. Raises Forbidden."""
        thorough = [guard for guard in self._by["prompt"] if not guard.newest]
        characters = 0
        for text in everything if thorough else ():
            for guard in thorough:
                await judge(guard, text, "prompt")
            if (characters := characters + len(text)) > LARGE:
                characters = 0
                await asyncio.sleep(0)
        for guard in self._by["prompt"]:
            if guard.newest and newest:
                await judge(guard, newest, "prompt")

    async def check_document(self, pages: Sequence[tuple[str, str]], where: Where) -> None:
        """Read a document. pages: what the model is told of each, and its own words. Guards that know what they look
        for read it whole, so that a page's end divides no phrase; the others are asked a page at a time. What was let
        through is not read again. Raises Forbidden."""
        if not (guards := self._by[where]):
            return
        whole = "\n".join(said for _, said in pages)
        told = "\n".join(told for told, _ in pages)
        key = await asyncio.to_thread(_digest, where, told) if len(told) > LARGE else _digest(where, told)
        if key in self._cleared:
            self._cleared.move_to_end(key)
            return
        headings = "\n".join(told.removesuffix(said) for told, said in pages)
        for guard in guards:
            for text in [page for page, _ in pages] if guard.newest else (whole, headings):
                await judge(guard, text, where)
        self._cleared[key] = None
        if len(self._cleared) > CLEARED:
            self._cleared.popitem(last=False)


def _digest(where: Where, text: str) -> bytes:
    return blake2b(f"{where}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


async def judge(guard: Guard, text: str, where: Where) -> None:
    if text and await guard.forbids(text):
        found(guard, where)


def found(guard: Guard, where: Where) -> None:
    """Note that a guard found something. Raises Forbidden if it stops what it finds."""
    log.warning("the guard %s found something in: %s%s", guard.name, where, "" if guard.stops else " (let through)")
    note("content.withheld" if guard.stops else "content.found", guard=guard.name, where=where)
    if guard.stops:
        raise Forbidden(where, guard.message or MESSAGE)


Hook = Callable[[str], bool | Awaitable[bool]]
EVERY = 200
WINDOW = 8000
"""The last characters of an unfinished message that a hook gets."""
_SENTENCE_END = re.compile(r"[.!?…。！？\n]['\")\]]?(?:\s|$)")


class HookGuard:
    """forbids: told a text, whether it may not go on; what it raises ends the run. every: characters after which it is
    asked although no sentence has ended; 0: only about whole messages."""

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
            raise ValueError(f"the guard {name}: every must be 0 or more")
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
        if self._fresh and (last or self._due(delta)):
            if await self._forbids(self._text):
                return self._cleared, True
            self._cleared = self._length
        return self._cleared, False

    @property
    def _fresh(self) -> int:
        """Characters that it was not asked about."""
        return self._length - self._cleared

    def _due(self, delta: str) -> bool:
        if not self._every:
            return False
        return self._fresh >= self._every or _SENTENCE_END.search(delta) is not None


def as_guard(given: object) -> Guard:
    """A guard, or a function as one. TypeError for what is neither."""
    if hasattr(given, "watch") and hasattr(given, "forbids"):
        return cast(Guard, given)
    if not callable(given):
        raise TypeError(f"{type(given).__name__} is no guard: give a PatternGuard, a HookGuard or a function of a text")
    return HookGuard(getattr(given, "__name__", type(given).__name__), given)


class GuardFileError(ValueError):
    """What is wrong with a file of guards, as a sentence for the operator."""


class _Entry(BaseModel):
    """What every guard has. action: `stop`, or `note` to log what is found and let it through."""

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
    """A guard model. model: its name among the served ones, "" for the first. instructions: told to it as the system's
    words; empty for a model whose template says it all. forbids: what its answer has when a text may not go on. every:
    as for hooks."""

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
    """The guards of a file, and the guard models that it names. Raises GuardFileError."""
    try:
        read = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
        guards = [each.guard() for each in read.guard]
    except OSError as error:
        raise GuardFileError(f"The guards in {path} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GuardFileError(f"The guards in {path} cannot be used: {where}: {first['msg']}.") from None
    except ValueError as error:  # TOML's and the patterns' errors
        raise GuardFileError(f"The guards in {path} cannot be used: {error}.") from None
    if not guards and not read.model:
        raise GuardFileError(f"{path} has no guards; a table [[guard]] or [[model]] is one.")
    return guards, list(read.model)


_UNBOUNDED = int(codes.MAXREPEAT)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_PLACES = {
    codes.AT_BEGINNING: "^", codes.AT_BEGINNING_STRING: r"\A", codes.AT_END: "$",
    codes.AT_BOUNDARY: r"\b", codes.AT_NON_BOUNDARY: r"\B",
}  # fmt: skip
_FLAGS = {codes.SRE_FLAG_IGNORECASE: "i", codes.SRE_FLAG_MULTILINE: "m", codes.SRE_FLAG_DOTALL: "s"}
Items = Sequence[tuple[Any, Any]]


class Unreadable(ValueError):
    """A pattern that cannot be watched for while it is written."""


def beginnings(pattern: str) -> str:
    """An RE2 expression for every text, but the empty one, with which a match of `pattern` begins. Raises Unreadable
    for what is not written alike in RE2 and Python, and for a pattern that matches nothing but the empty text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = parser.parse(pattern)
    except (codes.error, RecursionError, OverflowError, Warning) as error:
        raise Unreadable(f"{pattern} cannot be taken apart: {error}") from None
    begun = _begun(list(parsed))
    if begun is None:
        raise Unreadable(f"{pattern} matches no character")
    return _flagged(parsed.state.flags, 0, begun)


def _begun(items: Items) -> str | None:
    """Of a sequence: the beginnings of its first item, or that and the beginnings of the rest. None if there are
    none."""
    made: str | None = None
    for operation, argument in reversed(items):
        whole, begun = _whole(operation, argument), _begun_of(operation, argument)
        if made is None or begun is None:
            made = begun if made is None else f"{whole}{made}"
        elif begun == whole:
            made = f"{whole}(?:{made})?"
        else:
            made = f"(?:{begun}|{whole}{made})"
    return made


def _begun_of(operation: Any, argument: Any) -> str | None:
    """The beginnings of one item; None for one that has no characters."""
    if operation is codes.AT:
        return None
    if operation in _REPEATS:
        _, most, inner = argument
        begun = _begun(list(inner))
        if most == 0 or begun is None:
            return None
        times = "*" if most == _UNBOUNDED else f"{{0,{most - 1}}}"
        return f"(?:{_sequence(inner)}){times}{begun}"
    if operation is codes.SUBPATTERN:
        _, added, removed, inner = argument
        begun = _begun(list(inner))
        return None if begun is None else _flagged(added, removed, begun)
    if operation is codes.BRANCH:
        each = [begun for branch in argument[1] if (begun := _begun(list(branch))) is not None]
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
        return _class(argument)
    if operation is codes.AT and argument in _PLACES:
        return _PLACES[argument]
    if operation in _REPEATS:
        least, most, inner = argument
        bound = "" if most == _UNBOUNDED else most
        return f"(?:{_sequence(inner)}){{{least},{bound}}}"
    if operation is codes.SUBPATTERN:
        _, added, removed, inner = argument
        return _flagged(added, removed, _sequence(inner))
    if operation is codes.BRANCH:
        return "(?:" + "|".join(_sequence(each) or "(?:)" for each in argument[1]) + ")"
    raise Unreadable(f"has {str(operation).lower()}, which RE2 does not know")


def _sequence(items: Any) -> str:
    return "".join(_whole(*item) for item in items)


def _class(members: Items) -> str:
    made = ""
    for operation, argument in members:
        if operation is codes.NEGATE:
            made += "^"
        elif operation is codes.LITERAL:
            made += _character(argument)
        elif operation is codes.RANGE:
            made += f"{_character(argument[0])}-{_character(argument[1])}"
        else:
            made += _CATEGORIES[argument]
    return f"[{made}]"


def _character(code: int) -> str:
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"


def _flagged(added: int, removed: int, inner: str) -> str:
    on = "".join(letter for flag, letter in _FLAGS.items() if added & flag)
    off = "".join(letter for flag, letter in _FLAGS.items() if removed & flag)
    return f"(?{on}{'-' + off if off else ''}:{inner})"


MOST_HELD = 8192
"""Characters that may wait for the end of a match. What is undecided for longer counts as a match."""

WHITE_SPACE = "[\\s\\x0b\\x1c-\\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
"""What Python splits words at (`str.split`); RE2's `\\s` is ASCII's alone."""


class PatternGuard:
    """Forbids texts in which one of the patterns or phrases is found. Raises ValueError for one that cannot be used.

    phrases: taken as they are, with any white space for a space. ignore_case: of both.
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
        sources = [*patterns, *(_phrase(each) for each in phrases)]
        for source in sources:
            # ValueError for a pattern that would forbid everything.
            if _compiled(name, source).search("") is not None:
                raise ValueError(f"the guard {name}: {source} matches the empty text, so it would stop everything")
        flag = "(?i)" if ignore_case else ""
        found = flag + "|".join(f"(?:{each})" for each in sources)
        begun = "|".join(beginnings(flag + each) for each in sources)
        self.found, self.begun = _compiled(name, found), _compiled(name, rf"(?:{begun})\z")
        self.either = _compiled(name, rf"{found}|(?:{begun})\z")
        """Both: what nearly every delta has neither of is asked once."""

    def watch(self) -> PatternWatch:
        return PatternWatch(self)

    async def forbids(self, text: str) -> bool:
        if len(text) > LARGE:
            return await asyncio.to_thread(lambda: self.found.search(encodable(text)) is not None)
        return self.found.search(encodable(text)) is not None


class PatternWatch:
    def __init__(self, guard: PatternGuard) -> None:
        self._guard = guard
        self._text = ""
        """What a match may still begin in, and the character before it, which \\b and ^ look at."""
        self._first = 0
        """Where in it a match may begin."""
        self._offset = 0
        """Where in the message it begins; below zero where it is of the message before."""

    def restart(self) -> None:
        self._offset = -len(self._text)

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        self._text += encodable(delta)
        text, first, keep = self._text, self._first, len(self._text)
        if self._guard.either.search(text, first) is not None:
            match = self._guard.found.search(text, first)
            # A match that touches the end is decided by what follows it: \b, $, or more of the match.
            if match is not None and (last or match.end() < len(text)):
                return max(self._offset + match.start(), 0), True
            held = self._guard.begun.search(text, first)
            keep = len(text) if held is None else held.start()
        if len(text) - keep > MOST_HELD:
            return max(self._offset + keep, 0), True
        end = self._offset + len(text)
        free = max(self._offset + keep, 0)
        drop = max(keep - 1, 0)
        self._text, self._first, self._offset = text[drop:], keep - drop, self._offset + drop
        return (end if last else free), False


def encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 and so RE2 do not have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _phrase(phrase: str) -> str:
    words = phrase.split()
    if not words:
        raise ValueError("a phrase is empty")
    return WHITE_SPACE.join("".join(re.escape(each) if each.isascii() else each for each in word) for word in words)


def _compiled(name: str, source: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        told = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ValueError(f"the guard {name}: RE2 does not take {source[:200]}: {told}") from None
