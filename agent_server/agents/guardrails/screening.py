"""The texts of a request, for guards: all that a client can have put into a prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

from ag_ui.core import AssistantMessage, DocumentPart, Message, RunAgentInput

from adapters.errors import RequestError
from agent_server.agents.guardrails.guard import Guards, Where
from agent_server.agents.guardrails.guarded_stream import Unescaped, strings
from agent_server.media.documents import DocumentText
from events.options import GenerationOptions

IDS = "Guards read what is sent to this server, and a prompt of token ids cannot be read: send it as text."


Opened = Callable[[Sequence[Message]], Awaitable[list[Message]]]
"""Messages → the same with text in place of their documents."""


async def screen(guards: Guards, input: RunAgentInput, options: GenerationOptions, opened: Opened) -> None:
    """Read a request before anything of it is kept or told to the model. Raises Forbidden, RequestError for a request
    that cannot be read, and what `opened` raises for a document that cannot be."""
    if not guards.of("prompt"):
        return
    await _screen_documents(guards, input.messages, opened)
    raw = options.raw_prompt
    if raw is not None and not isinstance(raw, str):
        raise RequestError("invalid_request", IDS, "prompt")
    newest = "\n\n".join(text for message in _after_answer(input.messages) for text in _said(message))
    await guards.check_prompt(chain(_texts(input, raw), _options_texts(options)), raw or newest)


async def _screen_documents(guards: Guards, messages: Sequence[Message], opened: Opened) -> None:
    """Those of the whole conversation: what is sent again was let through before, or was sent to nobody here."""
    if any(isinstance(part, DocumentPart) for message in messages for part in _parts(message)):
        await check_documents(guards, await opened(messages), ("prompt", "prompt"))


async def check_documents(
    guards: Guards, messages: Sequence[Message], where: tuple[Where, Where] = ("prompt", "results")
) -> None:
    """Read what documents said, in whose place texts are. where: what those of users and of tools count as. Raises
    Forbidden."""
    for message in messages:
        pages: list[tuple[str, str]] = []
        for part in [part for part in _parts(message) if isinstance(part, DocumentText)]:
            if part.page == 0 and pages:
                await guards.check_document(pages, where[message.role == "tool"])
                pages = []
            pages.append((part.text, part.said))
        if pages:
            await guards.check_document(pages, where[message.role == "tool"])


def _parts(message: Message) -> Sequence[object]:
    return message.content if isinstance(message.content, list) else ()


def _texts(input: RunAgentInput, raw: str | None) -> Iterator[str]:
    if raw is not None:
        yield raw
    for message in input.messages:
        yield from _said(message)
        yield from joined(message.content)
        yield getattr(message, "name", None) or ""
        for call in getattr(message, "tool_calls", None) or ():
            yield call.function.name
            yield Unescaped().read(call.function.arguments)
    for tool in input.tools or ():
        yield tool.name
        yield tool.description
        yield from strings(tool.parameters)
    for each in input.context or ():
        yield from (each.description, each.value)
    for answer in input.resume or ():
        yield from strings(answer.payload)
    yield from strings(input.state)
    yield from strings(input.forwarded_props)  # agents of other frameworks are given them


def _options_texts(options: GenerationOptions) -> Iterator[str]:
    """What templates write besides the conversation: their variables, and the shape that an answer must have."""
    yield from strings(options.template_kwargs)
    yield from options.tool_grammars.values()
    if options.response_format is not None:
        yield options.response_format.name or ""
        yield from strings(options.response_format.value)


def _said(message: Message) -> Iterator[str]:
    """The texts of a message's content; media cannot be read."""
    content = message.content
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (str(part.text) for part in content if part.type == "text")
    elif content is not None:
        yield from strings(content)


def joined(content: object) -> Iterator[str]:
    """The texts of content in parts as one. Templates write them one behind the other, or a line each: what a guard
    looks for may begin in one part and end in the next."""
    if isinstance(content, list) and len(texts := [text for part in content if (text := _text_of(part))]) > 1:
        yield "".join(texts)
        yield "\n".join(texts)


def _text_of(part: object) -> str:
    found = part.get("text") if isinstance(part, dict) else getattr(part, "text", None)
    return found if isinstance(found, str) else ""


def _after_answer(messages: list[Message]) -> list[Message]:
    """What was said since the model last did."""
    last = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], AssistantMessage)), -1)
    return messages[last + 1 :]
