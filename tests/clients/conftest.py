"""The matrix of coding agents: printed at the end of a run, and written into the page that CLIENTS_MATRIX names.

A test's `cell` marks name the columns that it fills in the row of its parameter `agent`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.clients.agents import AGENTS

CELLS = ("edit task", "resume", "stop", "context full", "429", "dropped stream", "tool search", "image", "ten turns")
UNTESTED = "untested"
BEGIN, END = "<!-- matrix: written by make test-clients -->", "<!-- end of the matrix -->"
OUTCOMES = pytest.StashKey[dict[tuple[str, str], str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cell(*columns): the columns of the matrix of coding agents that a test fills")
    config.stash[OUTCOMES] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if isinstance(agent := params.get("agent"), str) and (report.when == "call" or not report.passed):
        reason = report.longrepr if isinstance(report.longrepr, tuple) else report.longreprtext.splitlines()[-1:]
        outcome = "passed" + "".join(f" ({text})" for name, text in item.user_properties if name == "cell")
        outcome = outcome if report.passed else f"{report.outcome}: {str(reason[-1]) if reason else ''}".strip(": ")
        for mark in item.iter_markers("cell"):
            assert set(mark.args) <= set(CELLS), f"Unknown cell in {mark.args}. Use one of {CELLS}."
            for cell in mark.args:
                earlier = item.config.stash[OUTCOMES].get((agent, cell), "passed")
                item.config.stash[OUTCOMES][agent, cell] = outcome if earlier.startswith("passed") else earlier
    return report


def table(outcomes: dict[tuple[str, str], str], page: str = "") -> str:
    """The matrix in Markdown. page: one with an earlier matrix, whose cells stay for what was not run with the same
    version."""
    head, lines = ["agent", "version", "wire", *CELLS], []
    for agent in AGENTS.values():
        start = [agent.title, agent.version, agent.wire]
        earlier = re.search(re.escape(f"| {' | '.join(start)} | ") + r"(.*) \|", page)
        cells = earlier[1].split(" | ") if earlier is not None else [UNTESTED] * len(CELLS)
        now = (
            agent.lacks.get(cell) or outcomes.get((agent.name, cell), before)
            for cell, before in zip(CELLS, cells, strict=True)
        )
        lines.append([*start, *(cell.partition(":")[0] for cell in now)])
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    outcomes = config.stash[OUTCOMES]
    if not outcomes:
        return
    terminalreporter.section("coding agents")
    terminalreporter.write_line(table(outcomes))
    for (agent, cell), outcome in outcomes.items():
        if outcome != "passed":
            terminalreporter.write_line(f"{agent}, {cell}: {outcome}")
    if (page := os.environ.get("CLIENTS_MATRIX")) is not None:
        text = Path(page).read_text("utf-8")
        matrix = f"{BEGIN}\n\n{table(outcomes, text)}\n\n{END}"
        Path(page).write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: matrix, text, flags=re.DOTALL), "utf-8")
