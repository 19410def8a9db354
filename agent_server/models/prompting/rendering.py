"""Renders one request with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from ag_ui.core import Tool

from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.control_tokens import ControlTokenEscaper, ControlTokens
from agent_server.models.prompting.prefill import Prefill, beginning
from events.formats.output_format import OutputFormat
from events.template.analyser import TemplateAnalysis
from events.template.declarations import simplify_schemas, tool_declaration
from events.template.environment import ChatTemplate, Clock, Message, TemplateError
from events.template.messages import PromptMessages


class Chat(msgspec.Struct, frozen=True):
    """A chat template with its analysis, its output format and the ids of its markers and end tokens."""

    template: ChatTemplate
    analysis: TemplateAnalysis
    output_format: OutputFormat
    marker_ids: dict[str, int]
    stop_token_ids: tuple[int, ...]


class TemplateRequest(msgspec.Struct, frozen=True):
    """The input of the template, with a stand-in for every control token that it spells."""

    messages: list[Message]
    tools: list[Message] | None
    variables: dict[str, Any]


class RenderedText(msgspec.Struct, frozen=True):
    """A rendered text. answer_at: where the generation prompt begins; None if that is only known from another rendering
    without it."""

    text: str
    answer_at: int | None = None


class Rendering:
    """The rendering of one request. If the template refuses it, simpler variants of the request are tried."""

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
        self.warnings: list[str] = []
        self._chat = chat
        self._controls = controls
        self._limits: dict[str, Any] = {"now": now, "max_characters": max_characters}
        self._begins_answer = generation_prompt
        last = conversation.messages[-1]["role"] if conversation.messages else ""
        self._continued = bool(continued) and last == "assistant"
        self._closes = continued == "content" and not conversation.final_text
        self._final = (conversation.final_reasoning, conversation.final_text)
        spare = [tool_declaration(tool) for tool in spare_tools] if not conversation.tools else []
        data = [conversation.messages, conversation.tools or None, dict(variables), spare]
        self.escaper = ControlTokenEscaper(controls, data)
        *covered, self._spare = self.escaper.cover_all(data)
        self._request = TemplateRequest(*covered)

    def run(self) -> tuple[str, str]:
        """Render the request and return (prompt, opened). Both texts contain stand-ins, which `escaper` restores."""
        request, rendered = self._render(self._request, prompt=not self._continued)
        request, rendered = self._with_safe_names(request, rendered)
        if not self._continued:
            return self._divided(request, rendered)
        # Leave the last message unfinished: rendered up to the end of its text or, if the template omits a part of it,
        # appended to the generation prompt.
        *earlier, last = request.messages
        prefill = Prefill(self._chat.output_format, *self._final, self.escaper, closed=self._closes)
        before = msgspec.structs.replace(request, messages=earlier)
        marked = msgspec.structs.replace(request, messages=[*earlier, prefill.marked(last)])
        whole, start = self._attempt(marked, prompt=False), self._attempt(before, prompt=False)
        previous = earlier[-1] if earlier else None
        cut = prefill.cut(whole.text, start.text if start else "", previous) if whole else None
        return cut or prefill.written(*self._divided(*self._render(before, prompt=True)))

    # ---- the whole conversation

    def _render(self, request: TemplateRequest, *, prompt: bool) -> tuple[TemplateRequest, RenderedText]:
        """Render the request, and return what was rendered and the text. If the template fails, try simplified schemas,
        or the tools that the request does not use in this turn, since some templates look up the tools of earlier
        calls. prompt: include the generation prompt."""
        try:
            return request, self._once(request, prompt)
        except TemplateError as error:
            if request.tools:
                tools, warning = (
                    simplify_schemas(request.tools),
                    f"{SIMPLER_TOOLS}: {error}",
                )
            else:
                tools, warning = self._spare, NEEDS_EARLIER_TOOLS
            variant = msgspec.structs.replace(request, tools=tools)
            rendered = self._attempt(variant, prompt) if tools else None
            if rendered is None:
                message = f"The chat template refuses this conversation: {error}"
                raise EngineError("invalid_request", message) from error
            self.warnings.append(warning)
            return variant, rendered

    def _with_safe_names(
        self, request: TemplateRequest, rendered: RenderedText
    ) -> tuple[TemplateRequest, RenderedText]:
        """Replace names that form a control token together with the template's text around them (`<{{ key }}>`): if
        replacing whole names leaves fewer control tokens in the prompt, the names had formed some."""
        if not (request.tools or any("tool_calls" in message for message in request.messages)):
            return request, rendered
        count = len(self.escaper.stand_ins)
        messages, tools = self.escaper.cover_names([request.messages, request.tools])
        if len(self.escaper.stand_ins) == count:
            return request, rendered
        renamed = TemplateRequest(messages, tools, request.variables)
        safer = self._attempt(renamed, not self._continued)
        if safer is None or self._controls_in(safer) >= self._controls_in(rendered):
            return request, rendered
        return renamed, safer

    def _controls_in(self, rendered: RenderedText) -> int:
        return len(self._controls.spans(rendered.text))

    # ---- the end of it

    def _divided(self, request: TemplateRequest, rendered: RenderedText) -> tuple[str, str]:
        """Return (prompt, opened): the text, and the beginning of the answer in it."""
        text, place = rendered.text, rendered.answer_at
        if place is not None:
            without: str | None = text[:place]
        else:
            other = self._attempt(request, prompt=False)
            without = other.text if other is not None else None
        if not self._begins_answer:
            return text if without is None else without, ""
        header = self._chat.output_format.message_start
        prompts = sorted(self._chat.analysis.prompts.values(), key=len, reverse=True)
        suffix = next((prompt for prompt in prompts if prompt and text.endswith(prompt)), "")
        # Some templates write a system message of their own only with the generation prompt.
        elsewhere = bool(suffix) and without is not None and not text.startswith(without)
        if without is not None and not elsewhere and (place := beginning(text, without, header)) < len(text):
            return text, text[place:]
        return text, suffix

    # ---- once

    def _attempt(self, request: TemplateRequest, prompt: bool) -> RenderedText | None:
        try:
            return self._once(request, prompt)
        except TemplateError:
            return None

    def _once(self, request: TemplateRequest, prompt: bool) -> RenderedText:
        name, tools = self._chat.analysis.capabilities.tools_variable, request.tools
        elsewhere = {name: tools} if tools and name != "tools" else {}
        variables = {"tools": tools if name == "tools" else None, **self._limits, **request.variables, **elsewhere}
        template = self._chat.template
        if prompt and template.prompts_last:
            return RenderedText(*template.render_prompt(request.messages, **variables))
        return RenderedText(template.render(request.messages, add_generation_prompt=prompt, **variables))


SIMPLER_TOOLS = "tool schemas were simplified for the chat template"
NEEDS_EARLIER_TOOLS = "the chat template needs the tools that earlier calls used, so they are declared"
