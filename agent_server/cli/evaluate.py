"""`agent-server evaluate`: run an agent on the cases of a file and report which it answered as expected."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from ag_ui.core import RunAgentInput
from pydantic import ValidationError

from adapters.errors import RequestError
from agent_server.cli.parse import CaseError
from events.message import Folder
from events.options import GenerationOptions
from events.vocabulary import InterruptOutcome, RunError, RunFinished

if TYPE_CHECKING:
    from agent_server.http.server import Server

Words = str | list[str]
Outcome = Literal["success", "interrupt", "error"]


class ExpectedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expected call. arguments: the ones that must be equal; the call may have others."""

    name: str
    arguments: dict[str, Any] = {}

    def fits(self, name: str, arguments: object) -> bool:
        return name == self.name and contains(arguments, self.arguments)


class ExpectedOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The expected outcome of a case.

    calls: all expected calls, in any order; [] for none; None to accept any. more_calls: accept further calls.
    contains, lacks: texts that the answer must and must not contain, ignoring case. matches: a regular expression to
    find in the answer. state: the final shared state; of objects, only the keys given here are compared. outcome: how
    the last run must end.
    """

    calls: list[ExpectedCall] | None = None
    more_calls: bool = False
    contains: Words = []
    lacks: Words = []
    matches: str | None = None
    state: dict[str, Any] | None = None
    outcome: Outcome = "success"


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of a file of cases.

    input: the user's message; or messages: a conversation in AG-UI's form. state: the initial shared state. tools: the
    client's, in AG-UI's form. approve: the answer to every request for approval; None leaves them unanswered, so that
    the run ends with the interrupt.
    """

    id: str = ""
    input: str = ""
    messages: list[dict[str, Any]] = []
    state: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = []
    approve: bool | None = None
    expect: ExpectedOutcome


class ObservedOutcome(msgspec.Struct, kw_only=True):
    """The outcome of a case's runs. calls: (name, arguments) in order."""

    text: str = ""
    calls: list[tuple[str, Any]] = []
    state: Any = None
    outcome: Outcome = "success"
    error: str = ""


def read_cases(path: Path) -> list[Case]:
    """Read the cases of a JSON Lines file; empty lines are skipped. Raises CaseError, which names the line."""
    cases: list[Case] = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case = msgspec.json.decode(line, type=Case)
            re.compile(case.expect.matches or "")
        except (msgspec.MsgspecError, re.error) as error:
            raise CaseError(f"line {number}: {error}") from error
        if bool(case.input) == bool(case.messages):
            raise CaseError(f"line {number}: a case has either input or messages")
        cases.append(case if case.id else msgspec.structs.replace(case, id=f"line {number}"))
    if not cases:
        raise CaseError(f"{path} has no cases; write one JSON object per line")
    if twice := [id for id, count in Counter(each.id for each in cases).items() if count > 1]:
        raise CaseError(f"two cases are called {twice[0]}; give each its own id")
    return cases


