"""Random walks: random logits through the real sampler under a grammar's masks, read by the real parser.

python -m tests.grammar.walks --runs 1000 [--format hermes] [--mode auto] [--engine]
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

import jsonschema
import torch
from jsonschema.validators import validator_for
from transformers import LlamaConfig, LlamaForCausalLM

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import Constraint, Delta, Finished, GenerationRequest
from agent_server.generation.core.grammar import GrammarBackend
from agent_server.generation.core.step import Core
from agent_server.generation.loading.loader import assemble
from agent_server.generation.sampling.masks import Masks
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from agent_server.generation.scheduling.messages import EngineConfig, Submit
from agent_server.model_files import ModelFiles
from agent_server.models.prompting.validation import FORMATS
from events.formats import registry
from events.formats.output_format import OutputFormat, markers
from events.grammar import Function, Stage, plan
from events.grammar.nodes import constant, sequence
from events.options import ResponseFormat, SamplingParams, ToolChoice
from events.parsing.policy import Policy, declared_tools
from events.translator import Translator
from events.vocabulary import TextMessageContent, ToolCallArgs, ToolCallStart
from tests.grammar.toolsets import tool_set
from tests.grammar.vocabulary import END, byte_fallback, byte_level

LONGEST = 1200
CONTROL = re.compile(r"<[|｜][^<>]+[|｜]>|<\|\w+>|<\w+\|>|</?[a-z_:]+>|\[[A-Z_/]+\]|\]<\]minimax\[>\[|<\|\"\|>")
"""What vocabularies hold as one token, of the markers that formats are made of."""
KINDS = {
    "JSON in a tag": "hermes",
    "JSON array": "jamba",
    "name as key": "apertus",
    "tag with JSON": "mistral",
    "tags and fences": "deepseek_v3",
    "id in the name": "kimi_k2",
    "tagged values": "qwen3_coder",
    "key and value tags": "glm45",
    "typed values": "deepseek_v32",
    "pythonic": "lfm2",
    "bare-key object": "gemma4",
    "nested elements": "minimax_m3",
    "channels": "openai",
}


@dataclass
class Tally:
    """Counts of one format. `problems`: what went wrong, shortened."""

    runs: int = 0
    calls: int = 0
    unfinished: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Walker:
    """One format over one vocabulary."""

    output_format: OutputFormat
    tokenizer: Any
    backend: GrammarBackend
    ids: dict[str, int]
    nudge: torch.Tensor


@lru_cache(maxsize=64)
def walker(name: str, *, tokens: bool = True, fallback: bool = False, padded: int = 40) -> Walker:
    """tokens: the format's markers are tokens of the vocabulary. padded: ids that the model has and the tokenizer
    does not."""
    output_format = registry.named(name)
    spelled = (found for marker in markers(output_format) for found in CONTROL.findall(marker))
    added = (*spelled, "<|constrain|>", "<|other|>") if tokens or output_format.channels else ()
    tokenizer = (byte_fallback if fallback else byte_level)(tuple(added))
    size = tokenizer.get_vocab_size(with_added_tokens=True) + padded
    backend = GrammarBackend(tokenizer, size, [tokenizer.token_to_id(END)])
    ids = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    texts = [tokenizer.decode([number], skip_special_tokens=False) for number in range(size)]
    nudge = torch.tensor([_nudge(text, text in ids) for text in texts])
    return Walker(output_format, tokenizer, backend, ids, nudge)


def _nudge(text: str, control: bool) -> float:
    """What ends things is made likelier, or random text would go on until the limit."""
    if text == END:
        return 4.0
    return 3.0 if control or any(char in text for char in "\"]})<\n'") else 0.0


def walk(
    walker: Walker, functions: Sequence[Function], seed: int, rows: int = 1, **asked: Any
) -> list[tuple[list[int], bool]]:
    """`rows` outputs under one plan, and whether each came to its end."""
    matchers, masks = _matchers(walker, functions, rows, **asked)
    size = walker.nudge.shape[0]
    sampler = Sampler(rows, size, torch.device("cpu"))
    for row in range(rows):
        sampler.set(row, row, RowSampling(SamplingParams(temperature=1.0), seed * 1000 + row), [], [])
    generator = torch.Generator().manual_seed(seed)
    outputs: list[list[int]] = [[] for _ in range(rows)]
    ended = [False] * rows
    end = walker.ids[END]
    for token in walker.tokenizer.encode(asked.get("begin", ""), add_special_tokens=False).ids:
        for row in range(rows):
            assert matchers[row].accept(token), walker.tokenizer.decode([*outputs[row], token])
            outputs[row].append(token)
    for position in range(LONGEST):
        live = [row for row in range(rows) if not ended[row]]
        if not live:
            break
        logits = torch.randn(len(live), size, generator=generator) + walker.nudge
        masks = torch.full((len(live), -(-size // 32)), -1, dtype=torch.int32)
        walker.backend.fill([matchers[row] for row in live], masks)
        picked = sampler.sample(logits, live, [position] * len(live), Masks(masks, list(range(len(live))))).tokens
        for row, token in zip(live, picked.tolist(), strict=True):
            if token == end:
                ended[row] = True
                continue
            assert matchers[row].accept(token), (
                f"the mask allowed {token}: {matchers[row].error} {walker.tokenizer.decode(outputs[row])!r}"
            )
            outputs[row].append(token)
            ended[row] = matchers[row].finished
    return list(zip(outputs, ended, strict=True))


@lru_cache(maxsize=2)
def engine(name: str) -> Core:
    """The engine around a Llama with random weights, over the format's vocabulary."""
    walking = walker(name)
    torch.manual_seed(11)
    shape = LlamaConfig(
        vocab_size=len(walking.nudge), hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).eval().requires_grad_(False)
    files = ModelFiles(tokenizer=walking.tokenizer, stop_token_ids=(walking.ids[END],))
    settings = EngineConfig(
        model="random", threads=1, max_batch=32, max_queued=10_000, flatten=False, kv_cache_bytes=64 * 2**20
    )
    return assemble(settings, model, files, torch.device("cpu"), None)[0]


