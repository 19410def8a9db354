"""The bundled model's tool calls, greedily, with the grammar and without: right ones, and malformed ones.

python -m benchmarks.constrained_accuracy [--scale 0.3] [--model FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema

from agent_server.engine_protocol.protocol import Constraint, Delta, Finished, GenerationRequest
from agent_server.engines.embedded import EmbeddedEngine, EngineConfig
from agent_server.models.prompting.prompt import PromptBuilder
from events.grammar import Function, Stage, plan
from events.options import SamplingParams, ToolChoice
from training.demo_model.evaluate import (
    COUNTS,
    MOST_NEW_TOKENS,
    held_out_dialogues,
    is_right,
    parse_calls,
)

MODEL = Path(__file__).parents[1] / "agent_server" / "models" / "demo"


def functions(dialogue: Any) -> list[Function]:
    inner = [tool.get("function", tool) for tool in dialogue.tools]
    return [Function(tool["name"], tool.get("parameters") or {"type": "object"}) for tool in inner]


def constraint(prompts: PromptBuilder, dialogue: Any, stage: Stage) -> Constraint | None:
    made = plan(
        prompts.output_format(True),
        functions=functions(dialogue),
        choice=ToolChoice(),
        parallel=True,
        response_format=None,
        stage=stage,
        marker_ids=prompts.control_ids,
    )
    return Constraint(kind="structural_tag", value=made.tag) if made.tag else None


CUT_OFF = "\0"
"""Behind a text that the limit of tokens ended."""


def malformed(dialogue: Any, text: str) -> bool:
    """Whether a call that was written to its end is no JSON, has an undeclared name, or arguments that do not fit."""
    declared = {function.name: function.schema for function in functions(dialogue)}
    calls = parse_calls(text)
    for call in calls:
        if not isinstance(call, dict) or call.get("name") not in declared:
            return True
        if not jsonschema.Draft202012Validator(declared[call["name"]]).is_valid(call.get("arguments")):
            return True
    return text.count("<tool_call>") != len(calls) and CUT_OFF not in text


async def written(engine: EmbeddedEngine, number: str, ids: tuple[int, ...], bound: Constraint | None) -> str:
    request = GenerationRequest(
        request_id=number,
        prompt_token_ids=ids,
        sampling=SamplingParams(temperature=0, max_tokens=MOST_NEW_TOKENS),
        constraint=bound,
    )
    parts = []
    async for item in engine.generate(request):
        if isinstance(item, Delta):
            parts += [token.text for token in item.tokens]
        elif isinstance(item, Finished) and item.reason == "length":
            parts.append(CUT_OFF)
    return "".join(parts).split("<|im_end|>")[0]


async def measure(folder: str, scale: float) -> None:
    from transformers import AutoTokenizer

    prompts = PromptBuilder.load(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = EmbeddedEngine(EngineConfig(model=folder, name="demo", max_batch=16))
    await engine.start()
    counts = {kind: max(1, round(count * scale)) for kind, count in COUNTS.items()}
    dialogues = [dialogue for _, dialogue in held_out_dialogues(counts, "0")]
    for bound in (False, True):
        right = broken = calls = 0
        for start in range(0, len(dialogues), 16):
            part = dialogues[start : start + 16]
            texts = await asyncio.gather(*(_one(engine, prompts, tokenizer, d, bound) for d in part))
            right += sum(is_right(d, text) for d, text in zip(part, texts, strict=True))
            broken += sum(malformed(d, text) for d, text in zip(part, texts, strict=True))
            calls += sum(text.count("<tool_call>") for text in texts)
        name = "with the grammar" if bound else "without"
        print(
            f"{name:18} right {right}/{len(dialogues)}, calls {calls}, answers with a malformed call {broken}",
            flush=True,
        )
    print(json.dumps({name: value for name, value in engine.metrics().items() if name.startswith("grammar")}))
    await engine.close()


async def _one(engine: EmbeddedEngine, prompts: PromptBuilder, tokenizer: Any, dialogue: Any, bound: bool) -> str:
    text = tokenizer.apply_chat_template(
        dialogue.messages[:-1],
        tools=list(dialogue.tools) or None,
        add_generation_prompt=True,
        tokenize=False,
        enable_thinking=dialogue.thinking,
    )
    stage: Stage = "content" if text.rstrip().endswith("</think>") else "start"
    wanted = constraint(prompts, dialogue, stage) if bound and dialogue.tools else None
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    return await written(engine, f"{id(dialogue)}-{bound}", ids, wanted)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="share of the evaluation's dialogues")
    parser.add_argument("--model", default=str(MODEL))
    given = parser.parse_args()
    asyncio.run(measure(given.model, given.scale))


if __name__ == "__main__":
    main()
