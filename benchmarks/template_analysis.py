"""CPU time of analysing each chat template once: `python -m benchmarks.template_analysis [FOLDER ...]`.

Without folders, the project's own test templates. The aim is less than 100 ms for each, since it happens once for a
model; the peer that analyses on every request (llama.cpp, compiled) takes 10 ms.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from events.template.analyser import analyse

OWN = Path(__file__).resolve().parents[1] / "tests" / "template" / "templates"


def measure(path: Path) -> tuple[float, int]:
    """(milliseconds of CPU, renderings) of one analysis that is in no cache."""
    source = path.read_text("utf-8") + f"{{# measured {time.time_ns()} #}}"
    started = time.process_time()
    found = analyse(source)
    return 1000 * (time.process_time() - started), found.renderings


def main() -> None:
    folders = [Path(argument) for argument in sys.argv[1:]] or [OWN]
    rows = [(path.stem, *measure(path)) for folder in folders for path in sorted(folder.glob("*.jinja"))]
    for name, milliseconds, renderings in sorted(rows, key=lambda row: -row[1]):
        print(f"{milliseconds:7.1f} ms {renderings:4d} renderings  {name}")
    times = sorted(row[1] for row in rows)
    if times:
        print(f"median {times[len(times) // 2]:.1f} ms, worst {times[-1]:.1f} ms of {len(times)} templates")


if __name__ == "__main__":
    main()
