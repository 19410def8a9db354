"""Creates the engine's Constraint for a turn from the request's tools and response format, after checking their
schemas.

Plans are cached by content, so that an agent's unchanged tools cost nothing from the second turn on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from agent_server.bounded import BoundedCache
from agent_server.engine_protocol.protocol import Constraint, EngineError, EngineInfo
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.cpu_limit import CPU_LIMIT
from agent_server.models.prompting.schemas import check_pattern_value, prepared
from agent_server.settings import OutputSettings
from events.formats.output_format import OutputFormat
from events.grammar import Function, Stage, plan
from events.grammar.argument_values import unwritten
from events.grammar.client_lark import LarkError, in_json
from events.grammar.closing import close_objects
from events.grammar.lint import Finding, PreparedSchema, SchemaRefused, prepare
from events.grammar.nodes import Node
from events.options import GenerationOptions, ResponseFormat, ToolChoice
from events.parsing.machine import Parser
from events.parsing.policy import Policy

MAX_CACHED, SMALL = 8 * 1024 * 1024, 64 * 1024
"""Bytes of the keys of all cached plans, and those that a small one counts as. A plan takes about twelve times its
key."""
MAX_FINDINGS = 8
"""Warnings for one schema; further ones are only counted."""
MAX_BYTES = 512 * 1024
LARGE = 32 * 1024
"""Bytes of the tools' schemas above which they are checked before the prompt is rendered."""
MAX_CHOICES = 2000
SECONDS = 5.0
"""CPU time of a plan. Most take milliseconds."""


class ConstraintPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The constraint of a turn, None if nothing is enforced. call_list: see `events.grammar.Plan`. warnings: what was
    requested but is not enforced."""

    constraint: Constraint | None = None
    call_list: Node | None = None
    warnings: tuple[str, ...] = ()


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a plan depends on. tools: (name, parameters) of the declared tools. grammars: name → Lark
    grammar, for tools whose only argument is a text in it. stage: where the output starts. control_ids: spelling → id
    of the control tokens. unmarked: calls without their format's markers are accepted."""

    output_format: OutputFormat
    tools: tuple[tuple[str, Any], ...]
    choice: ToolChoice
    parallel: bool
    strict_tools: tuple[str, ...]
    response_format: ResponseFormat | None
    stage: Stage
    control_ids: dict[str, int]
    unmarked: bool
    grammars: dict[str, str] = {}


_plans: BoundedCache[bytes, ConstraintPlan] = BoundedCache(MAX_CACHED, lambda key, _: max(len(key), SMALL))


async def plan_constraint(
    prompt: Prompt,
    control_ids: Mapping[str, int],
    input: RunAgentInput,
    options: GenerationOptions,
    settings: OutputSettings,
    info: EngineInfo,
) -> ConstraintPlan:
    """Return the constraint on the turn's output. Raises EngineError("invalid_request"), which names the tool or
    option, if the chosen tool is not declared, if a schema is refused, or if a strict schema cannot be enforced in
    full."""
    request = plan_request(prompt, control_ids, input, options, settings)
    if request is None:
        return ConstraintPlan()
    if not info.supports_constraints:
        # Without grammars, requests that require enforcement are refused, and all others are validated afterwards.
        if request.choice.mode in ("required", "named"):
            raise _refused("tool_choice", f"This engine cannot enforce tool_choice {request.choice.mode!r}.")
        strict = next((name for name, _ in request.tools if name in request.strict_tools), None)
        if strict is not None:
            raise _refused("tools", f"This engine cannot enforce the schema of the tool {strict[:64]!r} (strict).")
        if request.response_format is not None:
            raise _refused("response_format", "This engine cannot enforce a response format.")
        return ConstraintPlan()
    key = msgspec.json.encode(request)  # schemas may have numbers of more than 64 bits, MessagePack may not
    if len(key) > MAX_BYTES + (sum(len(text.encode()) + 16 for text in control_ids) + 4096):
        raise _too_large()
    cached_plan = _plans.get(key)
    if cached_plan is not None:
        return cached_plan
    new_plan = await REQUEST_THREADS.run(make_plan, request)
    _plans.put(key, new_plan)
    return new_plan