def generate(name: str, sets: int, runs: int, **asked: Any) -> Tally:
    """What `tally_of` counts, of a random model's own logits through the whole engine, in mixed batches."""
    core, walking, tally = engine(name), walker(name), Tally()
    bias = {number: float(more) for number, more in enumerate(walking.nudge.tolist()) if more}
    asked_of: dict[int, list[Function]] = {}
    outputs: dict[int, list[int]] = {}
    ended: dict[int, bool] = {}
    for number in range(sets * runs):
        asked_of[number] = tool_set(Random(number % sets))
        _, planned = _matchers(walking, asked_of[number], 0, **asked)
        request = GenerationRequest(
            request_id=str(number),
            prompt_token_ids=tuple(Random(number).choices(range(200), k=12)),
            sampling=SamplingParams(temperature=1.0, seed=number, max_tokens=LONGEST, logit_bias=bias),
            constraint=Constraint(kind="structural_tag", value=planned.tag),
        )
        outputs[number] = []
        core.inbox.put(Submit(number, request))
    while core.generations or not core.inbox.empty():
        for number, item in core.step():
            if isinstance(item, Delta):
                outputs[number] += [token.id for token in item.tokens]
            else:
                assert isinstance(item, Finished), item
                ended[number] = item.reason == "stop"
    for number, ids in outputs.items():
        said = ids[:-1] if ids[-1:] == [walking.ids[END]] else ids
        judge(tally, walking, asked_of[number], (said, ended[number]), **asked)
    return tally


def _matchers(walker: Walker, functions: Sequence[Function], rows: int, **asked: Any) -> tuple[list[Any], Any]:
    planned = plan(
        walker.output_format,
        functions=functions,
        choice=asked.get("choice", ToolChoice("required")),
        parallel=asked.get("parallel", True),
        response_format=asked.get("response_format"),
        stage=asked.get("stage", "content"),
        marker_ids=walker.ids,
    )
    assert planned.tag is not None, planned.warnings
    tag = planned.tag
    if asked.get("call_list"):  # what an answer that begins with a call without markers is made to be
        tag = {"type": "structural_tag", "format": sequence(constant(asked["begin"]), planned.call_list)}
    grammar = walker.backend.compile(Constraint(kind="structural_tag", value=tag))
    return [grammar.matcher() for _ in range(rows)], planned


