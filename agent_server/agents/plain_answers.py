"""Lets a model that writes its calls without markers answer from their results.

Such a model was trained neither on its template's calls nor on results beside the tools. Asked for the price of a
stock, Qwen2.5-Coder 1.5B calls the right function and then describes it, calls it again, or ends at once; from the same
conversation without the tools it tells the price. Therefore, once the results are there, the model decides with the
tools in its prompt only whether it makes another call. An answer that is none, or repeats one that was answered since
the user's last message, is generated from the prompt without them. A client sees nothing of this, since nothing has
been sent until then.

When sampled, such a model also makes calls that were not requested: once it has the weather, it multiplies the
temperature by the humidity and sends the product to an invented address. The likeliest function is usually right: in 14
of 16 conversations whose next step is another function, Qwen2.5-Coder 1.5B gives that function's name the highest
probability, and in 13 of 16 that need no further call it prefers the function that it just called, and a repeated call
ends in an answer without the tools. So a call of any function but the likeliest is not made.

If no declared function does what the user asks, such a model calls one nevertheless, although it would rather call one
that is not declared: asked for the closest integer with only a function for the area of a triangle, it begins a name
that fits with a probability of 0.4. Over 107 of BFCL's cases in which a call is right, the names of the declared
functions have at least 0.9 together in all but two, in which the model calls another function anyway; over 62 in which
none is right, less than LEAST_DECLARED in 21. So a call below it is not made either, and the answer comes from the
prompt without the tools.

The ids of calls that were written without markers begin with a word of their own (`UNMARKED_CALL`). By it the next
request is recognised, on every wire and after a restart, if the client returns the ids.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Collection, Sequence

import msgspec
from ag_ui.core import AssistantMessage, Message, Tool, ToolMessage, UserMessage

from agent_server.engine_protocol.protocol import Token
from events.parsing.unmarked_calls import ANNOUNCES
from events.repeated_calls import canonical_arguments

UNMARKED_CALL = "unmarked_call"
RESULTS_GIVEN = (
    "You are a helpful assistant. Functions were called for what the user asked, and the conversation has their "
    "results. Tell the user the outcome in the user's language: in the form that the user asked for, and otherwise in "
    "a sentence."
)
"""Instructions of the answer. Without the tools in its prompt, the model may deny that it can do what it has done
("As an AI language model, I cannot send emails"), thank for the results, or repeat them as JSON."""
LEAST_DECLARED = 0.5
"""The least probability with which a call names any declared function."""
MOST_ANNOUNCEMENT = 32
"""Within how many characters prose announces the call that follows it, if it does."""
_OPENING = re.compile(r"\s*(?:```\w*|<\w*>?)?\s*\[?\s*(?:\{(?=\s*\{))?")
"""What may precede an object. Qwen2.5-Coder's template shows the braces around a call doubled."""
_BEGINNING = '{"name":'
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)')
_MOST_SPACED = 64
"""Characters within which the beginning of a call, with its white space, is looked for."""


def declared_probability(tokens: Sequence[Token], names: Collection[str]) -> float | None:
    """Return the probability with which a call names any of these functions; None if its name is not complete.

    It is the product of those with which each token of the name goes on to one of the names, as far as the likeliest
    alternatives tell. tokens: the beginning of the call, each with its likeliest alternatives.
    """
    text = "".join(token.text for token in tokens)
    found = _NAME.search(text)
    if found is None or found.end() == len(text):
        return None
    closed = [f'{name}"' for name in names]
    probability, position = 1.0, 0
    for token in tokens:
        start, position = position, position + len(token.text)
        if position <= found.start(1) or start > found.end(1) or token.logprob is None:
            continue
        before, lead = text[found.start(1) : start], token.text[: max(0, found.start(1) - start)]
        likely = {each.id: (each.text, each.logprob) for each in token.alternatives or ()}
        likely[token.id] = (token.text, token.logprob)
        possible, declared = 1.0, 0.0
        for other, logprob in likely.values():
            name = before + other[len(lead) :]
            if not other.startswith(lead):  # another spelling of what precedes the name
                possible -= math.exp(logprob)
            elif any(each.startswith(name) or name.startswith(each) for each in closed):
                declared += math.exp(logprob)
        probability *= min(1.0, declared / max(declared, possible))
    return probability


