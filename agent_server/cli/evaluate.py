"""`agent-server evaluate`: asks an agent the cases of a file, and says which it answered as expected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from ag_ui.core import RunAgentInput
from pydantic import ValidationError

from adapters.errors import RequestError
from agent_server.cli.evaluation_cases import Case, Observed, judge, read_cases, summary
from agent_server.cli.parse_cases import CaseError
from events.message import Folder
from events.options import GenerationOptions
from events.vocabulary import InterruptOutcome, RunError, RunFinished

if TYPE_CHECKING:
    from agent_server.http.server import Server

QUESTIONS = 8
"""How often a case's run may ask for approval before it is left."""


def evaluate(
    agent: Annotated[str, typer.Argument(help="my_agent.py:agent, or a URL, as for `serve --agent`.")],
    cases: Annotated[Path, typer.Argument(help="File of cases, a JSON object a line; see docs/evaluation.md.")],
    model: Annotated[str | None, typer.Option(help="Folder or hub name of the model; none: the demo's.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="URL of an upstream engine (repeat for several).")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Cases that are asked at once.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:
    """Ask an agent every case of a file. The exit status is 0 if all pass, 1 if one fails, 2 for bad input."""
    from agent_server.http.assemble import build_server
    from agent_server.http.server import StartupError
    from agent_server.settings import Settings, fault_text

    logging.basicConfig(level=logging.WARNING)
    given: dict[str, Any] = {"agent": (agent,), "store_url": "memory", "redis_url": ""}
    given |= {"model": model} if model else {}
    given |= {"engine": tuple(engine)} if engine else {}
    try:
        asked = read_cases(cases)
        server = build_server(Settings(**given))
        found = asyncio.run(results_of(server, asked, at_once))
    except ValidationError as error:
        _refuse(fault_text(error))
    except (CaseError, StartupError) as error:
        _refuse(str(error))
    faults = {case.id: judge(case.expect, observed) for case, observed in zip(asked, found, strict=True)}
    typer.echo(_as_json(found, faults) if json else summary(faults))
    if any(faults.values()):
        raise typer.Exit(1)


def _refuse(message: str) -> None:
    typer.echo(f"agent-server: {message}", err=True)
    raise typer.Exit(2)


def _as_json(found: Sequence[Observed], faults: dict[str, list[str]]) -> str:
    cases = [
        {"id": id, "passed": not wrong, "faults": wrong, **msgspec.to_builtins(observed)}
        for (id, wrong), observed in zip(faults.items(), found, strict=True)
    ]
    passed = sum(not wrong for wrong in faults.values())
    return msgspec.json.encode({"passed": passed, "cases": len(cases), "results": cases}).decode()


async def results_of(server: Server, cases: Sequence[Case], at_once: int) -> list[Observed]:
    """What each case gave, in the cases' order. Starts the server and closes it. Raises StartupError."""
    from agent_server.http.server import StartupError

    places = asyncio.Semaphore(at_once)

    async def one(case: Case, number: int) -> Observed:
        async with places:
            return await _observed(server, case, f"case-{number}")

    await server.start()
    try:
        async for status in server.model.states():
            if status.state == "failed":
                raise StartupError(status.message)
        return await asyncio.gather(*(one(case, number) for number, case in enumerate(cases)))
    finally:
        await server.close()


async def _observed(server: Server, case: Case, thread_id: str) -> Observed:
    """A case's runs: the first, and one more for each question that `approve` answers."""
    messages = case.messages or [{"id": f"{thread_id}-user", "role": "user", "content": case.input}]
    given = {"threadId": thread_id, "messages": messages, "tools": case.tools, "state": case.state}
    folder, before = Folder(messages, case.state), len(messages)
    resume: list[dict[str, Any]] = []
    for number in range(QUESTIONS + 1):
        try:
            input = RunAgentInput.model_validate({**given, "runId": f"{thread_id}-{number}", "resume": resume or None})
            run = await server.runs.start(input, GenerationOptions(), grace=float("inf"))
        except (ValidationError, RequestError) as error:
            return _ended(folder, before, RunError(message=str(error)))
        folder = Folder(folder.messages, folder.state)
        async for _, event in run.events():
            folder.add(event)
        terminal = await run.wait()
        asked = _questions(terminal)
        if not asked or case.approve is None:
            break
        payload = {"approved": case.approve}
        resume = [{"interruptId": id, "status": "resolved", "payload": payload} for id in asked]
        given = {**given, "messages": [each for each in folder.messages if each["role"] != "activity"]}
    return _ended(folder, before, terminal)


def _questions(terminal: object) -> list[str]:
    """The ids of the approvals that a run ended with; [] if it asks something else as well, which nothing answers."""
    outcome = terminal.outcome if isinstance(terminal, RunFinished) else None
    if not isinstance(outcome, InterruptOutcome) or any(each.reason != "tool_call" for each in outcome.interrupts):
        return []
    return [each.id for each in outcome.interrupts]


def _ended(folder: Folder, before: int, terminal: object) -> Observed:
    said = [each for each in folder.messages[before:] if each["role"] == "assistant" and not each.get("subagentRunId")]
    observed = Observed(
        text="\n".join(each["content"] for each in said if each.get("content")),
        calls=[_call(call["function"]) for each in said for call in each.get("toolCalls") or ()],
        state=folder.state,
    )
    if isinstance(terminal, RunError):
        observed.outcome, observed.error = "error", terminal.message
    elif isinstance(terminal, RunFinished) and isinstance(terminal.outcome, InterruptOutcome):
        observed.outcome = "interrupt"
    return observed


def _call(function: dict[str, str]) -> tuple[str, Any]:
    """Arguments that are no JSON stay text, which fits no expectation."""
    try:
        return function["name"], msgspec.json.decode(function["arguments"] or "{}")
    except (msgspec.DecodeError, RecursionError):
        return function["name"], function["arguments"]
