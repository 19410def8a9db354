"""Everything that attacks the server or takes something away from it, one after the other, as one table.

    python scripts/campaign.py [--minutes 90] [--soak 1800] [--each 600] [--out campaign.md] [--only WORD] [--more]

Each line runs a selection of tests, or a benchmark, with a time limit of its own; what does not fit into the minutes is
told as not run. The table names the commit of every line. With --more it goes on with an earlier part's table: what
passed there stands, and the rest is run; what each part found is kept beside the table, as JSON. Exits with 1 if a line
failed, was cut off or did not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EACH_SECONDS = 600
TESTS = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "not vllm and not images and not peers")


@dataclass(frozen=True)
class Line:
    """what: is done to the server. aim: what must hold. command: of Python. longer: seconds that it may take beyond
    what each line may."""

    what: str
    aim: str
    command: tuple[str, ...]
    longer: float = 0.0


def tested(what: str, aim: str, *places: str) -> Line:
    return Line(what, aim, (*TESTS, *places))


LINES = (
    tested("keys and tokens that are wrong, over or of others", "401 or 403 on every route", "tests/http/auth"),
    tested("pages of other origins, rebound names", "403, nothing is read", "tests/http/middleware/test_origins.py"),
    tested("long and slow heads and bodies, many connections", "closed at the limit",
           "tests/http/middleware/test_connections.py"),
    tested("requests sent ahead, floods of frames, idle sockets, texts of 4 MB",
           "others are answered, nothing unread is kept",
           "tests/http/middleware/test_neighbours.py", "tests/http/routes/test_tokenize_bounds.py"),
    tested("clients that leave in mid-body, the same fault 247 times", "no error, few lines",
           "tests/http/middleware/test_logs.py"),
    Line("10,000 mutated bodies on every route", "4xx, never 5xx",
         ("-m", "tests.properties.test_fuzz_http"), longer=3000),
    tested("control tokens in all fields", "none in a prompt", "tests/models/prompting/test_prompt_control_tokens.py"),
    tested("the database locked, full, deleted, damaged", "told, come back from", "tests/runs/store/test_faults.py"),
    tested("the server killed while it writes", "what was committed is there", "tests/runs/store/test_killed.py"),
    tested("files half made, backups cut off", "nothing lost",
           "tests/runs/store/test_half_made.py", "tests/runs/store/test_archive.py"),
    tested("a gateway killed, Redis killed and started", "every stream ends", "tests/gateways/test_killed_gateway.py",
           "tests/gateways/test_sharing.py"),
    Line("a server killed 100 times under clients that come back", "2 % broken, nothing twice, lost or with a seam",
         ("-m", "tests.gateways.kills", "--kills", "100"), longer=900),
    Line("two gateways, one of them killed 30 times", "2 % broken, nothing twice, lost or with a seam",
         ("-m", "tests.gateways.kills", "--kills", "30", "--gateways", "2"), longer=600),
    tested("a run cut at every commit, and its resumption", "one stream, one answer", "tests/runs/test_kill_points.py"),
    tested("SIGTERM, SIGHUP, SIGINT twice while an answer runs", "it ends, exit 0",
           "tests/cli/test_serve.py", "-k", "signal"),
    tested("the engine's process killed, stopped, out of memory", "runs end, it comes back",
           "tests/generation/test_faults.py", "tests/engines/test_watchdog.py"),
    tested("upstreams that break in every way", "an error or another engine", "tests/engines/upstream/test_faults.py"),
    tested("canaries in headers, bodies, tools and names", "none in logs, metrics, traces or errors",
           "tests/http/middleware/test_canaries.py", "tests/http/middleware/test_tracing.py",
           "tests/http/middleware/test_audit.py"),
    tested("the clock put forward and back", "runs end, nothing is lost", "tests/http/middleware/test_clock.py"),
    tested("PostgreSQL stopped and started", "unavailable, 6 lines, then as before", "tests/runs/store/test_outage.py"),
    tested("bodies of thousands of messages", "no turn of the loop above 256 items",
           "tests/runs/test_long_conversations.py", "tests/cli/test_heap.py"),
    Line("1,000 streams of 500 tokens", "0 lost, twice or out of order", ("benchmarks/crowds.py", "streams")),
    Line("10,000 clients, 30 % leave at random", "0 runs left after 1 s", ("benchmarks/crowds.py", "disconnects")),
    Line("200 clients that read nothing", "1 MB each", ("benchmarks/crowds.py", "silent", "--seconds", "60")),
    Line("SIGTERM, SIGHUP, SIGINT twice while 500 answers run", "every stream is told its end, exit 0",
         ("benchmarks/crowds.py", "signals")),
    Line("ten times as many requests as places", "refused with Retry-After within 20 ms",
         ("benchmarks/crowds.py", "overload")),
    Line("every wire in turn, with tools", "memory flat", ("benchmarks/crowds.py", "soak", "--seconds", "{soak}")),
    *(
        Line(f"{what} beside another tenant", "its p99 twice that alone, none refused",
             ("benchmarks/neighbours.py", attack, "--scale", "3"))
        for attack, what in (
            ("pipelined", "300 clients that read no answers"), ("pings", "floods of pings"),
            ("pongs", "floods of pongs"), ("fragments", "floods of fragments"), ("messages", "floods of messages"),
            ("sockets", "a WebSocket for every connection"), ("silent", "a silent client for every connection"),
            ("tokenize", "texts of 4 MB to count"),
        )
    ),
    Line("clients that vanish in silence", "aborted within 250 ms", ("benchmarks/vanishing.py", "--rounds", "5")),
    Line("a text of 1.9 MB", "others wait 50 ms at most", ("benchmarks/encoding_stall.py", "--rounds", "1")),
    Line("bodies of 3.9 MB of spaces beside a stream", "its tokens keep coming",
         ("benchmarks/refusals.py", "--seconds", "3", "--spaces", "3900000")),
    Line("schemas made to stall", "refused, streams keep their pace",
         ("benchmarks/hostile_schemas.py", "--streams", "8", "--seconds", "4")),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """result: "passed", "failed", "cut off" or "not run". said: the last line that it printed."""

    what: str
    result: str
    seconds: float = 0.0
    said: str = ""
    commit: str = ""


def run(line: Line, limit: float, soak: float, each: float = EACH_SECONDS) -> Outcome:
    begun = time.monotonic()
    if limit <= 0:
        return Outcome(line.what, "not run")
    process = subprocess.Popen(
        [sys.executable, *(word.format(soak=soak) for word in line.command)], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = process.communicate(timeout=min(limit, each + line.longer + soak * ("soak" in line.command)))
    except subprocess.TimeoutExpired:
        return Outcome(line.what, "cut off", time.monotonic() - begun, commit=commit())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it started
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    said = [text.strip() for text in told.splitlines() if text.strip()]
    missed = bool(said) and said[-1].endswith("missed")
    result = "failed" if process.returncode or missed else "passed"
    return Outcome(line.what, result, time.monotonic() - begun, said[-1] if said else "", commit())


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return f"{git('rev-parse', '--short', 'HEAD')}{' with changes' if git('status', '--porcelain') else ''}"


def table(lines: Sequence[Line], found: Mapping[str, Outcome]) -> str:
    """Every line's latest outcome; what was never run says so."""
    rows = ["| what is done | aim | result | seconds | commit | last word |", "|---|---|---|---|---|---|"]
    for line in lines:
        each = found.get(line.what, Outcome(line.what, "not run"))
        said = each.said.replace("|", "\\|")[:160]
        seconds = f"{each.seconds:.0f}" if each.commit else ""
        rows.append(f"| {line.what} | {line.aim} | {each.result} | {seconds} | {each.commit} | {said} |")
    return "\n".join(rows) + "\n"


