"""Probing a chat template: render conversations of known words and search for these in the result.

A template is judged only by what it renders. Every probe word is unique and not changed by trimming and JSON encoding,
so its presence and its surroundings are found by string search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from events.template.environment import ChatTemplate, Message, TemplateError, variables

SYSTEM, USER, USER_TWO = "SYSTEMWORDQ", "USERWORDQ", "SECONDUSERWORDQ"
CONTENT, REASONING = "CONTENTWORDQ", "REASONWORDQ"
RESULT = "RESULTWORDQ"
FUNCTION, FUNCTION_TWO = "first_function_q", "second_function_q"
ARGUMENT, ARGUMENT_TWO = "first_argument_q", "second_argument_q"
VALUE, VALUE_TWO = "FIRSTVALUEQ", "SECONDVALUEQ"
VALUE_THREE, VALUE_FOUR = "THIRDVALUEQ", "FOURTHVALUEQ"
CALL_ID, CALL_ID_TWO = "idAq00001", "idBq00002"  # nine letters and digits: the only length that Mistral accepts
LONG_CALL_ID = "call_0123456789abcdef"

Arguments = Literal["object", "string"]
CallContent = Literal["empty", "null", "absent", "part"]
ReasoningField = Literal["reasoning_content", "reasoning", "thinking", "tool_plan", "content_part", "thinking_part"]
REASONING_FIELDS: tuple[ReasoningField, ...] = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_plan",  # Command A: only in messages with calls
    "content_part",
    "thinking_part",
)
_CONTENTS: tuple[CallContent, ...] = ("empty", "null", "absent", "part")
_STYLES: tuple[Arguments, ...] = ("object", "string")
_SHAPES = [(named, content, style) for named in (False, True) for content in _CONTENTS for style in _STYLES]
_TOOLS_ROLE = "functions"
_TOOL_ROLES = ("tool", "ipython", "function", "observation", "tool_response", "tool_results")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The features that a template renders, and the form in which it expects messages.

    system_role: a first system message is rendered. system_anywhere: so is a later one, in its place.
    string_content: content may be a string instead of a list of parts. alternation: two consecutive messages of one
    role are refused or lost. arguments: the form of a call's arguments that is rendered as the model writes it.
    call_content: the value for "no text" in a message with calls.
    text_with_calls: a message may have both; thought_beside_text: and reasoning as well. short_ids: call ids must be
    nine letters and digits. id_is_name: the name is rendered only as part of the id (`functions.NAME:0`).
    reasoning_field: the message key whose text is rendered as reasoning, or None. needs_reasoning: an assistant message
    without that key is refused (K2 Horizon). tool_role: the role of results, None
    if no role renders them. tools_variable: the variable for the declared tools; tools_in_system: tools are instead a
    key "tools" of the system message, as JSON text (Phi-4-mini); tools_role: they are a message of this role, as JSON
    text, which every conversation must have (Firefunction v1).
    needs_user: a conversation without a user message is refused (Qwen3.5).
    """

    system_role: bool = False
    system_anywhere: bool = False
    string_content: bool = True
    alternation: bool = False
    tools: bool = False
    tool_calls: bool = False
    parallel_calls: bool = False
    tool_role: str | None = None
    arguments: Arguments = "object"
    call_content: CallContent = "empty"
    text_with_calls: bool = True
    thought_beside_text: bool = True
    short_ids: bool = False
    id_is_name: bool = False
    reasoning_field: ReasoningField | None = None
    needs_reasoning: bool = False
    needs_system: bool = False
    needs_user: bool = False
    tools_variable: str = "tools"
    tools_in_system: bool = False
    tools_role: str | None = None


def user(text: str = USER) -> Message:
    return {"role": "user", "content": text}


def system(text: str = SYSTEM) -> Message:
    return {"role": "system", "content": text}


def declaring(role: str, tools: Sequence[Message]) -> Message:
    """Return the message of a role that declares tools."""
    return {"role": role, "content": json.dumps([tool["function"] for tool in tools], ensure_ascii=False)}


def assistant(text: str = CONTENT) -> Message:
    return {"role": "assistant", "content": text}


def call(name: str, arguments: Mapping[str, Any], call_id: str = CALL_ID, style: Arguments = "object") -> Message:
    shaped: Any = dict(arguments) if style == "object" else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": shaped}}


def calling(calls: list[Message], content: CallContent = "empty") -> Message:
    message: Message = {"role": "assistant", "tool_calls": calls}
    return {**message, **no_text(content)}


def no_text(content: CallContent) -> Message:
    """Return what a message with calls has for its text if it has none. A template that looks into `content[0]` without
    asking for its type (Command A Reasoning) needs a part."""
    values: dict[CallContent, object] = {"empty": "", "null": None, "part": [{"type": "text", "text": ""}]}
    return {} if content == "absent" else {"content": values[content]}


