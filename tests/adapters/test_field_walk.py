"""No form of the SDKs' request types is refused without a listed reason, and the page says what becomes of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.field_walk import WIRES, Wire, outcomes, rows

PAGE = Path(__file__).parents[2] / "docs" / "request-forms.md"
pytestmark = pytest.mark.parametrize("wire", WIRES, ids=[wire.title for wire in WIRES])


def test_only_what_is_listed_is_refused(wire: Wire) -> None:
    reasons = tuple(wire.refused)
    refused = [each for each in outcomes(wire.title) if each.status == "refused"]
    assert [f"{each.path}: {each.note}" for each in refused if not each.path.startswith(reasons)] == []
    paths = {each.path for each in outcomes(wire.title)}
    unused = [reason for reason in reasons if not any(each.path.startswith(reason) for each in refused)]
    assert [reason for reason in unused if any(path.startswith(reason) for path in paths)] == []


def test_the_walk_reaches_items_parts_tools_and_values(wire: Wire) -> None:
    paths = {each.path for each in outcomes(wire.title) if each.status == "taken"}
    expected = {
        "Chat Completions": {"messages.user.content.image_url", "tools.custom", "reasoning_effort=low"},
        "Responses": {"input.configuration_update", "input.shell_call_output", "tools.namespace", "truncation=auto"},
        "Anthropic Messages": {"messages.user.content.tool_result", "tools.bash_20250124", "thinking.enabled"},
        "Anthropic Messages, beta": {"messages.system", "messages.user.content.document.source.content.content.image"},
    }
    assert expected[wire.title] <= paths


def test_the_page_has_every_row(wire: Wire) -> None:
    section = PAGE.read_text("utf-8").partition(f"\n## {wire.title}\n")[2].partition("\n## ")[0].splitlines()
    assert [row for row in rows(wire.title) if row not in section] == [], (
        "run: python -m tests.adapters.field_walk > docs/request-forms.md"
    )
