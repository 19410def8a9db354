"""Ask a model folder what other people asked chatbots: openings of public data sets, read from files.

    pip install --no-deps --target /tmp/openings chatterbot-corpus==1.3.3
    python -m training.demo_model.openings agent_server/models/demo /tmp/openings/chatterbot_corpus/data/english/*.yml

A file is YAML with `conversations`, or JSON or JSON lines whose objects have one of the names in `FIELDS`. The data
sets are not part of the repository. Every opening is asked on its own, with the tools of the demonstration agent.

An answer is right, an honest refusal, or wrong. What can be decided by rule is: a refusal is one of the sentences that
the model is trained to refuse with, and a call is right if the opening asks for what the tool does and every value
is taken from it. A person has read the other answers; `openings_read.txt` keeps each verdict under a hash of the
opening and the answer. An answer that is not in there counts as wrong, and is printed as unread.
"""

import argparse
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from training.demo_model.data_chat import UNCLEAR_ANSWER
from training.demo_model.data_messages import SUBJECTS, absence
from training.demo_model.data_phrases import read_sections
from training.demo_model.data_tools import PAGE_TOOLSETS, demo_tool
from training.demo_model.evaluate import Row as Prompted
from training.demo_model.evaluate import Writer, batches_of, parse_calls
from training.demo_model.render import END, Dialogue

READ = Path(__file__).parent / "openings_read.txt"
FIELDS = ("turns", "prompt", "question", "instruction", "goal")
LONGEST = 300
"""Characters of an opening at most: what is pasted into a chat is left out."""
IGNORANCE = re.compile(r"I am only a tiny demo model and know nothing about (.+)\. A real model will\.")
ASKS_FOR = {
    "get_weather": r"weather|temperature|forecast|rain|snow|sunny|how (hot|cold|warm)",
    "get_time": r"\btime\b|clock",
    "calculate": r"\d|plus|minus|times|divided|sum\b|square root",
    "change_background": r"background|colou?r|theme",
    "generate_task_steps": r"\bplan|steps|organi[sz]e|prepare",
    "search": r"search|find|look (up|for)",
    "send_email": r"e-?mail|\bmail",
    "write_document": r"write|document|draft|essay|letter|report",
}
"""What an opening says that asks for a tool."""
OWN_WORDS = ("generate_task_steps", "write_document", "send_email")
"""Tools whose arguments the model words itself."""


class Answer(NamedTuple):
    """One opening with what the model wrote after its thought, and the verdict."""

    opening: str
    text: str
    verdict: str

    @property
    def key(self) -> str:
        """The name under which a person's verdict is kept."""
        return hashlib.sha256(f"{self.opening}\n{self.text}".encode()).hexdigest()[:16]


def openings(path: Path) -> Iterator[str]:
    """Yield what the first person of each conversation in a file says."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yml", ".yaml"):
        yield from (str(turns[0]) for turns in yaml.safe_load(text)["conversations"] if turns)
        return
    rows: list[dict[str, Any]] = (
        [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    )
    for row in rows:
        said = next((row[name] for name in FIELDS if name in row), None)
        if said is None:
            raise SystemExit(f"{path}: an object has none of {', '.join(FIELDS)}.")
        yield said if isinstance(said, str) else str(said[0])


def sample(files: list[Path], count: int, seed: int) -> list[str]:
    """Draw different openings, the same ones for the same files and seed."""
    found = dict.fromkeys(" ".join(text.split()) for path in files for text in openings(path))
    short = [text for text in found if 0 < len(text) <= LONGEST]
    return random.Random(seed).sample(short, min(count, len(short)))


def refusals() -> frozenset[str]:
    """Return the sentences with which the model says what it cannot do, does not know or did not understand."""
    sections = [section for name in ("limits", "world", "statements") for section in read_sections(name)]
    absences = [str(absence(name)["content"]) for name in SUBJECTS]
    return frozenset([UNCLEAR_ANSWER, *absences, *(section.answer for section in sections)])


def is_asked_for(opening: str, call: Any) -> bool:
    """Tell whether an opening asks for what a call does, with the call's values."""
    asked = opening.lower()
    name = call["name"] if isinstance(call, dict) else ""
    if name not in ASKS_FOR or not re.search(ASKS_FOR[name], asked):
        return False
    words = re.findall(r"\w+", " ".join(map(str, call["arguments"].values())).lower())
    return name in OWN_WORDS or all(word in asked for word in words)


