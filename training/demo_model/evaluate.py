"""Measure a model folder on held-out dialogues, decoding greedily.

The prompts come from the folder's own chat template. No value in them was part of the
training data; the seed is fixed, so that a run can be repeated.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.demo_model.data_dialogues import DialogueFactory
from training.demo_model.data_requests import ASK
from training.demo_model.render import Dialogue, Message

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
COUNTS = {
    "call": 180,
    "two_calls": 50,
    "follow_up": 40,
    "absent": 50,
    "knowledge": 40,
    "chat": 50,
    "answer": 60,
    "two_answers": 30,
}
EXTRA_COUNTS = {"plan_answer": 60, "name": 30, "unclear": 30, "repeat": 50, "invented_call": 50, "invented_answer": 30}
WITHOUT_CALL = ("absent", "knowledge", "chat")
GROUPS = {
    "right calls": ("call", "two_calls", "follow_up"),
    "values in answers": ("answer", "two_answers"),
    "right answers without a tool": WITHOUT_CALL,
}
MOST_NEW_TOKENS = 330


@dataclass(frozen=True)
class Verdict:
    """One dialogue with what the model wrote, and whether it was right."""

    group: str
    dialogue: Dialogue
    text: str
    right: bool

    @property
    def calls(self) -> bool:
        """Tell whether the model wrote a call, valid or not."""
        return "<tool_call>" in self.text


def held_out_dialogues(counts: dict[str, int], seed: str) -> Iterator[tuple[str, Dialogue]]:
    """Yield the dialogues with the names of their categories; calls are spread over the tools."""
    for kind, count in counts.items():
        factory = DialogueFactory(f"evaluate-{seed}-{kind}", held_out=True)
        for index in range(count):
            if kind == "call":
                tool = tuple(ASK)[index % len(ASK)]
                yield f"call {tool}", factory.make_call(tool)
            else:
                yield kind, factory.make(kind)


def parse_calls(text: str) -> list[Any]:
    """Return the calls in a text; one that is not valid JSON counts as None."""
    calls: list[Any] = []
    for body in CALL.findall(text):
        try:
            calls.append(json.loads(body))
        except json.JSONDecodeError:
            calls.append(None)
    return calls


def expected_calls(message: Message) -> list[Any]:
    """Return the calls of an expected message in the same form."""
    return [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls", ())
    ]


def is_right(dialogue: Dialogue, text: str) -> bool:
    """Tell whether the calls are exactly the expected ones and the answer carries its values."""
    calls = parse_calls(text)
    expected = expected_calls(dialogue.messages[-1])
    if expected or calls or "<tool_call>" in text:
        return calls == expected
    answer = text.split("</think>")[-1]
    return bool(answer.strip()) and all(value in answer for value in dialogue.carried)


class Writer:
    """Writes the answers of a model in batches."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval()  # type: ignore[no-untyped-call]

    def prompt(self, dialogue: Dialogue) -> str:
        """Render everything before the answer."""
        return str(
            self.tokenizer.apply_chat_template(
                dialogue.messages[:-1],
                tools=list(dialogue.tools) or None,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=dialogue.thinking,
            )
        )

    @torch.no_grad()
    def write(self, prompts: list[str]) -> list[str]:
        """Continue the prompts greedily."""
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        tokens = self.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=MOST_NEW_TOKENS,
        )
        new = tokens[:, inputs["input_ids"].shape[1] :]
        texts = self.tokenizer.batch_decode(new, skip_special_tokens=False)
        return [text.split("<|im_end|>")[0] for text in texts]


def judge(folder: Path, counts: dict[str, int], seed: str, size: int) -> list[Verdict]:
    """Let the model answer every dialogue, similar lengths together."""
    writer = Writer(folder)
    rows = [(*pair, writer.prompt(pair[1])) for pair in held_out_dialogues(counts, seed)]
    rows.sort(key=lambda row: (row[0], len(row[2])))
    verdicts = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        texts = writer.write([prompt for _, _, prompt in part])
        verdicts += [
            Verdict(group, dialogue, text, is_right(dialogue, text))
            for (group, dialogue, _), text in zip(part, texts, strict=True)
        ]
    return verdicts


def table_row(name: str, outcomes: list[bool]) -> str:
    """Return one line of the table."""
    right = sum(outcomes)
    return f"| {name} | {len(outcomes)} | {right} | {100 * right / len(outcomes):.1f} % |"


def table(verdicts: list[Verdict]) -> str:
    """Return the table by category, by target and in total."""
    groups = dict.fromkeys(verdict.group for verdict in verdicts)
    parts = {group: [item.right for item in verdicts if item.group == group] for group in groups}
    for name, kinds in GROUPS.items():
        parts[f"**{name}**"] = [item.right for item in verdicts if item.dialogue.kind in kinds]
    without_call = [item for item in verdicts if item.dialogue.kind in WITHOUT_CALL]
    parts["**no call without a tool**"] = [not item.calls for item in without_call]
    parts["**all**"] = [item.right for item in verdicts]
    lines = [table_row(name, outcomes) for name, outcomes in parts.items() if outcomes]
    return "\n".join(["| category | dialogues | right | share |", "|---|---|---|---|", *lines])


def mistake(verdict: Verdict) -> str:
    """Return a wrong answer with its question and what was expected."""
    last = verdict.dialogue.messages[-1]
    expected = expected_calls(last) or last["content"]
    question = verdict.dialogue.messages[-2]["content"]
    return f"[{verdict.group}] {question!r}\n  expected {expected!r}\n  wrote    {verdict.text!r}"


def main() -> None:
    """Print the table, and on request the mistakes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="model folder")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--extra", action="store_true", help="measure the other categories instead")
    parser.add_argument("--mistakes", action="store_true", help="print every wrong answer")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.monotonic()
    counts = EXTRA_COUNTS if options.extra else COUNTS
    verdicts = judge(options.folder, counts, options.seed, options.batch)
    if options.mistakes:
        print("\n".join(mistake(verdict) for verdict in verdicts if not verdict.right))
    print(table(verdicts))
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
