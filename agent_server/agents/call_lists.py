"""Lets a model write several calls where it would write one.

A model that writes calls in a code fence instead of its template's markers tends to write one object and end, whatever
it was asked for, but writes as many calls as were asked for once it has begun a list: asked to save a game "at stage 7
in easy mode and stage 3 in hard mode", Qwen2.5-Coder 1.5B makes the first of the two calls. Therefore an answer that is
nothing but such an object is generated again from its brace, as a list of calls whose arguments fit their schemas. A
client sees nothing of this, since such an object is held back until the answer ends: with text after it, it is an
example, and stays as it is. So does a call of LONG tokens and more that fits its schema, such as one with a document:
nearly all of its time is spent on its text, which would be another one in the list. So do several calls that fit their
schemas, in a list or after each other. An object in which the model repeats itself is generated again before it ends,
because the list's grammar ends the string.

The calls of a list in place of a complete object are the likeliest ones, whatever the temperature is: of 48 answers to
"What was the temperature in Oslo?", in conversations with the weather of before, Qwen2.5-Coder 1.5B calls the weather
in 28 and repeats it without a call in 15, both of which are right, and samples the time or a difference of two numbers
in five. Where it repeated itself, the list is sampled, because the likeliest text is a repetition too.

A list also tempts such a model to add the steps that it would take after the first call, with invented arguments: asked
to check the weather in Paris and to set a reminder if it rains, it does both at once. How certain it is that the list
goes on tells these from calls that were asked for: over BFCL's parallel cases with several functions it continues a
list with a call of another tool at a probability of 0.98 and more, over requests whose second call needs the result of
the first at 0.94 and less. So a call of another tool below LEAST_CERTAINTY ends the list, and is left out.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import textwrap
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agent_server.agents.plain_answers import LEAST_DECLARED, PlainAnswer, declared_probability
from agent_server.engine_protocol.continuation import may_continue
from agent_server.engine_protocol.protocol import (
    Constraint,
    Control,
    Delta,
    Engine,
    EngineInfo,
    EngineItem,
    Finished,
    GenerationRequest,
    Progress,
    Token,
    Usage,
)
from agent_server.engine_protocol.repetition import EVERY, is_repetitive
from events.grammar.nodes import Node, constant, sequence
from events.parsing.schema import Schema
from events.parsing.unmarked_calls import FENCES, count_calls

MOST_TOKENS = 4096
"""The most tokens of an answer that are held back."""
LONG = 128
"""Tokens of a call from which on it is not made a list."""
ROOM = 64
"""The least max_tokens of an answer that may become a list."""
LEAST_CERTAINTY = 0.96
"""The least probability of the comma before a call of another tool than those that were called before."""
ALTERNATIVES = 20
"""Alternatives requested for each token of a list, from which the probability of its first name is computed."""
_OPENING = re.compile(rf"\s*(?:{'|'.join(FENCES)})?\s*")
_BETWEEN = re.compile(r"[\s}`]*(?:(?<=```)\w*\s*)?([\[{].*)?", re.DOTALL)
"""What follows a call: closing braces and fences, and perhaps the next call, with its fence."""
_BRACKET = "[\n"
_MOST_NAME = 512


def begins_calls(text: str, names: Collection[str]) -> bool | None:
    """Return whether an answer is JSON, fenced or not, whose objects have the name of one of these functions as their
    first key, or lists of such objects, as far as it is written: None if the text is too short to name a function,
    False if other text follows."""
    if any(fence.startswith(text.strip()) for fence in FENCES):
        return None
    rest, beginning = _OPENING.sub("", text, count=1), '{"name":"'
    rest = rest.removeprefix("{") if re.match(r"\{\s*\{", rest) else rest
    compact = re.sub(r"\s+", "", rest[:_MOST_NAME]).removeprefix("[")
    if not compact.startswith(beginning):
        return None if beginning.startswith(compact) else False
    name, quote, _ = compact[len(beginning) :].partition('"')
    if not quote:
        return None if any(each.startswith(name) for each in names) else False
    if name not in names:
        return False
    if text.rstrip()[-1:] in ("}", "]") or "}" not in text:  # inside the JSON, or at its end
        return True
    with contextlib.suppress(json.JSONDecodeError, RecursionError):
        _, end = json.JSONDecoder().raw_decode(rest)
        following = _BETWEEN.fullmatch(rest, end)
        if following is None:
            return False
        return following[1] is None or begins_calls(following[1], names) is not False
    return True


OnRestart = Callable[[GenerationRequest], Awaitable[GenerationRequest]]
Decision = Literal["hold", "send", "list", "plain"]
"""What becomes of an answer: it is held back until more of it is known, sent as it is, generated again as a list, or
generated again from the prompt without tools."""


@dataclass
class _First:
    """A generation that another one may replace.

    begun: when it began, by the monotonic clock. prompt_tokens, cached: numbers of tokens. held, text: its tokens that
    were not sent, and their text without the end. is_call: whether they begin a call. repeats: whether the model
    repeats itself in them. examined: their number when that was last looked for. sent_token: when the first token was
    sent.
    """

    begun: float
    prompt_tokens: int
    cached: int = 0
    held: list[Token] = field(default_factory=list)
    text: str = ""
    is_call: bool = False
    repeats: bool = False
    examined: int = 0
    sent_token: float | None = None

    def add(self, tokens: Sequence[Token], ends: Collection[int]) -> None:
        self.held += tokens
        self.text += "".join(token.text for token in tokens if token.id not in ends)
        if len(self.held) - self.examined >= EVERY:
            self.examined = len(self.held)
            self.repeats = is_repetitive([token.id for token in self.held])

    def note_token(self) -> None:
        if self.sent_token is None:
            self.sent_token = time.monotonic()

    def completed(self, second: Finished) -> Finished:
        """Return the end of the second generation as that of the whole answer to the first one's prompt."""
        first_token = None if self.sent_token is None else self.sent_token - self.begun
        total = time.monotonic() - self.begun
        timings = msgspec.structs.replace(second.timings, first_token=first_token, total=total)
        usage = msgspec.structs.replace(second.usage, prompt_tokens=self.prompt_tokens, cached_tokens=self.cached)
        return msgspec.structs.replace(second, usage=usage, timings=timings)


