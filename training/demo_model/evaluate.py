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
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from training.demo_model.data_dialogues import DialogueFactory
from training.demo_model.data_requests import ASK
from training.demo_model.render import END, Dialogue, Message

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
# The same words said three times in a row: what a reader calls a loop. Random words of a user may be repeated.
LOOP = re.compile(r"(\b[\w ]{3,40}\b)(?:\W+\1\b){2,}", re.IGNORECASE)
COUNTS = {
    "call": 180,
    "two_calls": 60,
    "follow_up": 40,
    "unseen_call": 200,
    "everyday_call": 100,
    "typo": 150,
    "answer": 90,
    "two_answers": 50,
    "search_answer": 60,
    "plan_answer": 100,
    "unseen_answer": 40,
    "refusal": 200,
    "absent": 80,
    "unseen_absent": 20,
    "knowledge": 40,
    "chat": 60,
    "talk": 80,
    "world": 60,
    "fact": 120,
    "declined": 80,
    "foreign": 80,
    "follow": 240,
    "compare_pair": 40,
    "turns_20": 100,
    "long": 60,
    "repeat": 50,
    "name": 20,
}
WITHOUT_CALL = ("absent", "unseen_absent", "knowledge", "chat", "talk", "world", "fact", "declined", "foreign")
# What is aimed at, in percent, and the categories that count.
AIMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "tools and arguments": (97, ("call", "two_calls", "follow_up")),
    "values in answers": (97, ("answer", "two_answers", "search_answer", "plan_answer")),
    "denied or failed calls told truly": (100, ("refusal",)),
    "follow-ups": (90, ("follow",)),
    "unseen tools": (85, ("unseen_call",)),
    "typos": (90, ("typo",)),
    "the twentieth turn": (95, ("turns_20",)),
}
NO_CALL_AIM = 99
LENGTHS = (500, 1000, 2000, 3000, 4096)
MOST_NEW_TOKENS = 330
MOST_TOKENS = 16_000


@dataclass(frozen=True)
class Verdict:
    """One dialogue with what the model wrote, and whether it was right."""

    group: str
    dialogue: Dialogue
    text: str
    right: bool
    ended: bool
    prompt_tokens: int

    @property
    def degenerate(self) -> bool:
        """Tell whether the answer did not end, or says the same over and over where nobody had said so before."""
        said = self.text.split("</think>")[-1]
        shown = str(self.dialogue.messages[:-1])
        loops = [found.group(1) for found in LOOP.finditer(said) if f"{found.group(1)} {found.group(1)}" not in shown]
        return not self.ended or bool(loops) or not self.text.strip()

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
            elif kind == "typo":
                factory.values.typo_share = 1.0
                yield kind, factory.make_call(tuple(ASK)[index % len(ASK)])
            elif kind == "turns_20":
                yield kind, factory.make_turns(20)
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
    has_all = all(value in answer for value in dialogue.carried)
    return bool(answer.strip()) and has_all and not any(value in answer for value in dialogue.forbidden)


class Row(NamedTuple):
    """A dialogue to be answered, with its prompt and the prompt's tokens."""

    group: str
    dialogue: Dialogue
    prompt: str
    length: int


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
    def write(self, prompts: list[str], temperature: float = 0.0) -> list[str]:
        """Continue the prompts, greedily at temperature 0; a text that ended keeps the end marker."""
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        tokens, mask = inputs["input_ids"], inputs["attention_mask"]
        written: list[list[int]] = [[] for _ in prompts]
        alive, cache = torch.arange(len(prompts)), DynamicCache()
        end = self.tokenizer.convert_tokens_to_ids(END)
        for _ in range(MOST_NEW_TOKENS):
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            tokens = self._next(tokens, mask, places, cache, temperature)
            for row, token in zip(alive.tolist(), tokens[:, 0].tolist(), strict=True):
                written[row].append(token)
            going = tokens[:, 0] != end
            if not going.all():  # rows that ended cost nothing more
                alive, tokens, mask = alive[going], tokens[going], mask[going]
                if not len(alive):
                    break
                cache.batch_select_indices(going.nonzero()[:, 0])
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        return [str(self.tokenizer.decode(row, skip_special_tokens=False)) for row in written]

    def _next(self, tokens: Tensor, mask: Tensor, places: Tensor, cache: DynamicCache, temperature: float) -> Tensor:
        """Return the next token of each row, of shape rows x 1: the likeliest one, or one drawn at a temperature."""
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if temperature:
            return torch.multinomial(torch.softmax(output.logits[:, -1] / temperature, -1), 1)
        return cast(Tensor, output.logits[:, -1].argmax(-1, keepdim=True))

    def length(self, prompt: str) -> int:
        """Count the prompt's tokens."""
        return len(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])


