"""`agent-server parse`: read a model's raw output and print its events, or the resulting message."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from ag_ui.core import RunAgentInput
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from adapters.body import Limits
from adapters.errors import RequestError
from adapters.openai_chat import read_conversation
from agent_server.engine_protocol.protocol import EngineError
from agent_server.model_files import ModelFiles
from agent_server.models.prompting.prompt import PromptBuilder
from events.encode import encode
from events.formats.output_format import OutputFormat
from events.formats.registry import named
from events.lifecycle import event_type
from events.options import GenerationOptions, ToolChoice
from events.parsing.policy import Policy, declared_tools
from events.template.environment import TemplateError
from events.translator import Translator
from events.vocabulary import Event, ReasoningMessageContent, TextMessageContent, ToolCallArgs, ToolCallStart

Case = Mapping[str, Any]
LIMITS = Limits(messages=100_000)
GENERATED_ID = "generated_call_"
"""Prefix of the ids that are generated for calls to which the model gave none."""


class CaseError(Exception):
    """A case cannot be run; the message says why."""


def run_case(case: Case, directory: Path = Path()) -> dict[str, Any]:
    """Return the result of one case, as `agent-server parse --batch` prints it. Never raises; failures are in
    `error`."""
    result: dict[str, Any] = {"id": case.get("id"), **EMPTY}
    try:
        translator = translator_for(case, directory)
        text = case.get("text")
        if not isinstance(text, str):
            raise CaseError("`text` must be a string")
        events = [event for piece in pieces_of(text, case.get("split")) for event in translator.feed(piece)]
        if not case.get("is_partial"):
            events += translator.finish("stop")
    except Exception as error:  # a template may raise any exception; the other cases must still be run
        return {**result, "error": f"{type(error).__name__}: {sentence(error)}"}
    reason = None if case.get("is_partial") else "error" if translator.failed else translator.finish_reason("stop")
    return {
        **result,
        **message_of(events),
        "finish_reason": reason,
        "warnings": list(dict.fromkeys(translator.warnings)),
        "event_types": merged_types(events),
    }


def sentence(error: Exception) -> str:
    """Return an error's message without the quotes and error numbers that `str` adds for some classes."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error.args[0]) if error.args else str(error)


EMPTY: dict[str, Any] = {
    "reasoning": "",
    "content": "",
    "tool_calls": [],
    "finish_reason": None,
    "warnings": [],
    "error": None,
    "event_types": [],
}


def translator_for(case: Case, directory: Path) -> Translator:
    """Create a translator in the state in which the case's output starts."""
    output_format, opened, is_message_part = source_of(case, directory)
    numbers = itertools.count()
    return Translator(
        output_format,
        tools=None,
        opened=opened,
        new_id=lambda kind: f"{GENERATED_ID}{next(numbers)}" if kind == "tool_call" else f"{kind}_{next(numbers)}",
        policy=policy_of(case),
        show_opened=is_message_part,
    )


def policy_of(case: Case) -> Policy:
    tools = declared_tools(tools_of(case))
    schema = case.get("json_schema")
    return Policy(
        tools={} if case.get("tool_choice") == "none" else tools,
        extract_reasoning=case.get("reasoning_format") != "none",
        parallel=case.get("parallel_tool_calls") is not False,
        json_content=bool(schema),
        bare="never" if schema else None,
        boundaries=case.get("boundaries"),
    )


def tools_of(case: Case) -> list[dict[str, Any]] | None:
    """Return the declared tools. Raises CaseError if they are not a list of objects."""
    tools = case.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise CaseError("`tools` must be a list of objects, each a tool in OpenAI's form")
    return tools


def source_of(case: Case, directory: Path) -> tuple[OutputFormat, str | None, bool]:
    """(format, the part of the message that the prompt opens, whether that is known to belong to the message)."""
    if name := case.get("format"):
        prefix = case.get("prefix")
        return named(str(name)), prefix if isinstance(prefix, str) else None, False
    if isinstance(template := case.get("template_text"), str):
        source = template
    elif isinstance(path := case.get("template"), str):
        source = (directory / path).read_text("utf-8")
    else:
        raise CaseError("give one of `template`, `template_text` and `format`")
    if isinstance(prefix := case.get("prefix"), str) and prefix:
        return builder(source).output_format(), prefix, False
    prompt = builder(source).build(*request_of(case))
    return prompt.output_format, prompt.opened, True


@lru_cache(maxsize=64)
def builder(template: str) -> PromptBuilder:
    """Create a prompt builder for a template without a model. Its vocabulary is empty, so no marker is a token."""
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    return PromptBuilder(ModelFiles(tokenizer=tokenizer, templates={"default": template}))


def request_of(case: Case) -> tuple[RunAgentInput, GenerationOptions]:
    numbers = itertools.count()

    def new_id(kind: str) -> str:
        return f"{kind}_{next(numbers)}"

    values = {
        "messages": case.get("messages") or [{"role": "user", "content": "?"}],
        "tools": case.get("tools") or None,
    }
    messages, tools = read_conversation(values, new_id=new_id, limits=LIMITS)
    run = RunAgentInput(
        thread_id="thread", run_id="run", messages=messages, tools=tools, context=[], state={}, forwarded_props={}
    )
    choice = case.get("tool_choice")
    thinking = case.get("enable_thinking")
    return run, GenerationOptions(
        thinking=True if thinking is None else bool(thinking),
        reasoning_effort=case.get("reasoning_effort"),
        template_kwargs=dict(case.get("chat_template_kwargs") or {}),
        tool_choice=ToolChoice("none") if choice == "none" else ToolChoice(),
        parallel_tool_calls=case.get("parallel_tool_calls") is not False,
        continue_final_message=continued_part(case.get("continue_final_message")),
    )


