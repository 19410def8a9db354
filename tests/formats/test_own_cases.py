"""Every named format on the project's own cases, however the text is cut."""

import pytest

from events.formats.registry import FORMATS
from events.parsing.policy import Policy
from tests.formats.cases import CASES, Case
from tests.formats.reading import parsed, read, splits

ALL = [
    pytest.param(name, case, id=f"{name}-{number}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases)
]


def test_every_format_has_cases():
    assert set(FORMATS) == set(CASES)


@pytest.mark.parametrize(("name", "case"), ALL)
def test_case(name: str, case: Case):
    policy = Policy(tools=case.tools)
    whole = read(FORMATS[name], [case.text], policy, case.prefix)
    assert [(call[0], parsed(call[2])) for call in whole.calls] == [(name, value) for name, value in case.calls]
    assert whole.content.strip() == case.content.strip()
    assert whole.reasoning.strip() == case.reasoning
    if case.ids is not None:
        assert [call[1] for call in whole.calls] == case.ids
    for pieces in splits(case.text, 10):
        assert read(FORMATS[name], pieces, policy, case.prefix) == whole