def judge(opening: str, text: str, read: dict[str, str]) -> Answer:
    """Give the verdict on an answer: by rule, or as it was read."""
    answer = Answer(opening, text, "")
    calls = parse_calls(text)
    if calls or "<tool_call>" in text:
        right = bool(calls) and all(is_asked_for(opening, call) for call in calls)
        return answer._replace(verdict="right" if right else "wrong")
    ignorance = IGNORANCE.fullmatch(text)
    if text in refusals() or (ignorance and ignorance[1].lower() in opening.lower()):
        return answer._replace(verdict="refusal")
    return answer._replace(verdict=read.get(answer.key, "unread"))


def ask(writer: Writer, asked: list[str], temperature: float, read: dict[str, str]) -> list[Answer]:
    """Let the model answer each opening."""
    tools = [demo_tool(name) for name in PAGE_TOOLSETS[0]]
    rows = []
    for opening in asked:
        dialogue = Dialogue("opening", [{"role": "user", "content": opening}, {}], tools, True)
        prompt = writer.prompt(dialogue)
        rows.append(Prompted(opening, dialogue, prompt, writer.length(prompt)))
    rows.sort(key=lambda row: row.length)
    answers = []
    for part in batches_of(rows, 50):
        for row, text in zip(part, writer.write([row.prompt for row in part], temperature), strict=True):
            said = text.removesuffix(END).split("</think>")[-1].strip() if text.endswith(END) else f"{text} [no end]"
            answers.append(judge(row.group, said, read))
    return answers


def report(answers: list[Answer], temperature: float) -> str:
    """Return the shares, and every answer that is not right and no refusal."""
    shares = Counter(answer.verdict for answer in answers)
    called = [parse_calls(answer.text) for answer in answers if answer.verdict == "wrong"]
    taken = sum(any(call and call["name"] in ("get_weather", "get_time") for call in calls) for calls in called)
    unasked = sum(bool(calls) for calls in called)
    listed = [
        f"[{item.verdict} {item.key}] {item.opening!r}\n  {item.text!r}"
        for item in answers
        if item.verdict in ("wrong", "unread")
    ]
    rows = [
        ("right", shares["right"]),
        ("honest refusal", shares["refusal"]),
        ("wrong", shares["wrong"] + shares["unread"]),
    ]
    rows += [("of these, not read by a person", shares["unread"]), ("of these, a call that nobody asked for", unasked)]
    rows += [("of these, words taken for a place", taken)]
    table = [f"| temperature {temperature} | of {len(answers)} | share |", "|---|---|---|"]
    table += [f"| {name} | {number} | {100 * number / len(answers):.1f} % |" for name, number in rows]
    return "\n".join([*listed, *table])


def main() -> None:
    """Print what was wrong, and the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="model folder")
    parser.add_argument("files", type=Path, nargs="+", help="files of the data sets")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7])
    options = parser.parse_args()
    torch.set_num_threads(1)
    writer = Writer(options.folder)
    asked = sample(options.files, options.count, options.seed)
    read = dict(line.split() for line in READ.read_text(encoding="utf-8").splitlines()) if READ.exists() else {}
    for temperature in options.temperature:
        torch.manual_seed(options.seed)
        print(report(ask(writer, asked, temperature, read), temperature), flush=True)


if __name__ == "__main__":
    main()