def batches_of(rows: list[Row], size: int) -> Iterator[list[Row]]:
    """Cut rows that are sorted by length into parts of at most `size` rows, fewer where they are long."""
    part: list[Row] = []
    for row in rows:
        if part and (len(part) == size or row.length * (len(part) + 1) > MOST_TOKENS):
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def judge(folder: Path, counts: dict[str, int], seed: str, size: int) -> list[Verdict]:
    """Let the model answer every dialogue whose prompt fits into the context, similar lengths together."""
    writer = Writer(folder)
    rows = []
    for group, dialogue in held_out_dialogues(counts, seed):
        prompt = writer.prompt(dialogue)
        rows.append(Row(group, dialogue, prompt, writer.length(prompt)))
    rows = sorted((row for row in rows if row.length <= LENGTHS[-1] - MOST_NEW_TOKENS), key=lambda row: row.length)
    verdicts = []
    for part in batches_of(rows, size):
        for row, text in zip(part, writer.write([row.prompt for row in part]), strict=True):
            said = text.removesuffix(END)
            right = is_right(row.dialogue, said)
            verdicts.append(Verdict(row.group, row.dialogue, said, right, text.endswith(END), row.length))
    order = list(dict.fromkeys(group for group, _ in held_out_dialogues(counts, seed)))
    return sorted(verdicts, key=lambda verdict: order.index(verdict.group))


def table_row(name: str, outcomes: list[bool], aim: str = "") -> str:
    """Return one line of the table."""
    right = sum(outcomes)
    return f"| {name} | {len(outcomes)} | {right} | {100 * right / len(outcomes):.1f} % | {aim} |"


def table(verdicts: list[Verdict]) -> str:
    """Return the table by aim, by category and by the prompt's length."""
    lines = ["| | dialogues | right | share | aim |", "|---|---|---|---|---|"]
    for name, (aim, kinds) in AIMS.items():
        outcomes = [item.right for item in verdicts if item.group.split()[0] in kinds]
        lines += [table_row(f"**{name}**", outcomes, f"{aim} %")] if outcomes else []
    without_call = [not item.calls for item in verdicts if item.dialogue.kind in WITHOUT_CALL]
    lines += [table_row("**no call without a tool**", without_call, f"{NO_CALL_AIM} %")] if without_call else []
    sound = [not item.degenerate for item in verdicts]
    lines.append(table_row("**not degenerate**", sound, "100 %"))
    for group in dict.fromkeys(item.group for item in verdicts):
        lines.append(table_row(group, [item.right for item in verdicts if item.group == group]))
    for low, high in pairwise((0, *LENGTHS)):
        outcomes = [item.right for item in verdicts if low < item.prompt_tokens <= high]
        lines += [table_row(f"prompts of {low + 1} to {high} tokens", outcomes)] if outcomes else []
    lines.append(table_row("all", [item.right for item in verdicts]))
    return "\n".join(lines)


def mistake(verdict: Verdict) -> str:
    """Return a wrong answer with its question and what was expected."""
    last = verdict.dialogue.messages[-1]
    expected = expected_calls(last) or last["content"]
    question = verdict.dialogue.messages[-2]["content"]
    shown = f"{verdict.group}, degenerate" if verdict.degenerate else verdict.group
    return f"[{shown}] {question!r}\n  expected {expected!r}\n  wrote    {verdict.text!r}"


def main() -> None:
    """Print the table, and on request the mistakes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="model folder")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(COUNTS), help="these categories alone")
    parser.add_argument("--share", type=float, default=1.0, help="of the dialogues, for a quick look")
    parser.add_argument("--mistakes", action="store_true", help="print every wrong answer")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.monotonic()
    counts = {kind: max(1, round(COUNTS[kind] * options.share)) for kind in options.only or COUNTS}
    verdicts = judge(options.folder, counts, options.seed, options.batch)
    if options.mistakes:
        print("\n".join(mistake(verdict) for verdict in verdicts if not verdict.right or verdict.degenerate))
    print(table(verdicts))
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
