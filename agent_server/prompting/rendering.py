"""Renders one request with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from ag_ui.core import Tool

from agent_server.engine.protocol import EngineError
from agent_server.prompting.control_tokens import ControlTokens, Disguise
from agent_server.prompting.prefill import mark_end, unfinished, written_stage
from events.formats.output_format import OutputFormat
from events.template.analyser import TemplateAnalysis
from events.template.declarations import simplified, tool_declaration
from events.template.environment import ChatTemplate, Clock, Message, TemplateError
from events.template.messages import PromptMessages
from events.template.writer import writes_reasoning


class Chat(msgspec.Struct, frozen=True):
    """A chat template with its analysis, its output format and the ids of its markers and end tokens."""

    template: ChatTemplate
    analysis: TemplateAnalysis
    output_format: OutputFormat
    marker_ids: dict[str, int]
    stop_token_ids: tuple[int, ...]


class Rendering:
    """Renders one request. If the template refuses it, simpler variants of the request are tried."""

    def __init__(
        self,
        chat: Chat,
        controls: ControlTokens,
        conversation: PromptMessages,
        variables: Mapping[str, Any],
        *,
        continued: bool | Literal["content"],
        generation_prompt: bool = True,
        max_characters: int,
        now: Clock,
        spare_tools: Sequence[Tool] = (),
    ) -> None:
        self.chat = chat
        self.conversation = conversation
        self.variables = dict(variables)
        last = conversation.messages[-1]["role"] if conversation.messages else ""
        self.continued = bool(continued) and last == "assistant"
        self._begins_answer = generation_prompt
        self._closes = continued == "content" and not conversation.final_text
        self.warnings: list[str] = []
        self.controls = controls
        self.max_characters = max_characters
        self.now = now
        self.spare = [tool_declaration(tool) for tool in spare_tools] if not conversation.tools else []
        self._answers_at: dict[str, int] = {}  # a rendered text → where its generation prompt begins
        self.disguise = Disguise(controls, conversation.messages, conversation.tools, self.spare, self.variables)

    def run(self) -> tuple[str, str, Disguise]:
        """(prompt, opened, disguise). Both texts hold stand-ins, which `disguise` replaces again."""
        messages = self.disguise.cover_all(self.conversation.messages)
        tools = self.disguise.cover_all(self.conversation.tools) if self.conversation.tools else None
        variables = self.disguise.cover_all(self.variables)
        text = self.render(messages, tools, variables)
        known = len(self.disguise.stand_ins)
        # The template's text around a name may spell a control token (`<{{ key }}>`): if replacing whole names leaves
        # fewer control tokens in the prompt, the names had formed some.
        if self._has_names():
            covered = [self.disguise.cover_names(value) for value in (messages, tools or [])]
            safer = None
            if len(self.disguise.stand_ins) > known:  # else nothing was replaced
                safer = self.attempt(covered[0], covered[1] or None, variables)
            if safer is not None and self._controls_in(safer) < self._controls_in(text):
                messages, tools, text = covered[0], covered[1] or None, safer
        return (*self._opened(text, messages, tools, variables), self.disguise)

    def render(self, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any]) -> str:
        """The rendered text. If the template fails, it is tried with simplified schemas, and then with the tools that
        the request does not use in this turn, since some templates look up the tools of earlier calls."""
        try:
            return self._once(messages, tools, variables)
        except TemplateError as error:
            simpler = self.attempt(messages, simplified(tools), variables) if tools else None
            if simpler is not None:
                self.warnings.append(f"tool schemas were simplified for the chat template: {error}")
                return simpler
            spare = self.disguise.cover_all(self.spare)
            shown = self.attempt(messages, spare, variables) if spare else None
            if shown is None:
                raise EngineError("invalid_request", f"the chat template refuses this conversation: {error}") from error
            self.warnings.append("the chat template needs the tools that earlier calls used, so they are declared")
            return shown

    def attempt(self, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any]) -> str | None:
        try:
            return self._once(messages, tools, variables)
        except TemplateError:
            return None

    def _once(
        self, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any], prompt: bool = True
    ) -> str:
        name = self.chat.analysis.capabilities.tools_variable
        elsewhere = {name: tools} if tools and name != "tools" else {}
        template, wanted = self.chat.template, prompt and not self.continued
        given: dict[str, Any] = {
            "tools": tools if name == "tools" else None,
            "now": self.now,
            "max_characters": self.max_characters,
            **variables,
            **elsewhere,
        }
        if not (wanted and template.prompts_last):
            return template.render(messages, add_generation_prompt=wanted, **given)
        text, place = template.render_prompt(messages, **given)
        self._answers_at[text] = place
        return text

    def _has_names(self) -> bool:
        """Whether the request holds names of tools or arguments, which a template may write next to its own text."""
        return bool(self.conversation.tools or any("tool_calls" in m for m in self.conversation.messages))

    def _controls_in(self, text: str) -> int:
        return len(self.controls.spans(text))

    def _opened(
        self, text: str, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any]
    ) -> tuple[str, str]:
        if self.continued:
            return self._prefill(messages, tools, variables)
        place = self._answers_at.get(text)
        without = self.without_prompt(messages, tools, variables) if place is None else text[:place]
        if not self._begins_answer:
            return text if without is None else without, ""
        if without is not None:
            size = common_size(without, text)
            if size < len(text):
                return text, text[size:]
        prompts = sorted(self.chat.analysis.prompts.values(), key=len, reverse=True)
        return text, next((prompt for prompt in prompts if prompt and text.endswith(prompt)), "")

    def without_prompt(
        self, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any]
    ) -> str | None:
        try:
            return self._once(messages, tools, variables, prompt=False)
        except TemplateError:
            return None

    def _prefill(
        self, messages: list[Message], tools: list[Message] | None, variables: dict[str, Any]
    ) -> tuple[str, str]:
        """(prompt, opened) with the last message left unfinished.

        The prompt is rendered up to the end of that message's text. If the template does not render all of the message
        (QwQ drops reasoning), it is written behind the generation prompt in the model's format instead."""
        *before, last = messages
        content = self.conversation.final_text
        reasoning = self.conversation.final_reasoning if writes_reasoning(self.chat.output_format) else ""
        mark, restore = self.disguise.stand_in(""), self.disguise.restore
        text = self.attempt([*before, mark_end(last, content or reasoning, mark, restore)], tools, variables)
        if text is not None and mark in text and not (self._closes and reasoning):
            prompt = text[: text.rfind(mark)]
            opened = prompt[self._beginning(prompt, self.attempt(before, tools, variables) or "") :]
            whole = restore(prompt).endswith(content or reasoning) and reasoning in restore(opened)
            if whole and not (content and written_stage(self.chat.output_format, opened) == "REASONING_STAGE"):
                return prompt, opened
        return self._written(before, tools, variables, self.disguise.cover(reasoning), self.disguise.cover(content))

    def _beginning(self, prompt: str, before: str) -> int:
        """The position in the prompt at which the unfinished message begins. That is behind the conversation before it,
        or at the message's header if the rendering of that conversation already holds a part of it, as with templates
        whose generation prompt cannot be left out."""
        common, header = common_size(before, prompt), self.chat.output_format.message_start
        place = prompt.rfind(header, 0, common + len(header)) if header else -1
        return place if 0 <= place <= common <= place + len(header) else common

    def _written(
        self,
        before: list[Message],
        tools: list[Message] | None,
        variables: dict[str, Any],
        reasoning: str,
        content: str,
    ) -> tuple[str, str]:
        """The generation prompt with the unfinished message behind it. If the prompt opens a block of reasoning, the
        message's own replaces it."""
        self.continued = False
        base, opened = self._opened(self.render(before, tools, variables), before, tools, variables)
        self.continued = True
        output_format = self.chat.output_format
        header = output_format.message_start
        started = opened
        if (
            header
            and opened.startswith(header)
            and (reasoning or written_stage(output_format, opened) != "CONTENT_STAGE")
        ):
            started = header
        answer = started + unfinished(output_format, reasoning, content, closed=self._closes)
        return base[: len(base) - len(opened)] + answer, answer


def common_size(one: str, other: str) -> int:
    if other.startswith(one):
        return len(one)
    return next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))
