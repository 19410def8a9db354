"""The tasks of `agent_turns.py`, the models that do them, and what the engine alone takes for their last turn.

The bundled model makes one or two calls in a message, and the tasks want three calls in one message and five messages
with a call each. So the bundled weights are taught these conversations, word for word, until greedy decoding repeats
them: what is measured is loops, and none of them is faster because of what the weights know. A minute or two on a core.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

from agent_server.generation.core.step import Core
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from benchmarks.engine import BUNDLED, GREEDY
from benchmarks.engine import ours as generated
from benchmarks.recorded_forward import SHAPES

END = "<|im_end|>"
CERTAIN = 0.98
"""How likely each token of what is taught must be: more than rounding to bfloat16 changes."""
MOST_STEPS = 400
RATE = 5e-4
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a place.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo")
Message = dict[str, Any]


class Lesson(NamedTuple):
    """A task's conversation. history: earlier messages. calls: the places that each message asks for. tool: seconds
    that a call takes."""

    name: str
    history: tuple[tuple[str, str], ...]
    question: str
    calls: tuple[tuple[str, ...], ...]
    answer: str
    tool: float

    @property
    def called(self) -> int:
        return sum(map(len, self.calls))


def lessons() -> list[Lesson]:
    greeted = (("user", "Hello!"), ("assistant", "Hello. How can I help?"))
    long = (*greeted * 29, ("user", "Hello!"))
    answer = "It is 7 degrees and cloudy"
    return [
        Lesson("3 calls in a message, 200 ms", (), "Compare Paris, Rome and Oslo.", (CITIES[:3],),
               f"{answer} in all three.", 0.2),
        Lesson("5 calls in turn, 20 ms", (), "Ask for five cities in turn.", tuple((city,) for city in CITIES),
               f"{answer} in all five.", 0.02),
        Lesson("60 messages, 1 call of 20 ms", (*long, ("assistant", "Hello. How can I help?")),
               "What is the weather in Paris?", (("Paris",),), "In Paris it is 7 degrees and cloudy.", 0.02),
    ]  # fmt: skip


def result_of(place: str) -> str:
    """What the tool answers, in every loop."""
    return json.dumps({"location": place, "temperature": 7, "conditions": "cloudy"}, separators=(",", ":"))


def required_lessons() -> list[Lesson]:
    """Those that random weights can do: one call, which `required` makes, and then whatever they say."""
    one, long = lessons()[0], lessons()[2]
    return [one._replace(name="1 call, 200 ms", calls=(("Paris",),)), long]


class Turn(NamedTuple):
    """One message of the model's: the prompt's ids and the ids that answer it."""

    prompt: list[int]
    answer: list[int]


def turns_of(lesson: Lesson, tokenizer: Any) -> list[Turn]:
    messages: list[Message] = [{"role": role, "content": text} for role, text in lesson.history]
    messages.append({"role": "user", "content": lesson.question})
    turns: list[Turn] = []
    for number, places in enumerate(lesson.calls):
        calls = [{"name": "get_weather", "arguments": {"location": place}} for place in places]
        written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
        turns.append(_turn(messages, written, tokenizer))
        made = [{"id": f"c{number}{at}", "type": "function", "function": call} for at, call in enumerate(calls)]
        messages.append({"role": "assistant", "content": "", "tool_calls": made})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result_of(place)}
            for call, place in zip(made, places, strict=True)
        ]
    turns.append(_turn(messages, lesson.answer, tokenizer))
    return turns


def _turn(messages: list[Message], answer: str, tokenizer: Any) -> Turn:
    text = tokenizer.apply_chat_template(
        messages, tools=[TOOL], add_generation_prompt=True, enable_thinking=False, tokenize=False
    )
    ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text, answer + END)]
    return Turn(*ids)


def made(folder: Path, shape: str | None) -> Path:
    """The model's folder: taught, or of that shape with random weights; made now unless it is there."""
    return random_model(folder / f"random-{shape}", shape) if shape else teach(folder / "taught")


def random_model(folder: Path, shape: str) -> Path:
    """With the bundled tokenizer and template; ids beyond the tokenizer's are never the likeliest."""
    if (folder / "made").exists():
        return folder
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=True)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokenizer: Any = AutoTokenizer.from_pretrained(BUNDLED)
    with torch.no_grad():
        model.get_input_embeddings().weight[len(tokenizer) :] = 0
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((BUNDLED / name).read_bytes())
    model.save_pretrained(folder)
    (folder / "made").touch()
    return folder


def teach(folder: Path) -> Path:
    """The model in `folder`, taught now unless it is there. RuntimeError if it does not learn."""
    if (folder / "taught").exists():
        return folder
    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(BUNDLED)
    model: Any = AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    batch = [_sequence(turns_of(lesson, tokenizer)) for lesson in lessons()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for _ in range(MOST_STEPS):
        optimizer.zero_grad()
        if _step(model, batch) > CERTAIN:
            break
        optimizer.step()
    else:
        raise RuntimeError(f"the model did not learn the tasks in {MOST_STEPS} steps")
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "taught").touch()
    return folder


def _sequence(turns: list[Turn]) -> tuple[torch.Tensor, torch.Tensor]:
    """A conversation's ids, and the targets of its loss: -100 where the model is not the one who writes."""
    ids = [*turns[-1].prompt, *turns[-1].answer]
    targets = [-100] * len(ids)
    for turn in turns:
        start, end = len(turn.prompt), len(turn.prompt) + len(turn.answer)
        if ids[:end] != [*turn.prompt, *turn.answer]:
            raise RuntimeError("the chat template writes an earlier turn differently than the model wrote it")
        targets[start:end] = turn.answer
    return torch.tensor([ids]), torch.tensor(targets)


def _step(model: Any, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """One step's gradients; the least likely token of all that is taught."""
    least = 1.0
    for ids, targets in batch:
        wanted = targets[1:] != -100
        logits = model(ids).logits[0, :-1][wanted]
        losses = torch.nn.functional.cross_entropy(logits, targets[1:][wanted], reduction="none")
        losses.mean().backward()
        least = min(least, float(torch.exp(-losses.detach().max())))
    return least


class Alone(NamedTuple):
    """What the engine takes without any loop, in seconds. last: for the new tokens of the last turn, and two steps.
    whole: for all prompts and answers, with what the tools take between them."""

    last: float
    whole: float


def alone(lesson: Lesson, model: Path, quantize: Literal["", "int8", "int4"], repeat: int = 5) -> Alone:
    """Medians of the generation core in this process, with its cache and without grammars."""
    core, _ = load(EngineConfig(model=str(model), quantize=quantize), lambda status: None)
    turns = turns_of(lesson, AutoTokenizer.from_pretrained(model))
    lasts, wholes = [], []
    for number in range(repeat):
        tools = whole = 0.0
        for turn in turns:
            prompt = [number + 100, *turn.prompt[1:]]  # no other round's
            first = _seconds(core, prompt, 1)
            step = _seconds(core, prompt, len(turn.answer)) / len(turn.answer)  # the prompt is found in the cache
            whole += first + step * (len(turn.answer) - 1)
            tools += lesson.tool
        lasts.append(first + step)
        wholes.append(whole + tools - lesson.tool)
    return Alone(statistics.median(lasts), statistics.median(wholes))


def _seconds(core: Core, prompt: list[int], count: int) -> float:
    began = time.perf_counter()
    generated(core, [prompt], count, GREEDY)
    return time.perf_counter() - began