def continued_part(value: Any) -> bool | Literal["content"]:
    """Which part of the last message the model continues: "none", "reasoning" or "content"."""
    return "content" if value == "content" else value not in (None, False, "none")


def pieces_of(text: str, split: Any) -> Iterator[str]:
    """Split the text into pieces: "whole", "chars", a number of characters, or "random:SEED"."""
    if split in (None, "whole", ""):
        yield text
        return
    size = sizes(split)
    position = 0
    while position < len(text):
        end = position + size()
        yield text[position:end]
        position = end


def sizes(split: Any) -> Callable[[], int]:
    if isinstance(split, str) and split.startswith("random:"):
        generator = random.Random(split.removeprefix("random:"))
        return lambda: generator.randint(1, generator.choice((1, 4, 16, 64)))
    try:
        number = 1 if split == "chars" else int(split)
    except (TypeError, ValueError):
        raise CaseError(f"`split` must be whole, chars, a number or random:SEED, not {split!r}") from None
    if number < 1:
        raise CaseError("`split` must be at least 1")
    return lambda: number


def message_of(events: list[Event]) -> dict[str, Any]:
    """Return the reasoning, content and calls in the events. A call's `id` is the one that the model wrote, or ""."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: dict[str, dict[str, Any]] = {}
    order: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, TextMessageContent):
            content.append(event.delta)
        elif isinstance(event, ReasoningMessageContent):
            reasoning.append(event.delta)
        elif isinstance(event, ToolCallStart):
            call_id = "" if event.tool_call_id.startswith(GENERATED_ID) else event.tool_call_id
            calls[event.tool_call_id] = {"id": call_id, "name": event.tool_call_name, "arguments": []}
            order.append(calls[event.tool_call_id])
        elif isinstance(event, ToolCallArgs):
            calls[event.tool_call_id]["arguments"].append(event.delta)
    return {
        "reasoning": "".join(reasoning),
        "content": "".join(content),
        "tool_calls": [{**call, "arguments": "".join(call["arguments"])} for call in order],
    }


def merged_types(events: list[Event]) -> list[str]:
    """Return the types of the events in order, with consecutive deltas of one kind merged."""
    types = [event_type(event) for event in events]
    deltas = ("_CONTENT", "_ARGS")
    return [
        kind for kind, before in zip(types, ["", *types], strict=False) if kind != before or not kind.endswith(deltas)
    ]


def parse(
    file: Annotated[Path | None, typer.Argument(help="Raw output to read; none reads standard input.")] = None,
    format: Annotated[str | None, typer.Option(help="Output format by name, such as hermes.")] = None,
    template: Annotated[Path | None, typer.Option(help="Chat template to derive the format from.")] = None,
    tools: Annotated[Path | None, typer.Option(help="JSON file with the declared tools, in OpenAI's form.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="What the prompt already contains of the answer, such as '<think>'.")
    ] = None,
    message: Annotated[bool, typer.Option("--message", help="Print the message instead of events.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Strict boundaries between text and calls.")] = False,
    split: Annotated[str, typer.Option(help="Feed it in pieces: whole, chars, N or random:SEED.")] = "whole",
    batch: Annotated[
        bool, typer.Option("--batch", help="Read one JSON case per line, print one result per line.")
    ] = False,
) -> None:
    """Read a model's raw output and print the events it becomes."""
    if batch:
        run_batch()
        return
    try:
        case: dict[str, Any] = {
            "text": file.read_text("utf-8") if file else sys.stdin.read(),
            "format": format if format or template else "hermes",
            "template": str(template) if template else None,
            "tools": read_tools(tools) if tools else None,
            "prefix": prefix,
            "boundaries": "strict" if strict else None,
            "split": split,
        }
        if message:
            print(json.dumps(run_case(case), ensure_ascii=False, indent=2))
            return
        translator = translator_for(case, Path())
        for piece in pieces_of(case["text"], split):
            show(translator.feed(piece))
        show(translator.finish())
    except (CaseError, EngineError, RequestError, TemplateError, KeyError, OSError, ValueError) as error:
        typer.echo(f"agent-server: {sentence(error)}", err=True)
        raise typer.Exit(2) from None


def read_tools(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CaseError(f"{path} is not valid JSON: {error}") from error


def show(events: list[Any]) -> None:
    for event in events:
        print(encode(event).decode())


def run_batch() -> None:
    """Read one case per line from standard input and print one result for each. An invalid line gives a result with an
    error."""
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            case = json.loads(line)
            result = run_case(case) if isinstance(case, dict) else {"id": None, **EMPTY, "error": "no JSON object"}
        except ValueError as error:
            result = {"id": None, **EMPTY, "error": f"no JSON: {error}"}
        print(json.dumps(result, ensure_ascii=False), flush=True)
