"""Cases of an evaluation: what an agent is asked, what is expected of it, and what came."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from agent_server.cli.parse_cases import CaseError

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