def contains(value: object, expected: object) -> bool:
    """Return whether a JSON value matches the expected one: objects must have at least its keys, anything else be
    equal."""
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(key in value and contains(value[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(contains(one, other) for one, other in zip(value, expected, strict=True))
        )
    are_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (value, expected))
    return (are_numbers or type(value) is type(expected)) and value == expected


def judge(expected: ExpectedOutcome, observed: ObservedOutcome) -> list[str]:
    """Compare a case's outcome with the expectation. Returns a sentence for each difference; [] if it passes."""
    faults = []
    if observed.outcome != expected.outcome:
        reason = f": {observed.error}" if observed.error else ""
        faults.append(f"ended with {observed.outcome} instead of {expected.outcome}{reason}")
    if expected.calls is not None:
        # The calls with the most arguments are matched first, so that a less specific call does not take their only
        # match.
        unmatched = list(observed.calls)
        for each in sorted(expected.calls, key=lambda call: -len(call.arguments)):
            fit = next((one for one in unmatched if each.fits(*one)), None)
            if fit is None:
                faults.append(f"no call {each.name}({_json(each.arguments)})")
            else:
                unmatched.remove(fit)
        if not expected.more_calls:
            faults += [f"an unexpected call {name}({_json(arguments)})" for name, arguments in unmatched]
    text = observed.text.casefold()
    faults += [f"the answer lacks {each!r}" for each in _words(expected.contains) if each.casefold() not in text]
    faults += [f"the answer has {each!r}" for each in _words(expected.lacks) if each.casefold() in text]
    if expected.matches is not None and re.search(expected.matches, observed.text) is None:
        faults.append(f"the answer does not match {expected.matches!r}")
    if expected.state is not None and not contains(observed.state, expected.state):
        faults.append(f"the state is {_json(observed.state)}")
    return faults


def _words(words: Words) -> list[str]:
    return [words] if isinstance(words, str) else words


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def summary(results: Mapping[str, Sequence[str]]) -> str:
    """Format the results as a table: one line per case, its faults below it, and the number that passed."""
    width = max(len(id) for id in results)
    lines = []
    for id, faults in results.items():
        lines.append(f"{id:<{width}}  {'FAILED' if faults else 'passed'}")
        lines += [f"{'':<{width}}    {fault}" for fault in faults]
    passed = sum(not faults for faults in results.values())
    return "\n".join([*lines, f"{passed} of {len(results)} passed"])


MAX_QUESTIONS = 8
"""How often a case may ask for approval before it is given up."""


def evaluate(
    agent: Annotated[str, typer.Argument(help="my_agent.py:agent, or a URL, as for `serve --agent`.")],
    cases: Annotated[Path, typer.Argument(help="File of cases, one JSON object per line; see docs/evaluation.md.")],
    model: Annotated[str | None, typer.Option(help="Folder or hub name of the model; none: the demo's.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="URL of an upstream engine (repeat for several).")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Number of cases that run at once.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run an agent on every case of a file. The exit status is 0 if all pass, 1 if one fails, 2 for bad input."""
    from agent_server.http.assemble import build_server
    from agent_server.http.server import StartupError
    from agent_server.settings import Settings, fault_text

    logging.basicConfig(level=logging.WARNING)
    overrides: dict[str, Any] = {"agent": (agent,), "store_url": "memory", "redis_url": ""}
    overrides |= {"model": model} if model else {}
    overrides |= {"engine": tuple(engine)} if engine else {}
    try:
        case_list = read_cases(cases)
        server = build_server(Settings(**overrides))
        observations = asyncio.run(results_of(server, case_list, at_once))
    except ValidationError as error:
        _refuse(fault_text(error))
    except (CaseError, StartupError) as error:
        _refuse(str(error))
    faults = {case.id: judge(case.expect, observed) for case, observed in zip(case_list, observations, strict=True)}
    if json:
        results = [
            {"id": id, "passed": not wrong, "faults": wrong, **msgspec.to_builtins(observed)}
            for (id, wrong), observed in zip(faults.items(), observations, strict=True)
        ]
        passed = sum(not wrong for wrong in faults.values())
        typer.echo(msgspec.json.encode({"passed": passed, "cases": len(results), "results": results}).decode())
    else:
        typer.echo(summary(faults))
    if any(faults.values()):
        raise typer.Exit(1)


def _refuse(message: str) -> None:
    typer.echo(f"agent-server: {message}", err=True)
    raise typer.Exit(2)


async def results_of(server: Server, cases: Sequence[Case], at_once: int) -> list[ObservedOutcome]:
    """Run the cases and return their outcomes in order. Starts and closes the server. Raises StartupError."""
    from agent_server.http.server import StartupError

    slots = asyncio.Semaphore(at_once)

    async def run_case(case: Case, number: int) -> ObservedOutcome:
        async with slots:
            return await _run_case(server, case, f"case-{number}")

    await server.start()
    try:
        async for status in server.model.states():
            if status.state == "failed":
                raise StartupError(status.message)
        return await asyncio.gather(*(run_case(case, number) for number, case in enumerate(cases)))
    finally:
        await server.close()


async def _run_case(server: Server, case: Case, thread_id: str) -> ObservedOutcome:
    """Run a case: one run, and another for each time that `approve` answers."""
    messages = case.messages or [{"id": f"{thread_id}-user", "role": "user", "content": case.input}]
    body = {"threadId": thread_id, "messages": messages, "tools": case.tools, "state": case.state}
    folder, before = Folder(messages, case.state), len(messages)
    resume: list[dict[str, Any]] = []
    for number in range(MAX_QUESTIONS + 1):
        try:
            input = RunAgentInput.model_validate({**body, "runId": f"{thread_id}-{number}", "resume": resume or None})
            run = await server.runs.start(input, GenerationOptions(), grace=float("inf"))
        except (ValidationError, RequestError) as error:
            return _observation(folder, before, RunError(message=str(error)))
        folder = Folder(folder.messages, folder.state)
        async for _, event in run.events():
            folder.add(event)
        terminal = await run.wait()
        outcome = terminal.outcome if isinstance(terminal, RunFinished) else None
        questions = outcome.interrupts if isinstance(outcome, InterruptOutcome) else []
        # Only approvals can be answered.
        if not questions or case.approve is None or any(each.reason != "tool_call" for each in questions):
            break
        payload = {"approved": case.approve}
        resume = [{"interruptId": each.id, "status": "resolved", "payload": payload} for each in questions]
        body = {**body, "messages": [each for each in folder.messages if each["role"] != "activity"]}
    return _observation(folder, before, terminal)


def _observation(folder: Folder, before: int, terminal: object) -> ObservedOutcome:
    messages = [
        each for each in folder.messages[before:] if each["role"] == "assistant" and not each.get("subagentRunId")
    ]
    observed = ObservedOutcome(
        text="\n".join(each["content"] for each in messages if each.get("content")),
        calls=[_call(call["function"]) for each in messages for call in each.get("toolCalls") or ()],
        state=folder.state,
    )
    if isinstance(terminal, RunError):
        observed.outcome, observed.error = "error", terminal.message
    elif isinstance(terminal, RunFinished) and isinstance(terminal.outcome, InterruptOutcome):
        observed.outcome = "interrupt"
    return observed


def _call(function: dict[str, str]) -> tuple[str, Any]:
    """Return a call's name and arguments. Invalid JSON stays a string, which matches no expectation."""
    try:
        return function["name"], msgspec.json.decode(function["arguments"] or "{}")
    except (msgspec.DecodeError, RecursionError):
        return function["name"], function["arguments"]
