"""Long runs of the parser's properties: `python tests/properties/long_runs.py --splits 100000 --cases 1000000`.

Splits: that many random splits of each format's own cases give the same message. Cases: that many random outputs raise
nothing, give the same events from every split, and form legal streams. `make test` runs a sample.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from events.formats.registry import FORMATS
from events.parsing.policy import Policy
from tests.formats.cases import CASES
from tests.formats.reading import cuts, read
from tests.properties.outputs import NAMES, Output, check_lifecycle, events_of, joined, random_output


def check_splits(name: str, count: int, seed: int = 0) -> None:
    """`count` random splits over the cases of one format. AssertionError names the case and the seed."""
    cases = CASES[name]
    wholes = [read(FORMATS[name], [case.text], Policy(tools=case.tools), case.prefix) for case in cases]
    for number in range(count):
        case, whole = cases[number % len(cases)], wholes[number % len(cases)]
        pieces = cuts(case.text, seed * 1_000_003 + number, random.Random(number).choice((1, 2, 5, 12, 60)))
        found = read(FORMATS[name], pieces, Policy(tools=case.tools), case.prefix)
        assert found == whole, f"{name}: split {seed}/{number} of {case.text!r} gives {found}, not {whole}"


def check_fuzz(count: int, seed: int = 0) -> None:
    """`count` random outputs. AssertionError shows the output."""
    generator = random.Random(seed)
    for number in range(count):
        output = random_output(number, generator)
        try:
            check_output(output, generator.randrange(1 << 30))
        except Exception as error:
            raise AssertionError(f"fuzz case {seed}/{number}: {output}") from error


def check_output(output: Output, seed: int) -> None:
    events = events_of(output, [output.text])
    check_lifecycle(events)
    whole = joined(events)
    for pieces in (list(output.text), cuts(output.text, seed)):
        assert joined(events_of(output, pieces)) == whole


def shares(count: int, size: int) -> Iterator[int]:
    while count > 0:
        yield min(count, size)
        count -= size


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--splits", type=int, default=100_000, help="random splits for each format")
    arguments.add_argument("--cases", type=int, default=1_000_000, help="random outputs in all")
    arguments.add_argument("--format", choices=NAMES, action="append", help="only these formats' splits")
    given = arguments.parse_args()
    start = time.monotonic()
    for name in given.format or NAMES if given.splits else ():
        check_splits(name, given.splits)
        print(f"{name}: {given.splits} splits agree ({time.monotonic() - start:.0f} s)", flush=True)
    done = 0
    for seed, share in enumerate(shares(given.cases, 20_000)):
        check_fuzz(share, seed)
        done += share
        print(f"{done} fuzz cases raised nothing ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