class ListedCalls:
    """Decides which calls of a list are sent: all until one repeats an earlier call, or calls another tool although the
    model was not certain that the list goes on.

    A call after the first is held back until it is complete. tools, calls: names and JSON of the calls so far. ended:
    whether a call was left out, and so the list has ended.
    """

    def __init__(self) -> None:
        self.ended = False
        self.held: list[Token] = []
        """From the token with the comma on."""
        self._comma = 0
        """The comma's position in the first of them."""
        self._tools: set[str] = set()
        self._calls: set[str] = set()
        self._depth = 0
        self._is_in_string = self._is_escaped = False
        self._call: list[str] = []

    def take(self, token: Token) -> list[Token]:
        """Return the tokens that may be sent after this one."""
        released: list[Token] = []
        comma: int | None = None
        for position, character in enumerate(token.text):
            if self._depth < 0:  # after the list
                break
            if self._depth:
                self._call.append(character)
            if self._is_in_string:
                self._is_in_string = character != '"' or self._is_escaped
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._is_in_string = True
            elif character in "{[":
                if not self._depth:
                    self._call = [character]
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    first = self.held[0] if self.held else token
                    if self._is_left_out("".join(self._call), first.logprob):
                        self.ended = True
                        before = first.text[: self._comma]
                        return [*released, Token(first.id, before)] if before else released
                    released, self.held, comma = released + self.held, [], None
            elif character == "," and not self._depth:
                comma, self._comma = position, position
        if comma is not None or self.held:
            self.held.append(token)
            return released
        return [*released, token]

    def _is_left_out(self, text: str, logprob: float | None) -> bool:
        """Whether a call ends the list. logprob: of the comma before it, None if unknown."""
        try:
            call = json.loads(text)
            name, canonical = str(call["name"]), json.dumps(call, sort_keys=True)
        except (ValueError, LookupError, TypeError, RecursionError):
            return False
        is_certain = logprob is not None and math.exp(logprob) >= LEAST_CERTAINTY
        if canonical in self._calls or (self._tools and name not in self._tools and not is_certain):
            return True
        self._tools.add(name)
        self._calls.add(canonical)
        return False