def with_reasoning(message: Message, field: ReasoningField, text: str = REASONING) -> Message:
    """Return the message with reasoning in `field`."""
    if field not in ("content_part", "thinking_part"):
        return {**message, field: text}
    thought: object = text if field == "content_part" else [{"type": "text", "text": text}]
    parts: list[Message] = [{"type": "thinking", "thinking": thought}]
    content = message.get("content")
    if isinstance(content, str) and content:
        parts.append({"type": "text", "text": content})
    return {**message, "content": parts}


def result(text: str = RESULT, call_id: str = CALL_ID, role: str = "tool", name: str = FUNCTION) -> Message:
    return {"role": role, "content": text, "tool_call_id": call_id, "name": name}


def declaration(name: str) -> Message:
    properties = {
        ARGUMENT: {"type": "string", "description": "one"},
        ARGUMENT_TWO: {"type": "string", "description": "two"},
    }
    schema = {"type": "object", "properties": properties, "required": [ARGUMENT]}
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": schema}}


TOOLS = [declaration(FUNCTION), declaration(FUNCTION_TWO)]


class Probe:
    """Renders probe conversations and caches the results. refusal: the last reason for which the template refused one.
    renderings: their number."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.renderings = 0
        self.refusal = ""
        self.head: list[Message] = []  # messages that must precede the first user message
        self.content_parts = False
        self.needed_field: ReasoningField | None = None  # the key that every assistant message must have
        self.tools_variable = "tools"
        self.capabilities = Capabilities()
        self._cache: dict[str, tuple[str | None, str]] = {}

    def render(self, messages: list[Message], *, tools: bool = False, prompt: bool = False, **extra: Any) -> str | None:
        """Return the text of a conversation after `head`, or None if the template refuses it."""
        shaped = self.head + messages
        if self.content_parts:
            shaped = [
                {**message, "content": [{"type": "text", "text": message["content"]}]}
                if isinstance(message.get("content"), str)
                else message
                for message in shaped
            ]
        if self.needed_field:
            shaped = [{self.needed_field: "", **m} if m["role"] == "assistant" else m for m in shaped]
        key = repr((shaped, tools and self.tools_variable, prompt, extra))
        if key not in self._cache:
            self.renderings += 1
            declared: dict[str, Any] = {self.tools_variable: TOOLS} if tools else {}
            try:
                text = self.template.render(
                    shaped, add_generation_prompt=prompt, max_characters=400_000, **declared, **extra
                )
                self._cache[key] = text, ""
            except TemplateError as error:
                self._cache[key] = None, str(error)
        rendered, refusal = self._cache[key]
        self.refusal = refusal or self.refusal
        return rendered

    def shows(self, messages: list[Message], *needles: str, tools: bool = False, **extra: Any) -> bool:
        """Return whether the conversation renders and contains every needle."""
        text = self.render(messages, tools=tools, **extra)
        return text is not None and all(needle in text for needle in needles)


def capabilities(probe: Probe) -> Capabilities:
    """Determine all capabilities in order; later probes use the results of earlier ones. Sets `probe.head`."""
    tools_role = None
    if not probe.shows([user()], USER) and probe.shows([declaring(_TOOLS_ROLE, TOOLS), user()], FUNCTION, USER):
        tools_role = _TOOLS_ROLE
        probe.head = [declaring(tools_role, [])]
    strings = probe.shows([user()], USER) or probe.shows([system(), user()], USER)
    text = probe.render([{"role": "user", "content": [{"type": "text", "text": USER}]}])
    parts = text is not None and USER in text and "'text'" not in text and '"text"' not in text  # only the part's text
    probe.content_parts = parts and not strings
    needs_system = not probe.shows([user()], USER) and probe.shows([system(), user()], USER)
    probe.head = [system()] if needs_system else probe.head
    if probe.render([user(), assistant()]) is None:
        keys = (field for field in REASONING_FIELDS if field not in ("content_part", "thinking_part"))
        probe.needed_field = next((f for f in keys if probe.shows([user(), {**assistant(), f: ""}], CONTENT)), None)
    alternation = not probe.shows([user(), assistant(), user(USER_TWO), user("THIRDWORDQ")], USER_TWO, "THIRDWORDQ")
    tools = _tools_variable(probe)
    probe.tools_variable = tools or "tools"
    calls = _call_shapes(probe)
    field = _reasoning_field(probe, calls)
    system_role = needs_system or probe.shows([system(), user()], SYSTEM, USER)
    text = probe.render([user(), assistant(), system(), user(USER_TWO)])
    system_in_place = text is not None and -1 < text.find(CONTENT) < text.find(SYSTEM) < text.find(USER_TWO)
    instructions = [] if probe.head else [system()]
    thought_beside_text = True
    if field is not None and calls.tool_calls:
        # A message with text, reasoning and a call, which gpt-oss refuses.
        one = call(FUNCTION, {ARGUMENT: VALUE}, style=calls.arguments)
        message = with_reasoning({**calling([one], calls.call_content), "content": CONTENT}, field)
        thought_beside_text = probe.render([user(), message], tools=True) is not None
    return msgspec.structs.replace(
        calls,
        system_role=system_role,
        system_anywhere=system_in_place,
        string_content=strings or not parts,
        alternation=alternation,
        tools=tools is not None or tools_role is not None or _tools_in_system(probe),
        tools_in_system=tools is None and _tools_in_system(probe),
        tools_variable=probe.tools_variable,
        tools_role=tools_role,
        tool_role=calls.tool_role or _tool_role(probe, assistant()),
        reasoning_field=field,
        needs_reasoning=probe.needed_field is not None,
        thought_beside_text=thought_beside_text,
        needs_system=needs_system,
        needs_user=system_role
        and (probe.render(instructions) is None or probe.render(instructions, tools=True) is None),
    )


def _tools_variable(probe: Probe) -> str | None:
    """Return the variable for declared tools: `tools`, or another one that the template reads."""
    if probe.shows([user()], FUNCTION, tools=True):
        return "tools"
    read = variables(probe.template.source)
    for name in ("xml_tools", "available_tools", "custom_tools", "python_tools", "tool_definitions"):
        passed: dict[str, Any] = {name: TOOLS}
        if name in read and probe.shows([user()], FUNCTION, **passed):
            return name
    return None


def _tools_in_system(probe: Probe) -> bool:
    return probe.shows([{**system(), "tools": json.dumps(TOOLS)}, user()], FUNCTION)


def _call_shapes(probe: Probe) -> Capabilities:
    """Return the first form of a tool call that the template renders faithfully, or else the first that it renders with
    escaped arguments or as a Python literal."""
    best: Capabilities | None = None
    for id_is_name, content, style in _SHAPES:
        call_id = f"functions.{FUNCTION}:0" if id_is_name else CALL_ID
        message = calling([call(FUNCTION, {ARGUMENT: VALUE}, call_id, style)], content)
        text = probe.render([user(), message], tools=True) or ""
        tail = text[text.rfind(USER) :]
        if VALUE in text and FUNCTION in tail:
            shape = Capabilities(tool_calls=True, arguments=style, call_content=content, id_is_name=id_is_name)
            if f'\\"{ARGUMENT}' not in tail and f"'{ARGUMENT}'" not in tail:
                return _call_details(probe, shape)
            best = best or shape
        if id_is_name and best:
            break
    return _call_details(probe, best) if best else Capabilities()


def _call_details(probe: Probe, shape: Capabilities) -> Capabilities:
    one = call(FUNCTION, {ARGUMENT: VALUE}, style=shape.arguments)
    two = call(FUNCTION_TWO, {ARGUMENT: VALUE_TWO}, CALL_ID_TWO, shape.arguments)
    message = calling([one], shape.call_content)
    long_id = calling([{**one, "id": LONG_CALL_ID}], shape.call_content)
    role = _tool_role(probe, message)
    pair = [user(), calling([one, two], shape.call_content)]
    answer = [result(call_id=LONG_CALL_ID, role=role)] if role else []
    return msgspec.structs.replace(
        shape,
        text_with_calls=probe.shows([user(), {**message, "content": CONTENT}], CONTENT, VALUE, tools=True),
        parallel_calls=probe.shows(pair, VALUE, VALUE_TWO, tools=True),
        tool_role=role,
        short_ids=not probe.shows([user(), long_id, *answer], VALUE, tools=True),
    )


def _tool_role(probe: Probe, message: Message) -> str | None:
    """Return the first role with which a result after this message is rendered."""
    return next((r for r in _TOOL_ROLES if probe.shows([user(), message, result(role=r)], RESULT, tools=True)), None)


def _reasoning_field(probe: Probe, calls: Capabilities) -> ReasoningField | None:
    """Return the key whose text is rendered, with plain content or else with a call. A content part counts only if its
    text is rendered without the part's own notation, which templates show that print any content."""
    message = calling([call(FUNCTION, {ARGUMENT: VALUE}, style=calls.arguments)], calls.call_content)
    for carrier in [assistant(), message] if calls.tool_calls else [assistant()]:
        for field in REASONING_FIELDS:
            for extra in ({}, {"enable_thinking": True, "thinking": True}):
                text = probe.render([user(), with_reasoning(carrier, field)], tools=carrier is message, **extra)
                if text is not None and REASONING in text and "'thinking'" not in text and '"thinking"' not in text:
                    return field
    return None