async def refuse_early(input: RunAgentInput, options: GenerationOptions, settings: OutputSettings) -> None:
    """Raise what `plan_constraint` would raise for large tools before a prompt is rendered with them, because rendering
    them takes longer than this check."""
    tools = enforced_tools(input, options, settings)
    size = sum(len(msgspec.json.encode(parameters)) for _, parameters in tools)
    if size > MAX_BYTES:
        raise _too_large()
    if size > LARGE:

        def lint() -> None:
            for name, parameters in tools:
                try:
                    prepare(_schema_of(parameters))
                except SchemaRefused as error:
                    raise _refused_schema(_where(name), "tools", error) from error

        await REQUEST_THREADS.run(lint)


def _too_large() -> EngineError:
    return _refused("tools", f"Tools and response format have more than {MAX_BYTES} bytes of schemas.")


def plan_request(
    prompt: Prompt,
    control_ids: Mapping[str, int],
    input: RunAgentInput,
    options: GenerationOptions,
    settings: OutputSettings,
) -> PlanRequest | None:
    """Return what a plan for this turn depends on, or None if there is nothing to enforce."""
    choice = options.tool_choice
    declared = [tool.name for tool in input.tools or ()]
    if choice.mode in ("required", "named") and not declared:
        raise _refused("tool_choice", "tool_choice requires tools, but the request declares none.")
    missing = next((name for name in choice.names if name not in declared), None)
    if missing is not None:
        raise _refused(
            "tool_choice", f"tool_choice names the tool {missing[:64]!r}, which the request does not declare."
        )
    tools = enforced_tools(input, options, settings)
    if not tools and options.response_format is None:
        return None
    return PlanRequest(
        output_format=prompt.output_format,
        tools=tools,
        choice=choice if tools else ToolChoice(),
        parallel=options.parallel_tool_calls,
        strict_tools=tuple(sorted(options.strict_tools)),
        response_format=options.response_format,
        stage=grammar_stage(prompt),
        control_ids=dict(control_ids),
        unmarked=settings.unmarked_calls == "lenient",
        grammars=options.tool_grammars,
    )


def enforced_tools(
    input: RunAgentInput, options: GenerationOptions, settings: OutputSettings
) -> tuple[tuple[str, object], ...]:
    """Return (name, parameters) of the tools whose calls a grammar must enforce."""
    enabled = settings.constrain_tools if options.constrain_tools is None else options.constrain_tools
    if not enabled or options.tool_choice.mode == "none" or options.raw_prompt is not None:
        return ()
    return tuple((tool.name, tool.parameters) for tool in input.tools or ())


def _refused(param: str, message: str) -> EngineError:
    return EngineError("invalid_request", message, param=param)


def grammar_stage(prompt: Prompt) -> Stage:
    """Return the stage in which the output starts, by parsing the part of the answer that the prompt already
    contains."""
    if prompt.output_format.reasoning is None or not prompt.opened:
        return "start"
    parser = Parser(prompt.output_format, Policy(), opened=prompt.opened, marker_ids=prompt.marker_ids)
    return parser.stage


# making a plan


