"""The campaign's table, made in several parts."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts import campaign


def given(out: Path, **changed: object) -> argparse.Namespace:
    usual = {"minutes": 1.0, "soak": 0.0, "each": 20.0, "only": "", "more": True, "out": out}
    return argparse.Namespace(**{**usual, **changed})


def results(out: Path) -> dict[str, str]:
    rows = [row.split(" | ") for row in out.read_text("utf-8").splitlines()[2:]]
    return {row[0].removeprefix("| "): row[2] for row in rows}


def test_parts_write_one_table_and_what_passed_is_not_run_again(tmp_path: Path) -> None:
    out, ran = tmp_path / "campaign.md", tmp_path / "ran"
    once = f"open({str(ran)!r}, 'a').write('x'); print('kept')"
    lines = [
        campaign.Line("first", "an aim", ("-c", once)),
        campaign.Line("second", "an aim", ("-c", "print('10 ms | aim 5 ms: missed')")),
        campaign.Line("third", "an aim", ("-c", "raise SystemExit(1)")),
    ]
    assert campaign.campaign(lines, given(out, only="first"))
    assert results(out) == {"first": "passed", "second": "not run", "third": "not run"}
    assert not campaign.campaign(lines, given(out))
    assert results(out) == {"first": "passed", "second": "failed", "third": "failed"}
    assert ran.read_text("utf-8") == "x"
    assert not campaign.campaign(lines, given(out, minutes=0.0)), "out of time"
    assert results(out)["second"] == "failed", "what an earlier part found stands"
    assert campaign.campaign(lines, given(out, only="first", more=False)) and ran.read_text("utf-8") == "xx"
    assert results(out) == {"first": "passed", "second": "not run", "third": "not run"}


def test_a_line_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "campaign.md"
    lines = [campaign.Line("slow", "an aim", ("-c", "import time; time.sleep(60)"))]
    assert not campaign.campaign(lines, given(out, each=0.2))
    assert results(out) == {"slow": "cut off"}