class CallList(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn's calls are written as a list.

    grammar: what follows the list's opening bracket. tools: the schemas of the tools that may be called, by name.
    tokenize: encodes a text without special tokens. plain_request: returns the request for an answer from the prompt
    without tools, in place of the given one. plain_answer: which answers are replaced by such a one, if the prompt ends
    with the results of unmarked calls. on_call: called before a call without markers is sent.
    """

    grammar: Node
    tools: Mapping[str, Schema]
    tokenize: Callable[[str], Sequence[int]]
    plain_request: OnRestart
    on_call: Callable[[], None]
    plain_answer: PlainAnswer | None = None

    def applies(self, request: GenerationRequest, info: EngineInfo) -> bool:
        """Return whether the beginning of this request's answer may be replaced: no token of it is described to the
        client, it has room for a list, and the engine continues a given beginning and tells log probabilities."""
        sampling, unconstrained = request.sampling, msgspec.structs.replace(request, constraint=None)
        roomy = sampling.max_tokens is None or sampling.max_tokens > ROOM
        scores = sampling.logprobs is None and "logprobs" in info.sampling
        return roomy and scores and not request.generated and may_continue(unconstrained, info)

    async def generate(
        self, engine: Engine, request: GenerationRequest, on_restart: OnRestart
    ) -> AsyncGenerator[EngineItem, None]:
        """Yield what `engine.generate(request)` yields; if that is one call, what the engine generates for a list, and
        if no call is to be made, what it generates from the prompt without tools.

        on_restart: called with the request of a further generation before it begins; returns the one to send.
        """
        first = _First(begun=time.monotonic(), prompt_tokens=len(request.prompt_token_ids))
        sent = msgspec.structs.replace(request, progress=True) if engine.info.tells_progress else request
        if self.plain_answer is not None:
            sent = _with_scores(sent, alternatives=1)
        decision: Decision = "hold"
        async with contextlib.aclosing(engine.generate(sent)) as items:
            async for item in items:
                if isinstance(item, Progress):
                    first.cached = item.cached
                    if request.progress:
                        yield item
                    continue
                if decision == "hold" and not isinstance(item, Control):
                    if isinstance(item, Delta):
                        first.add(item.tokens, request.sampling.stop_token_ids)
                    decision = self._decide(first, item)
                    if decision == "hold":
                        continue
                    if decision != "send":
                        break
                    if first.is_call:
                        self.on_call()
                    if isinstance(item, Delta):
                        item = msgspec.structs.replace(item, tokens=first.held)
                    elif first.held:
                        yield Delta(_without_scores(first.held))
                if isinstance(item, Delta):
                    item = msgspec.structs.replace(item, tokens=_without_scores(item.tokens))
                yield item
        if decision in ("plain", "list"):
            generate = self._generate_plain if decision == "plain" else self._generate_list
            async with contextlib.aclosing(generate(engine, request, first, on_restart)) as items:
                async for item in items:
                    yield item

    def _decide(self, first: _First, item: Delta | Finished) -> Decision:
        """Decide about an answer of which nothing was sent, after an item of it."""
        if isinstance(item, Finished):
            if item.reason != "stop" or isinstance(item.stop, str):
                return "send"
            if self._replaces(first.text, is_complete=True):
                return "plain"
            calls = count_calls(first.text, self.tools) if first.is_call else 0
            is_finished = calls > 1 or (calls == 1 and (_is_list(first.text) or len(first.held) >= LONG))
            return "list" if first.is_call and not is_finished else "send"
        if item.is_reasoning:
            first.is_call = False
            return "send"
        verdict, replaced = begins_calls(first.text, self.tools), self._replaces(first.text, is_complete=False)
        if verdict and not first.is_call and self.plain_answer is not None:  # the name is complete
            replaced = replaced or self.plain_answer.is_unlikely_call(first.held)
        first.is_call = verdict is True
        if replaced:
            return "plain"
        if first.is_call and first.repeats:
            return "list"
        waits = verdict is not False or replaced is None
        return "hold" if waits and len(first.held) < MOST_TOKENS else "send"

    def _replaces(self, text: str, *, is_complete: bool) -> bool | None:
        return self.plain_answer is not None and self.plain_answer.replaces(text, is_complete=is_complete)

    async def replayed_request(self, request: GenerationRequest, text: str) -> GenerationRequest:
        """Return the request whose answer begins with this text, which an earlier server generated.

        Text that replaced a call of no fitting function is continued with the tools in the prompt, since nothing tells
        it from other text.
        """
        if self.plain_answer is not None and self.plain_answer.replaces(text, is_complete=True):
            return await self.plain_request(request)
        return request

    async def _generate_plain(
        self, engine: Engine, request: GenerationRequest, first: _First, on_restart: OnRestart
    ) -> AsyncGenerator[EngineItem, None]:
        plain = await on_restart(await self.plain_request(request))
        async with contextlib.aclosing(engine.generate(plain)) as items:
            async for item in items:
                if isinstance(item, Delta):
                    first.note_token()
                yield first.completed(item) if isinstance(item, Finished) else item

    async def _generate_list(
        self, engine: Engine, request: GenerationRequest, first: _First, on_restart: OnRestart
    ) -> AsyncGenerator[EngineItem, None]:
        second, beginning = self._second(request, first, engine.info)
        second = await on_restart(second)
        calls, sent = ListedCalls(), len(beginning.tokens)
        named: list[Token] | None = []
        """The tokens up to the name of the first call; None once they were sent."""
        async with contextlib.aclosing(engine.generate(_with_scores(second, alternatives=ALTERNATIVES))) as items:
            async for item in items:
                received: Sequence[Token] = item.tokens if isinstance(item, Delta) else ()
                if named is not None and isinstance(item, Delta | Finished):
                    named += received
                    declared = declared_probability(named, self.tools)
                    if declared is None and isinstance(item, Delta):
                        continue
                    if declared is not None and declared < LEAST_DECLARED:
                        break
                    self.on_call()
                    yield beginning
                    first.note_token()
                    received, named = named, None
                tokens: list[Token] = []
                for token in received:
                    tokens += calls.take(token)
                    if calls.ended:
                        tokens += self._encoded("\n]\n```" if "`" in first.text else "\n]")
                        break
                if isinstance(item, Finished) and not calls.ended:
                    tokens += calls.held
                sent += len(tokens)
                if tokens:
                    yield Delta(_without_scores(tokens))
                if calls.ended and not isinstance(item, Finished):
                    usage = Usage(prompt_tokens=first.prompt_tokens, completion_tokens=sent)
                    item = Finished(reason="stop", usage=usage)  # leaving the stream ends the generation
                if isinstance(item, Finished):
                    yield first.completed(item)
                    return
                if not isinstance(item, Delta):
                    yield item
        async with contextlib.aclosing(self._generate_plain(engine, request, first, on_restart)) as items:
            async for item in items:
                yield item

    def _second(self, request: GenerationRequest, first: _First, info: EngineInfo) -> tuple[GenerationRequest, Delta]:
        """Return the request for a list in place of the object that `first` begins, and the list's beginning."""
        text = "".join(token.text for token in first.held)
        before = text[: text.index("[" if _is_list(text) else "{")]
        tokens: list[Token] = []
        size = 0
        for token in first.held:
            size += len(token.text)
            if size > len(before):
                break
            tokens.append(token)
        rest = (before + _BRACKET)[sum(len(token.text) for token in tokens) :]
        tokens += self._encoded(rest)
        # The object as an element of the list, whose lines are indented by one level more.
        end = text.rfind("}") + 1 or len(text)
        level = re.search(r"\n([ \t]*)", text[len(before) : end])
        element = textwrap.indent(text[len(before) : end], level[1] if level else "")
        expected = text if _is_list(text) else f"{before}{_BRACKET}{element}\n]{text[end:]}"
        # An engine that treats the beginning as part of the prompt begins the grammar behind it.
        grammar = sequence(constant(before + "["), self.grammar) if info.continues == "exact" else self.grammar
        sampling = request.sampling
        second = msgspec.structs.replace(
            request,
            request_id=f"{request.request_id}.list",
            sampling=sampling if first.repeats else msgspec.structs.replace(sampling, temperature=0.0),
            generated=tuple(token.id for token in tokens),
            prediction=tuple(self.tokenize(expected)),
            constraint=Constraint(kind="structural_tag", value={"type": "structural_tag", "format": grammar}),
        )
        return second, Delta(tuple(tokens))

    def _encoded(self, text: str) -> list[Token]:
        """The tokens of a text that the model did not generate. The last of them has the text."""
        *silent, last = self.tokenize(text)
        return [*(Token(id, "") for id in silent), Token(last, text)]


def _is_list(text: str) -> bool:
    return "[" in text.partition("{")[0]


def _with_scores(request: GenerationRequest, *, alternatives: int) -> GenerationRequest:
    """Return the request with the log probability of each token and of this number of likeliest alternatives."""
    sampling = msgspec.structs.replace(request.sampling, logprobs=alternatives)
    return msgspec.structs.replace(request, sampling=sampling)


def _without_scores(tokens: Sequence[Token]) -> tuple[Token, ...]:
    return tuple(Token(token.id, token.text) for token in tokens)
