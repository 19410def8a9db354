"""Turns a run's input into token ids: renders the chat template and prevents the client's text from forming control
tokens.

`PromptBuilder.build` takes eight steps: choose the template and its analysis, choose the tools, convert the messages,
replace control tokens by stand-ins, render, cut a prefill, encode, check the length. The part of the answer that the
generation prompt or the prefill already contains is returned as `opened`, so that the translator starts in the right
state.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from ag_ui.core import AudioPart, ImagePart, RunAgentInput, Tool

from agent_server.engine_protocol.protocol import EngineError, too_long
from agent_server.fair_threads import FairThreads
from agent_server.model_files import ModelFiles, load_model_files
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.control_tokens import ControlTokens
from agent_server.models.prompting.encoding import COUNTED_CHARACTERS, characters_per_token, encoded
from agent_server.models.prompting.prefill import written_stage
from agent_server.models.prompting.quick_builds import QuickBuilds, is_small
from agent_server.models.prompting.rendering import Chat, Rendering
from agent_server.models.prompting.thinking import switch_words, template_variables
from agent_server.models.prompting.truncation import answer_room, newest, shortened
from agent_server.settings import PromptSettings
from events.formats import registry
from events.formats.cards import CARDS
from events.formats.output_format import OutputFormat, marker_ids, markers
from events.options import DEFERRED, GenerationOptions
from events.template.analyser import TemplateAnalysis, analyse
from events.template.declarations import card_prompt, explain_tools, tool_declaration
from events.template.environment import ChatTemplate
from events.template.messages import build_conversation
from events.template.response_template import apply_response_template

T = TypeVar("T")
DEFAULT_MAX_CHARACTERS = 4_000_000
RENDER_SECONDS = 5.0


class Prompts(Protocol):
    """Turns a conversation into token ids. `PromptBuilder` implements it; tests have smaller implementations."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Text → id of every control token of the vocabulary."""

    @property
    def context_length(self) -> int | None:
        """The maximum number of tokens of a prompt and its answer together; None for the engine's own limit."""

    def output_format(self, tools: bool = False) -> OutputFormat:
        """Return how the model writes its output, with or without tools."""

    def analysis(self, tools: bool = False) -> TemplateAnalysis | None:
        """Return the analysis of the chat template, or None if there is none."""

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a text."""

    async def build_async(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None = None,
        *,
        takes: Collection[str] = (),
        fits: bool = True,
    ) -> Prompt:
        """Build the prompt for one turn. takes: kinds of media that the model accepts. fits: check the prompt's length.
        Raises EngineError."""


class PromptBuilder:
    """Builds prompts for one model. Safe to use from several threads.

    files: the model's tokenizer and templates. now: the clock for templates that use the date.
    Raises EngineError("invalid_request") for an unknown format name in the settings.
    """

    def __init__(
        self,
        files: ModelFiles,
        settings: PromptSettings | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.files = files
        self.settings = settings = settings or PromptSettings()
        self.tokenizer = files.tokenizer
        self._now = now
        self._controls = ControlTokens(files.tokenizer, [*files.templates.values(), settings.chat_template or ""])
        added = files.tokenizer.get_added_tokens_decoder().items()
        self._special_tokens = {number: token.content for number, token in added if token.special}
        self._characters_per_token = characters_per_token(files.tokenizer)
        templates = {"default": settings.chat_template} if settings.chat_template else dict(files.templates)
        self._chats = {name: self._chat(source) for name, source in templates.items()}
        self._quick = QuickBuilds()
        self._threads = FairThreads("render")

    @classmethod
    def load(
        cls,
        model: str | Path,
        settings: PromptSettings | None = None,
        *,
        trusted: bool = False,
        now: Callable[[], datetime] = datetime.now,
    ) -> PromptBuilder:
        """Create the builder for a local folder or a model's name. trusted: allow code that comes with the tokenizer to
        run. Raises FileNotFoundError if there is no tokenizer, UnusableFile if it cannot be read."""
        return cls(load_model_files(model, trusted=trusted), settings, now=now)

    def _chat(self, source: str) -> Chat:
        analysis = apply_response_template(analyse(source), self.files.response_template)
        output_format = override(analysis.output_format, self.settings)
        # A marker that also occurs within an answer does not end it: GigaChat's message separator is between an answer
        # and its call, and a channel format's `<|end|>` between two messages of one answer.
        stop_marks: list[str] = []
        if not output_format.channels:
            inner = markers(msgspec.structs.replace(output_format, drop=()))
            stop_marks = [mark for mark in analysis.stops if not any(mark in used for used in inner)]
        stops = [self._controls.ids[mark] for mark in stop_marks if mark in self._controls.ids]
        return Chat(
            ChatTemplate(source, self.files.special_tokens),
            analysis,
            output_format,
            self._marker_ids(output_format),
            tuple(dict.fromkeys([*self.files.stop_token_ids, *stops])),
        )

    @property
    def context_length(self) -> int | None:
        return self.settings.context_length or self.files.context_length

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Text → id of every control token of the vocabulary."""
        return self._controls.ids

    def analysis(self, tools: bool = False) -> TemplateAnalysis | None:
        """Return the analysis of the template that is used with or without tools, or None if there is none."""
        chat = self._select_chat(tools)
        return chat.analysis if chat else None

    def output_format(self, tools: bool = False) -> OutputFormat:
        """Return how the model writes, by the template used with or without tools; plain text if there is none."""
        chat = self._select_chat(tools)
        return chat.output_format if chat else OutputFormat()

    def _select_chat(self, tools: bool) -> Chat | None:
        with_tools, default = self._chats.get("tool_use"), self._chats.get("default")
        # Command R's reads Cohere's own declarations: without them, it shows an empty list and asks for its calls.
        if tools and with_tools and (with_tools.analysis.capabilities.tools or not default):
            return with_tools
        return default or next(iter(self._chats.values()), None)

    # --- building

    async def build_async(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None = None,
        *,
        takes: Collection[str] = (),
        fits: bool = True,
    ) -> Prompt:
        """Call `build` in a thread, so that a slow template does not block the event loop; small requests that are
        known to be quick are built directly (see `quick_builds`). Raises what `build` and `run` raise."""
        build = partial(self.build, input, options, instructions, takes=takes, fits=fits)
        if is_small(input, options, instructions):
            if self._quick.may_follow:
                return self._quick.measure(build)
            build = partial(self._quick.measure, build)
        return await self.run(build)

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work`, which renders prompts, in a thread. The threads are this builder's own, so a template that never
        ends cannot exhaust the server's.

        Raises EngineError("timeout") after `render_seconds`, and EngineError("overloaded") after as long a wait for a
        thread."""
        loop, seconds = asyncio.get_running_loop(), self.settings.render_seconds
        has_begun = False

        def begin() -> T:
            nonlocal has_begun
            has_begun = True
            loop.call_soon_threadsafe(restart_clock)
            return work()

        def restart_clock() -> None:
            with contextlib.suppress(RuntimeError):  # the time was over
                limit.reschedule(loop.time() + seconds)

        try:
            # Not asyncio.wait_for, which may lose a cancellation (CPython issue 86296).
            async with asyncio.timeout(seconds) as limit:
                return await self._threads.run(begin)
        except TimeoutError as error:
            if has_begun:
                raise EngineError("timeout", f"The prompt could not be rendered within {seconds:g} s.") from error
            message = f"Other prompts are being rendered, and this one waited for {seconds:g} s. Try again later."
            raise EngineError("overloaded", message, retryable=True) from error

    def build(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None = None,
        *,
        takes: Collection[str] = (),
        fits: bool = True,
    ) -> Prompt:
        """Build the prompt for one turn. takes: kinds of media ("image", "audio") that the model accepts; each part is
        one placeholder token. fits: check the prompt's length.

        Raises EngineError("invalid_request") if there is no template or it refuses the conversation, and
        EngineError("context_length_exceeded") if the prompt and one token of an answer exceed the model's context or
        the caller's limit. `max_tokens` is reduced to what the prompt leaves, so it counts only where the prompt may be
        truncated."""
        if not fits:
            return self._rendered(input, options, instructions, takes=takes)
        if options.truncate_history:
            room = answer_room(options, self._limit(options))
            return newest(input, room, lambda part, left: self._build(part, options, instructions, left, takes=takes))
        return self._build(input, options, instructions, takes=takes)

    def _limit(self, options: GenerationOptions) -> int | None:
        """Return the number of tokens that a prompt and its answer may have together."""
        own, most = self.context_length, options.most_context
        return most if most and (own is None or most < own) else own

    def _build(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None,
        left: int = 1,
        *,
        takes: Collection[str],
    ) -> Prompt:
        """Build a prompt that leaves `left` tokens for the answer."""
        limit = self.context_length if options.truncate_prompt is None else None
        if options.raw_prompt is not None:
            prompt = self._raw(options, limit)
        else:
            prompt = self._rendered(input, options, instructions, limit, takes=takes)
        limit = self._limit(options)
        prompt = shortened(prompt, options, limit)
        if limit is not None and len(prompt.token_ids) + left > limit:
            own = limit == self.context_length
            whose = "the model's context" if own else "this key's limit on prompt and answer together"
            message = too_long(len(prompt.token_ids), limit, whose)
            raise EngineError("context_length_exceeded", message, param="messages")
        if options.prediction:
            text = options.prediction if limit is None else options.prediction[: limit * COUNTED_CHARACTERS]
            prompt = msgspec.structs.replace(prompt, prediction=tuple(self._tokenize(text, None, False)))
        return prompt

    def count_tokens(self, input: RunAgentInput, options: GenerationOptions, instructions: str | None = None) -> int:
        """Return the number of prompt tokens of a run without checking the length. Raises what `build` raises for a
        prompt that cannot be rendered."""
        prompt = self._raw(options) if options.raw_prompt is not None else self._rendered(input, options, instructions)
        return len(prompt.token_ids)

    def _raw(self, options: GenerationOptions, limit: int | None = None) -> Prompt:
        """Build the prompt of text or ids that go to the model unchanged. limit: in tokens; longer text is not
        encoded."""
        raw = options.raw_prompt
        stops, hidden = self.files.stop_token_ids, self._special_tokens
        if isinstance(raw, str):
            self._check_size(len(raw))
            self._check_characters(raw, limit)
            ids = self._tokenize(raw, limit)
            begin, end = (self.files.special_tokens.get(name, "") for name in ("bos_token", "eos_token"))
            if len(ids) > 1 and ids[0] == ids[1] == self.tokenizer.token_to_id(begin):  # the text spells a second BOS
                ids = ids[1:]
            # A tokenizer that is configured for training appends EOS to every text.
            adds_end = self.tokenizer.encode("").ids[-1:] == [self.tokenizer.token_to_id(end)]
            if adds_end and len(ids) > 1 and ids[-1] in stops:
                ids = ids[:-1]
            return Prompt(token_ids=tuple(ids), text=raw, stop_token_ids=stops, special_tokens=hidden)
        ids = list(raw or ())
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        if any(not 0 <= number < size for number in ids):
            message = f"A token id of the prompt is outside of the vocabulary of {size} tokens."
            raise EngineError("invalid_request", message, param="prompt")
        text = self.detokenize(ids)
        return Prompt(token_ids=tuple(ids), text=text, stop_token_ids=stops, special_tokens=hidden)

    def _rendered(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        instructions: str | None,
        limit: int | None = None,
        *,
        takes: Collection[str] = (),
    ) -> Prompt:
        tools = declared_tools(input.tools or (), options)
        chat = self._select_chat(bool(tools))
        if chat is None:
            raise EngineError("invalid_request", NO_TEMPLATE)
        tool_prompt = _describe_tools(chat, tools)
        system_parts = (instructions, switch_words(chat.analysis, options), tool_prompt.description)
        conversation = build_conversation(
            input.messages,
            capabilities=chat.analysis.capabilities,
            output_format=tool_prompt.output_format,
            tools=tools if not tool_prompt.description else (),
            context=input.context or (),
            instructions="\n\n".join(part for part in system_parts if part) or None,
            takes=takes,
            result=tool_prompt.result,
            nonce=secrets.token_hex(8),
        )
        source, allowed = chat.template.source, self.settings.allowed_kwargs
        variables, warnings = template_variables(chat.analysis, source, options, allowed)
        rendering = Rendering(
            chat,
            self._controls,
            conversation,
            variables,
            continued=options.continue_final_message,
            generation_prompt=options.generation_prompt,
            max_characters=self.settings.max_characters,
            now=self._now,
            spare_tools=input.tools or (),
        )
        escaper = rendering.escaper
        self._check_size(escaper.characters)
        text, opened = rendering.run()
        original_text = escaper.restore(text)
        self._check_characters(original_text, limit)
        return Prompt(
            token_ids=tuple(self._controls.encode(text, escaper.stand_ins, escaper.pattern, limit)),
            text=original_text,
            opened=escaper.restore(opened),
            output_format=tool_prompt.output_format,
            marker_ids=self._marker_ids(tool_prompt.output_format) if tool_prompt.description else chat.marker_ids,
            stop_token_ids=chat.stop_token_ids,
            special_tokens=self._special_tokens,
            warnings=tuple(
                dict.fromkeys((*tool_prompt.warnings, *conversation.warnings, *warnings, *rendering.warnings))
            ),
            media=tuple(part for part in conversation.media if isinstance(part, ImagePart | AudioPart)),
        )

    def _marker_ids(self, output_format: OutputFormat) -> dict[str, int]:
        return marker_ids(output_format, self._controls.ids)

    def _check_size(self, size: int) -> None:
        if size > self.settings.max_characters:
            limit = self.settings.max_characters
            message = f"The prompt is too long: it has {size} characters; the limit is {limit}."
            raise EngineError("context_length_exceeded", message, param="messages")

    def _check_characters(self, text: str, limit: int | None) -> None:
        """Refuse a text before it is encoded if it must have more than `limit` tokens, whatever its content; without a
        limit, if it is many times as long as the context."""
        context = self.context_length
        if limit is not None and self._characters_per_token is not None:
            if len(text) > limit * self._characters_per_token:
                message = (
                    f"The prompt is too long: its {len(text)} characters cannot fit into a context of {limit} tokens."
                )
                raise EngineError("context_length_exceeded", message, param="messages")
        elif context is not None and len(text) > (most := context * COUNTED_CHARACTERS):
            message = (
                f"The text has {len(text)} characters; the limit is {most}, {COUNTED_CHARACTERS} for each token of the "
                "context."
            )
            raise EngineError("context_length_exceeded", message, param="messages")

    # --- text and ids

    def tokenize(self, text: str, *, add_special_tokens: bool = True, parse_control_tokens: bool = True) -> list[int]:
        """Encode a text as the tokenizer does by default. Without `parse_control_tokens`, control tokens that the text
        spells are encoded as text. Raises EngineError("context_length_exceeded") for a text that is many times as long
        as the context."""
        self._check_characters(text, None)
        if not parse_control_tokens:
            return self._controls.plain(text, first=True)
        return self._tokenize(text, None, add_special_tokens)

    def _tokenize(self, text: str, most: int | None, add_special_tokens: bool = True) -> list[int]:
        sliced = self._controls.sliced
        return encoded(self.tokenizer, text, add_special_tokens=add_special_tokens, sliced=sliced, most=most).ids

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        # `decode` would hold the GIL, for a quarter of a second with 240,000 tokens.
        return str(self.tokenizer.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0])

    def detect_output_stage(self, token_ids: Sequence[int]) -> str:
        """Return the stage in which the output after this prompt starts: REASONING_STAGE, CONTENT_STAGE or
        TOOL_CALL_STAGE. It agrees with `opened`."""
        chat = self._select_chat(False)
        if chat is None:
            return "CONTENT_STAGE"
        return written_stage(chat.output_format, self.detokenize(token_ids))

    def is_control(self, token_id: int) -> bool:
        """Return whether an id is a control token: an added token of the vocabulary that is not plain white space."""
        return self._controls.is_control(token_id)


NO_TEMPLATE = (
    "This model has no chat template, so it cannot hold a conversation. Pass one with --chat-template FILE, "
    "or use text completion."
)


def declared_tools(tools: Sequence[Tool], options: GenerationOptions) -> list[Tool]:
    """Return the tools that the prompt declares: none for tool_choice "none", else the ones that the choice names, or
    all. Those that a search's result describes are declared only if there are no others."""
    if options.tool_choice.mode == "none":
        return []
    names = options.tool_choice.names
    chosen = [tool for tool in tools if not names or tool.name in names]
    return [tool for tool in chosen if not (tool.metadata or {}).get(DEFERRED)] or chosen


class _ToolPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompt declares tools. description: for the system message; "" if the template declares the tools itself.
    result: how a user message presents a tool's result."""

    output_format: OutputFormat
    description: str = ""
    result: str = ""
    warnings: tuple[str, ...] = ()


def _describe_tools(chat: Chat, tools: Sequence[Tool]) -> _ToolPrompt:
    """If the template does not support tools, describe them in the system message: as the model's family was trained to
    (`events.formats.cards`), else in general words. Calls are then expected in the model's format, or in that of
    Hermes, which most models know, if the model's format has no calls."""
    call_format = chat.output_format.tools or registry.named("hermes").tools
    if not tools or chat.analysis.capabilities.tools or call_format is None:
        return _ToolPrompt(output_format=chat.output_format)
    if chat.analysis.tool_card and chat.output_format.tools is None:
        card = CARDS[chat.analysis.tool_card]
        return _ToolPrompt(
            output_format=msgspec.structs.replace(chat.output_format, tools=card.tools),
            description=card_prompt([tool_declaration(tool) for tool in tools], card),
            result=card.result,
        )
    return _ToolPrompt(
        output_format=msgspec.structs.replace(chat.output_format, tools=call_format),
        description=explain_tools([tool_declaration(tool) for tool in tools], call_format),
        warnings=("the chat template has no place for tools; they are described in the system message",),
    )


def override(derived: OutputFormat, settings: PromptSettings) -> OutputFormat:
    """Return the derived format with the parts replaced that the settings name."""
    try:
        if settings.format:
            derived = msgspec.structs.replace(registry.named(settings.format), message_start=derived.message_start)
        return registry.select(
            derived, reasoning_parser=settings.reasoning_parser, tool_call_parser=settings.tool_call_parser
        )
    except KeyError as error:
        raise EngineError("invalid_request", str(error.args[0]), param="format") from error
