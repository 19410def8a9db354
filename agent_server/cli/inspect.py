"""`agent-server inspect`: the analysis of a chat template, its reasons, and examples in the model's format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agent_server.model_files import is_gguf
from events.formats.output_format import OutputFormat
from events.template.analyser import TemplateAnalysis, analyse
from events.template.response_template import apply_response_template
from events.template.writer import WrittenCall, write, writes_reasoning

_REASONING = "The user asks about the weather; I should look it up."
_TEXT = "It is sunny in Paris."
_CALLS = (
    WrittenCall("get_weather", {"city": "Paris", "days": 2}, "call00001"),
    WrittenCall("get_time", {"city": "Rome", "exact": True}, "call00002"),
)


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis of one template.

    source: the inspected file, folder or model. name: which of its templates ("default", "tool_use"). examples: each
    kind of output in the model's format; kinds that the format cannot express are left out.
    """

    source: str
    name: str
    analysis: TemplateAnalysis
    examples: dict[str, str]


def inspect(
    target: Annotated[str, typer.Argument(help="A model's folder or name, or a chat template's file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole analysis as JSON.")] = False,
) -> None:
    """Show how a model writes its output, derived from its chat template, and why."""
    try:
        sources = read_templates(target)
    except (OSError, ValueError) as error:
        typer.echo(f"Cannot read {target}: {error}", err=True)
        raise typer.Exit(1) from error
    if not sources:
        typer.echo(f"{target} has no chat template; only text completion is possible.", err=True)
        raise typer.Exit(1)
    described_by = read_response_template(target)
    inspections = [inspection(target, name, source, described_by) for name, source in sources.items()]
    typer.echo(to_json(inspections) if as_json else "\n\n".join(describe(each) for each in inspections))


def read_templates(target: str) -> dict[str, str]:
    """Name → template, from a template's file, a model's folder or a model's name. Raises OSError, ValueError."""
    path = Path(target)
    if is_gguf(target):
        from agent_server.model_files.gguf_files import gguf_templates

        return gguf_templates(path)
    if path.is_file():
        return {"default": path.read_text("utf-8")}
    if path.is_dir():
        from agent_server.model_files import folder_templates

        return folder_templates(path)
    if target.startswith(("/", ".")) or target.endswith(".jinja"):
        raise FileNotFoundError("there is no such file or folder")
    from agent_server.model_files import load_model_files

    return dict(load_model_files(target).templates)


def read_response_template(target: str) -> Mapping[str, object]:
    """Return the checkpoint's own description of its output; {} for a template file or a GGUF file, which have none."""
    path = Path(target)
    if path.is_file():
        return {}
    if path.is_dir():
        from agent_server.model_files import folder_response_template

        return folder_response_template(path)
    from agent_server.model_files import load_model_files

    return load_model_files(target).response_template


def inspection(
    target: str, name: str, source: str, response_template: Mapping[str, object] | None = None
) -> Inspection:
    analysis = apply_response_template(analyse(source), response_template)
    return Inspection(source=target, name=name, analysis=analysis, examples=examples(analysis.output_format))


def examples(output_format: OutputFormat) -> dict[str, str]:
    """Write one example of each kind of output that the format can express."""
    texts = {"text": write(output_format, content=_TEXT)}
    if writes_reasoning(output_format):
        texts["reasoning"] = write(output_format, reasoning=_REASONING, content=_TEXT)
    if output_format.tools:
        texts["one call"] = write(output_format, calls=_CALLS[:1])
        texts["two calls"] = write(output_format, calls=_CALLS)
    return texts


def to_json(inspections: list[Inspection]) -> str:
    """Encode the inspections as one JSON object, or as a list if a model has several templates."""
    values: list[object] = [msgspec.to_builtins(each) for each in inspections]
    return json.dumps(values[0] if len(values) == 1 else values, ensure_ascii=False, indent=2)


def describe(inspection: Inspection) -> str:
    """Format the inspection as readable text."""
    analysis = inspection.analysis
    title = inspection.source if inspection.name == "default" else f"{inspection.source} ({inspection.name})"
    lines = [title, "=" * len(title)]
    lines += [f"  {line}" for line in analysis.findings]
    lines += [f"  warning: {line}" for line in analysis.warnings]
    lines += ["", "The prompt ends with"]
    modes_by_text: dict[str, list[str]] = {}
    for mode, text in analysis.prompts.items():
        modes_by_text.setdefault(text, []).append(mode)
    names = {"default": "by default", "on": "thinking on", "off": "thinking off"}
    for text, modes in modes_by_text.items():
        when = "always" if len(modes) == 3 else ", ".join(names[mode] for mode in modes)
        lines.append(f"  {text!r}  ({when})")
    lines += ["", "The template", *(f"  {line}" for line in _abilities(analysis)), "", "The model writes"]
    for kind, text in inspection.examples.items():
        lines += [f"  {kind}:", *(f"    │{line}" for line in text.split("\n"))]
    return "\n".join(lines)


def _abilities(analysis: TemplateAnalysis) -> list[str]:
    """Describe the template's capabilities, one line for each."""
    can = analysis.capabilities
    lines = ["renders system messages" if can.system_role else "has no system role: it is put into the user's message"]
    if can.alternation:
        lines.append("wants user and assistant to alternate")
    if not can.tools:
        lines.append("does not show declared tools to the model")
    elif can.tools_in_system:
        lines.append("shows declared tools given with the system message")
    elif can.tools_role:
        lines.append(f"shows declared tools in a message of the role {can.tools_role!r}")
    else:
        variable = "" if can.tools_variable == "tools" else f" (as {can.tools_variable})"
        lines.append(f"shows declared tools{variable}")
    if can.tool_calls:
        several = "several calls" if can.parallel_calls else "one call"
        arguments = "an object" if can.arguments == "object" else "JSON text"
        lines.append(f"renders {several} in a message, with arguments as {arguments}")
    else:
        lines.append("renders no calls: those of the history are written into the text")
    if can.reasoning_field:
        lines.append(f"takes reasoning of the history from {can.reasoning_field!r}")
    return lines