class AnsweredCalls:
    """The calls since the last message of the user whose results a conversation has. A call that failed may be made
    once more, since its cause may be gone.

    tools: the declared tools. Arguments that their schemas do not declare make no difference. The arguments of all
    calls are read, so create it in a thread.
    """

    def __init__(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        self._schemas: dict[str, object] = {tool.name: tool.parameters for tool in tools}
        self._calls: set[tuple[str, str]] = set()
        succeeded: set[str] = set()
        failed: set[tuple[str, str]] = set()
        for message in reversed(messages):
            if isinstance(message, UserMessage):
                break
            if isinstance(message, ToolMessage) and not message.error and not (message.metadata or {}).get("isError"):
                succeeded.add(message.tool_call_id)
            if isinstance(message, AssistantMessage):
                for call in message.tool_calls or ():
                    name = call.function.name
                    made = (name, self._canonical(name, call.function.arguments))
                    (self._calls if call.id in succeeded or made in failed else failed).add(made)

    def has(self, text: str) -> bool | None:
        """Whether an answer is or begins with one of these calls; None if the text is too short to tell."""
        opening = _OPENING.match(text)
        rest = text[opening.end() :] if opening else text
        beginning = re.sub(r"\s", "", rest[:_MOST_SPACED])
        if not beginning.startswith(_BEGINNING):
            return None if _BEGINNING.startswith(beginning) else False
        try:
            call, _ = json.JSONDecoder().raw_decode(rest)
            name = call["name"]
            return (name, self._canonical(name, json.dumps(call.get("arguments")))) in self._calls
        except json.JSONDecodeError:
            return None
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    def _canonical(self, name: str, arguments: str) -> str:
        return canonical_arguments(arguments, self._schemas.get(name))


def ends_with_unmarked_calls(messages: Sequence[Message]) -> bool:
    """Whether a conversation ends with the results of calls that the model wrote without markers."""
    end = len(messages)
    while end and isinstance(messages[end - 1], ToolMessage):
        end -= 1
    last = messages[end - 1] if 0 < end < len(messages) else None
    calls = (last.tool_calls or ()) if isinstance(last, AssistantMessage) else ()
    return bool(calls) and all(_is_unmarked(call.id) for call in calls)


def with_calls_as_written(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation whose unmarked calls are text again, in a fence, as the model wrote them.

    A model that sees them in its template's markers takes the next calls for something to describe: asked to send an
    email after another call, Qwen2.5-Coder says in four of six conversations that it was sent, and calls nothing. With
    its own fence before it, it calls the function in all six.
    """
    written: list[Message] = []
    for message in messages:
        calls = message.tool_calls if isinstance(message, AssistantMessage) else None
        if isinstance(message, AssistantMessage) and calls and all(_is_unmarked(call.id) for call in calls):
            objects = [
                f'{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments or "{}"}}}'
                for call in calls
            ]
            text = objects[0] if len(objects) == 1 else "[\n  " + ",\n  ".join(objects) + "\n]"
            before = f"{message.content}\n" if message.content else ""
            update = {"content": f"{before}```json\n{text}\n```", "tool_calls": None}
            message = message.model_copy(update=update)
        written.append(message)
    return written


def _is_unmarked(call_id: str) -> bool:
    return call_id.startswith(UNMARKED_CALL)


class PlainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn answers from the results of unmarked calls.

    answered: the calls that are not made again; None if the model may repeat its calls. names: of the declared tools.
    """

    answered: AnsweredCalls | None
    names: frozenset[str]

    def replaces(self, text: str, *, is_complete: bool) -> bool | None:
        """Return whether an answer that begins with this text is generated from the prompt without tools; None if the
        text is too short to tell.

        That is so for text that begins like prose and announces no call, for an empty answer, and for calls of which
        the first repeats an earlier one. is_complete: whether the model has ended the answer.
        """
        start = text.lstrip()
        if not start:
            return is_complete or None
        if start[0].isalnum():  # no marker, fence or bracket; calls in Python's syntax begin with a name
            if any(name.startswith(start) or start.startswith(name) for name in self.names):
                return False
            if ANNOUNCES.search(start[:MOST_ANNOUNCEMENT]):
                return False
            return is_complete or len(start) >= MOST_ANNOUNCEMENT or None
        return False if self.answered is None else self.answered.has(text)

    @staticmethod
    def is_unlikely_call(tokens: Sequence[Token]) -> bool:
        """Return whether a call names a function other than the one that the model was likeliest to call.

        tokens: the beginning of the answer up to the name or further, each with its likeliest alternative.
        """
        name = _NAME.search("".join(token.text for token in tokens))
        ends = itertools.accumulate(len(token.text) for token in tokens)
        return name is not None and any(
            end > name.start(1)
            and end - len(token.text) < name.end(1)
            and any(each.id != token.id and each.logprob > (token.logprob or 0.0) for each in token.alternatives or ())
            for token, end in zip(tokens, ends, strict=True)
        )
