"""The look for known weaknesses: no answer is no pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import advisories

PINS = Path("constraints.txt")


def answer(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


SOUND: dict[str, object] = {"name": "jinja2", "version": "3.1.6", "vulns": []}
WEAK: dict[str, object] = {
    "name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-2019-217", "fix_versions": ["2.10.1"]}],
}  # fmt: skip
SKIPPED: dict[str, object] = {"name": "jinja2", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("told", "complaint", "reason"),
    [
        ("", "Traceback\nConnectionError: no such host", "ConnectionError: no such host"),
        ("", "", "said nothing"),
        ("[]", "odd", "odd"),
        (answer(SKIPPED, SOUND), "", "knows nothing of 1 of 2"),
        (answer(), "", "about no package"),
    ],
)
def test_what_was_not_asked_about_is_no_answer(told: str, complaint: str, reason: str) -> None:
    found, why = advisories.read(told, complaint)
    assert not found and reason in why


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        ([answer(SOUND)], advisories.CLEAN, "1 packages, 0 known weaknesses, by pypi."),
        (["", answer(SOUND)], advisories.CLEAN, "by osv."),
        ([answer(SKIPPED), answer(SOUND, WEAK)], advisories.WEAK, "PYSEC-2019-217, mended in 2.10.1"),
        ([answer(SKIPPED), ""], advisories.UNKNOWN, "Nothing was checked"),
    ],
)
def test_each_end_has_its_own_status(
    answers: list[str], status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(answers)
    monkeypatch.setattr(advisories, "ask", lambda pins, service: advisories.read(next(left), "no such host"))
    assert advisories.main(PINS) == status
    told = capsys.readouterr()
    assert said in told.out + told.err