@CPU_LIMIT.of(SECONDS)
def make_plan(request: PlanRequest) -> ConstraintPlan:
    """Check all schemas, then plan. This takes milliseconds to tenths of a second, so call it in a thread. Schemas that
    are not compiled after SECONDS are not enforced."""
    notes: list[str] = []
    output_tools = request.output_format.tools
    writes_values = output_tools is not None and output_tools.style != "json" and output_tools.arguments.style != "json"
    functions: list[Function] = []
    for name, parameters in request.tools:
        where = _where(name)
        ready = _prepared(where, "tools", _schema_of(parameters))
        findings = list(ready.findings)
        if output_tools is not None and writes_values:
            findings += unwritten(output_tools.arguments, ready.schema)
        _note(where, "tools", findings, name in request.strict_tools, notes)
        grammar = request.grammars.get(name)
        try:
            if grammar is not None:  # the engine compiles it
                in_json(grammar)
        except LarkError as error:
            raise _refused("tools", f"{where.replace('schema', 'grammar', 1)} is refused: {error}") from error
        close_objects(ready, is_arguments=True)
        functions.append(Function(name, ready.schema, grammar))
    response_format = _response_format(request.response_format, notes)
    try:
        grammar_plan = plan(
            request.output_format,
            functions=functions,
            choice=request.choice,
            parallel=request.parallel,
            response_format=response_format,
            stage=request.stage,
            marker_ids=request.control_ids,
            unmarked=request.unmarked,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # The model's format cannot be written as a grammar: tools are not enforced, with a warning, and a response
        # format is refused.
        from events.grammar.structural_tag import NOT_ENFORCED, Plan

        if request.response_format is not None:
            raise _refused("response_format", f"The response format cannot be enforced: {error}") from error
        grammar_plan = Plan(warnings=(NOT_ENFORCED,))
    if request.tools and not grammar_plan.calls:
        if request.choice.mode in ("required", "named"):
            message = f"tool_choice {request.choice.mode!r} cannot be enforced in this model's format."
            raise _refused("tool_choice", message)
        strict = next((name for name, _ in request.tools if name in request.strict_tools), None)
        if strict is not None:
            message = f"The schema of {strict[:64]!r} (strict) cannot be enforced in this model's format."
            raise _refused("tools", message)
    constraint = None if grammar_plan.tag is None else Constraint(kind="structural_tag", value=grammar_plan.tag)
    warnings = (*grammar_plan.warnings, *notes)
    return ConstraintPlan(constraint=constraint, call_list=grammar_plan.call_list, warnings=warnings)


def _where(tool: str) -> str:
    return f"The schema of the tool {tool[:64]!r}"


def _schema_of(parameters: object) -> object:
    """Return the schema of a tool's parameters; a tool without any takes an empty object."""
    return parameters if parameters is not None else {"type": "object"}


def _response_format(response_format: ResponseFormat | None, notes: list[str]) -> ResponseFormat | None:
    if response_format is None:
        return None
    if response_format.kind == "json_schema":
        where = "The response format's schema"
        ready = _prepared(where, "response_format", response_format.value)
        _note(where, "response_format", ready.findings, response_format.strict, notes)
        close_objects(ready, is_arguments=False)
        return msgspec.structs.replace(response_format, value=ready.schema)
    if response_format.kind == "structural_tag":
        return msgspec.structs.replace(response_format, value=_prepared_tag(response_format.value, notes))
    problem = check_pattern_value(response_format.value) if response_format.kind == "regex" else None
    if response_format.kind == "choice" and len(response_format.value) > MAX_CHOICES:
        problem = f"choice may have at most {MAX_CHOICES} entries."
    if problem:
        raise _refused("response_format", problem)
    return response_format


def _prepared_tag(node: Any, notes: list[str]) -> Any:
    """Return a client's structural tag with its schemas prepared."""
    if isinstance(node, list):
        return [_prepared_tag(each, notes) for each in node]
    if not isinstance(node, Mapping):
        return node
    prepared_node = {
        key: _prepared_tag(each, notes) for key, each in node.items() if key not in ("json_schema", "schema")
    }
    for key in node.keys() - prepared_node.keys():
        where = "A schema of the structural tag"
        ready = _prepared(where, "response_format", node[key])
        _note(where, "response_format", ready.findings, False, notes)
        close_objects(ready, is_arguments=False)
        prepared_node[key] = ready.schema
    return prepared_node


def _prepared(where: str, param: str, schema: object) -> PreparedSchema:
    try:
        return prepared(schema)
    except SchemaRefused as error:
        raise _refused_schema(where, param, error) from error


def _refused_schema(where: str, param: str, error: SchemaRefused) -> EngineError:
    at = f" at {error.path}" if error.path else ""
    return _refused(param, f"{where} is refused{at}: {error.message}")


def _note(where: str, param: str, findings: Sequence[Finding], strict: bool, notes: list[str]) -> None:
    if findings and strict:
        raise _refused(param, f"{where} is strict, but {findings[0]}")
    notes += [f"{where}: {finding}" for finding in findings[:MAX_FINDINGS]]
    if len(findings) > MAX_FINDINGS:
        notes.append(f"{where}: {len(findings) - MAX_FINDINGS} more keywords are not enforced while generating.")