def earlier(kept: Path) -> dict[str, Outcome]:
    """What earlier parts found, by the line's words."""
    if not kept.exists():
        return {}
    return {each["what"]: Outcome(**each) for each in json.loads(kept.read_text("utf-8"))}


def campaign(lines: Sequence[Line], given: argparse.Namespace) -> bool:
    """Run the lines that are wanted, writing the table after each, so that one that is interrupted keeps what it has.
    Whether all of the wanted ones have passed."""
    kept = given.out.with_suffix(".json")
    found = earlier(kept) if given.more else {}
    ends = time.monotonic() + given.minutes * 60
    wanted = [line for line in lines if given.only in line.what]
    for line in wanted:
        if line.what in found and found[line.what].result == "passed":
            continue
        new = run(line, ends - time.monotonic(), given.soak, given.each)
        if new.result == "not run" and line.what in found:
            continue
        found[line.what] = new
        print(f"{new.result:8} {new.seconds:5.0f} s  {line.what}", flush=True)
        given.out.write_text(table(lines, found), "utf-8")
        kept.write_text(json.dumps([asdict(each) for each in found.values()], indent=1), "utf-8")
    return bool(wanted) and all(found[line.what].result == "passed" for line in wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--out", type=Path, default=Path("campaign.md"))
    parser.add_argument("--soak", type=float, default=1800, help="seconds of the soak")
    parser.add_argument("--each", type=float, default=EACH_SECONDS, help="seconds that a line may take, but the soak")
    parser.add_argument("--only", default="", help="lines with this word alone")
    parser.add_argument("--more", action="store_true", help="go on with the table that is there")
    return int(not campaign(LINES, parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
