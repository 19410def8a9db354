"""Damaged templates: whatever is left of one, the analysis ends, and never with an exception."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.template.analyser import TemplateAnalysis, analyse
from events.template.writer import WrittenCall, write
from tests.template.folder import own, own_names


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """An own template with parts cut out, doubled or put elsewhere."""
    source = own(draw(st.sampled_from(own_names())))
    for _ in range(draw(st.integers(1, 3))):
        lines = source.split("\n")
        start = draw(st.integers(0, len(lines) - 1))
        end = draw(st.integers(start, min(len(lines), start + 4)))
        change = draw(st.sampled_from(["cut", "double", "move", "character"]))
        if change == "cut":
            lines[start:end] = []
        elif change == "double":
            lines[start:start] = lines[start:end]
        elif change == "move":
            lines = lines[end:] + lines[:end]
        else:
            position = draw(st.integers(0, len(lines[start])))
            lines[start] = lines[start][:position] + draw(st.sampled_from("<>{}%'\"| \n")) + lines[start][position:]
        source = "\n".join(lines)
    return source


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=damaged())
def test_a_damaged_template_is_analysed(source: str) -> None:
    found = analyse(source)
    assert not any("the analysis failed" in warning for warning in found.warnings), found.warnings
    described = found.output_format
    assert write(described, reasoning="r", content="c", calls=[WrittenCall("f", {"a": 1})])
    assert msgspec.json.decode(msgspec.json.encode(found), type=TemplateAnalysis) == found
