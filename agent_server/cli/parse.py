"""`agent-server parse`: reads a model's raw output and prints the events, or the message that they make."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adapters.errors import RequestError
from agent_server.cli.parse_cases import EMPTY, CaseError, pieces_of, run_case, sentence, translator_for
from agent_server.engine_protocol.protocol import EngineError
from events.encode import encode
from events.template.environment import TemplateError


def parse(
    file: Annotated[Path | None, typer.Argument(help="Raw output to read; none reads standard input.")] = None,
    format: Annotated[str | None, typer.Option(help="Output format by name, such as hermes.")] = None,
    template: Annotated[Path | None, typer.Option(help="Chat template to derive the format from.")] = None,
    tools: Annotated[Path | None, typer.Option(help="JSON file with the declared tools, in OpenAI's form.")] = None,
    prefix: Annotated[str | None, typer.Option(help="What the prompt already opened, such as '<think>'.")] = None,
    message: Annotated[bool, typer.Option("--message", help="Print the message instead of events.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Strict boundaries between text and calls.")] = False,
    split: Annotated[str, typer.Option(help="Feed it in pieces: whole, chars, N or random:SEED.")] = "whole",
    batch: Annotated[bool, typer.Option("--batch", help="One JSON case a line in, one result a line out.")] = False,
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
    """Read one case from each line of standard input and print one result for each. A line that is not a case gives a
    result with an error."""
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            case = json.loads(line)
            result = run_case(case) if isinstance(case, dict) else {"id": None, **EMPTY, "error": "no JSON object"}
        except ValueError as error:
            result = {"id": None, **EMPTY, "error": f"no JSON: {error}"}
        print(json.dumps(result, ensure_ascii=False), flush=True)
