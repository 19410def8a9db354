"""`agent-server evaluate`: asks an agent the cases of a file, and says which it answered as expected."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    """A call. arguments: those that are named must be equal; others may be there."""

    name: str
    arguments: dict[str, Any] = {}

    def fits(self, name: str, arguments: object) -> bool:
        return name == self.name and contains(arguments, self.arguments)


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is expected. calls: all calls that are made, in any order; [] for none; None leaves them open. more_calls:
    others may be made as well. contains, lacks: texts that the answer has and has not, in any case of letters. matches:
    a regular expression that is found in it. state: what the shared state has in the end; objects are compared by the
    keys that are named. outcome: how the last run ended.
    """

    calls: list[ExpectedCall] | None = None
    more_calls: bool = False
    contains: Words = []
    lacks: Words = []
    matches: str | None = None
    state: dict[str, Any] | None = None
    outcome: Outcome = "success"


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of a file of cases. input: what the user says; or messages: a conversation as AG-UI has it. state: the
    shared state to begin with. tools: the client's, as AG-UI declares them. approve: how every question for approval is
    answered; None leaves them, and the run ends with the interrupt.
    """

    id: str = ""
    input: str = ""
    messages: list[dict[str, Any]] = []
    state: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = []
    approve: bool | None = None
    expect: Expected


class Observed(msgspec.Struct, kw_only=True):
    """What a case's runs gave. calls: (name, arguments) in the order in which they were made."""

    text: str = ""
    calls: list[tuple[str, Any]] = []
    state: Any = None
    outcome: Outcome = "success"
    error: str = ""


def read_cases(path: Path) -> list[Case]:
    """The cases of a file of JSON lines; empty lines are passed over. Raises CaseError, which names the line."""
    cases: list[Case] = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            cases.append(_case(line, number))
    if not cases:
        raise CaseError(f"{path} has no cases; each line is one, a JSON object")
    if twice := [id for id, count in Counter(each.id for each in cases).items() if count > 1]:
        raise CaseError(f"two cases are called {twice[0]}; give each its own id")
    return cases


def _case(line: str, number: int) -> Case:
    try:
        case = msgspec.json.decode(line, type=Case)
        re.compile(case.expect.matches or "")
    except (msgspec.MsgspecError, re.error) as error:
        raise CaseError(f"line {number}: {error}") from error
    if bool(case.input) == bool(case.messages):
        raise CaseError(f"line {number}: a case has either input or messages")
    return case if case.id else msgspec.structs.replace(case, id=f"line {number}")


def contains(found: object, wanted: object) -> bool:
    """Whether a JSON value is what is wanted: objects have at least its keys, everything else is equal."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and contains(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(contains(one, other) for one, other in zip(found, wanted, strict=True))
        )
    return (type(found) is type(wanted) and found == wanted) or _same_number(found, wanted)


def _same_number(found: object, wanted: object) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (found, wanted))
    return numbers and found == wanted


def judge(expected: Expected, observed: Observed) -> list[str]:
    """What is not as expected, a sentence each; [] for a case that passes."""
    faults = []
    if observed.outcome != expected.outcome:
        told = f": {observed.error}" if observed.error else ""
        faults.append(f"ended with {observed.outcome} in place of {expected.outcome}{told}")
    if expected.calls is not None:
        faults += _faults_of_calls(expected.calls, observed.calls, more=expected.more_calls)
    text = observed.text.casefold()
    faults += [f"the answer lacks {each!r}" for each in _words(expected.contains) if each.casefold() not in text]
    faults += [f"the answer has {each!r}" for each in _words(expected.lacks) if each.casefold() in text]
    if expected.matches is not None and re.search(expected.matches, observed.text) is None:
        faults.append(f"the answer does not match {expected.matches!r}")
    if expected.state is not None and not contains(observed.state, expected.state):
        faults.append(f"the state is {_json(observed.state)}")
    return faults


def _faults_of_calls(wanted: Iterable[ExpectedCall], made: Sequence[tuple[str, object]], *, more: bool) -> list[str]:
    """Each expected call takes one that was made. The one with the most arguments chooses first, so that one that names
    few does not take its only match."""
    left, faults = list(made), []
    for each in sorted(wanted, key=lambda call: -len(call.arguments)):
        fit = next((one for one in left if each.fits(*one)), None)
        if fit is None:
            faults.append(f"no call {each.name}({_json(each.arguments)})")
        else:
            left.remove(fit)
    return faults if more else faults + [f"an unexpected call {name}({_json(given)})" for name, given in left]


def _words(given: Words) -> list[str]:
    return [given] if isinstance(given, str) else given


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def summary(results: Mapping[str, Sequence[str]]) -> str:
    """A table for people: a line for each case, what is wrong below it, and how many passed."""
    width = max(len(id) for id in results)
    lines = []
    for id, faults in results.items():
        lines.append(f"{id:<{width}}  {'FAILED' if faults else 'passed'}")
        lines += [f"{'':<{width}}    {fault}" for fault in faults]
    passed = sum(not faults for faults in results.values())
    return "\n".join([*lines, f"{passed} of {len(results)} passed"])


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