def read(
    walker: Walker, functions: Sequence[Function], ids: Sequence[int], stage: Stage, *, required: bool = False
) -> tuple[list[Any], str]:
    """The calls (name, arguments as text) and the text that the parser finds. required: a call must be made."""
    start = walker.output_format.reasoning.start if walker.output_format.reasoning else ()
    opened = walker.output_format.message_start + (start[0] if stage == "reasoning" and start else "")
    numbers = itertools.count()
    tools = [{"name": function.name, "parameters": function.schema} for function in functions]
    translator = Translator(
        walker.output_format,
        tools=tools,
        policy=Policy(tools=declared_tools(tools), distinct=required, only_calls=required),
        opened=opened,
        new_id=lambda kind: f"{kind}{next(numbers)}",
        marker_ids={text: walker.ids[text] for text in markers(walker.output_format) if text in walker.ids},
    )
    events = []
    decoder = TokenizerVocabulary(walker.tokenizer).detokenizer()
    for token in ids:
        events += translator.feed(decoder.push(token), token)
    events += translator.feed(decoder.flush())
    events += translator.finish()
    calls: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, ToolCallStart):
            calls[event.tool_call_id] = [event.tool_call_name, ""]
        elif isinstance(event, ToolCallArgs):
            calls[event.tool_call_id][1] += event.delta
    said = "".join(event.delta for event in events if isinstance(event, TextMessageContent))
    return list(calls.values()), said


def judge(
    tally: Tally, walker: Walker, functions: Sequence[Function], output: tuple[list[int], bool], **asked: Any
) -> None:
    ids, ended = output
    tally.runs += 1
    if not ended:
        tally.unfinished += 1
        return
    required = asked.get("choice", ToolChoice("required")).mode != "auto"
    calls, said = read(walker, functions, ids, asked.get("stage", "content"), required=required)
    problems = [] if calls or not required else ["no call"]
    problems += ["text in front of or behind calls"] if required and said.strip() else []
    declared = {each.name: validator_for(each.schema)(each.schema, format_checker=FORMATS) for each in functions}
    for name, arguments in calls:
        tally.calls += 1
        if name not in declared:
            problems.append("undeclared name")
            continue
        try:
            declared[name].validate(json.loads(arguments))
        except ValueError:
            problems.append("no JSON")
        except jsonschema.ValidationError as error:
            problems.append(f"invalid: {error.validator} {error.message[:80]}")
    for problem in problems:
        tally.problems[problem.split(":")[0]] += 1
        if len(tally.examples) < 5:
            text = walker.tokenizer.decode(ids, skip_special_tokens=False)
            tally.examples.append(f"{problem}\n   {text!r}\n   {calls}")


def tally_of(name: str, sets: int, runs: int, *, tokens: bool = True, fallback: bool = False, **asked: Any) -> Tally:
    """`runs` walks over each of `sets` generated tool sets."""
    tally, walking = Tally(), walker(name, tokens=tokens, fallback=fallback)
    for seed in range(sets):
        functions = tool_set(Random(seed))
        for output in walk(walking, functions, seed, runs, **asked):
            judge(tally, walking, functions, output, **asked)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000, help="walks for each format, over 50 tool sets")
    parser.add_argument("--format", action="append")
    parser.add_argument("--mode", default="required")
    parser.add_argument("--engine", action="store_true", help="a random model's logits, through the whole engine")
    parser.add_argument("--text", action="store_true", help="markers are text, not tokens")
    parser.add_argument("--fallback", action="store_true", help="a sentencepiece-like vocabulary")
    parser.add_argument("--stage", default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.format or list(KINDS.values())
    stage = given.stage or ("content" if given.mode == "required" else "start")
    print(f"{'format':16} {'runs':>5} {'calls':>6} {'cut off':>7}  problems")
    for name in names:
        sets = min(50, given.runs)
        at = "start" if registry.named(name).channels else stage
        asked: dict[str, Any] = {"choice": ToolChoice(given.mode), "stage": at}
        if given.engine:
            tally = generate(name, sets, given.runs // sets, **asked)
        else:
            vocabulary = {"tokens": not given.text, "fallback": given.fallback}
            tally = tally_of(name, sets, given.runs // sets, **vocabulary, **asked)
        print(
            f"{name:16} {tally.runs:5} {tally.calls:6} {tally.unfinished:7}  {dict(tally.problems) or 'none'}",
            flush=True,
        )
        for example in tally.examples:
            print("  ", example)


if __name__ == "__main__":
    main()

__all__ = ["KINDS", "ResponseFormat", "Tally", "judge", "read", "tally_of", "walk", "walker"]
