"""How long encoding one long text holds up the other threads: at once, and in slices.

    python benchmarks/encoding_stall.py [--characters 1900000] [--rounds 3]

A thread encodes the text with the bundled model's tokenizer, while this one asks for the interpreter every millisecond,
as a server's event loop does. Printed for both ways: the longest wait of each round, and how long encoding took; and
the ratio of the waits' medians. The aim for any accepted body is 50 ms (a text of 1.9 MB is accepted where the context
is long enough).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from agent_server.models.prompting.encoding import encoded

WORDS = "The quick brown fox jumps over the lazy dog, doesn't it? "
STEP = 0.001
AIM = 0.05


def longest_wait(work: Callable[[], object]) -> tuple[float, float]:
    """(the longest wait for the interpreter while the work goes on in a thread, how long it took), in seconds."""
    thread = threading.Thread(target=work)
    begun = last = time.perf_counter()
    thread.start()
    worst = 0.0
    while thread.is_alive():
        time.sleep(STEP)
        now = time.perf_counter()
        worst = max(worst, now - last - STEP)
        last = now
    return worst, last - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=1_900_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    tokenizer = load_model_files(BUNDLED).tokenizer
    text = (WORDS * (given.characters // len(WORDS) + 1))[: given.characters]
    waits: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(given.rounds):
        for sliced, found in waits.items():
            wait, took = longest_wait(lambda sliced=sliced: encoded(tokenizer, text, sliced=sliced))
            found.append(wait)
            print(f"{'in slices' if sliced else 'at once':10} longest wait {wait * 1000:6.1f} ms, took {took:.2f} s")
    whole, sliced = (statistics.median(found) for found in waits.values())
    print(f"median of the longest waits: {whole / sliced:.1f} times shorter in slices; aim 50 ms: ", end="")
    print("kept" if sliced <= AIM else "missed")


if __name__ == "__main__":
    main()
