"""Reading tool calls as they stream: seconds per 1,000 deltas of four characters, by the length of one argument.

    python benchmarks/translator.py [--sizes 1000 4000 16000 64000 256000] [--peers FOLDER] [--peer-limit 16000]

For each kind of format: CPU seconds per 1,000 deltas, and the CPU time of the slowest delta in milliseconds (the least
of three runs, which is what is left when the machine does nothing else). The aims: at most 0.008 with the slowest
format, 256k within 1.2 times of 1k, no delta above 1 ms. `--peers` names a folder with unpacked wheels of sglang and
vllm, whose parsers then read the same text in the same process (up to `--peer-limit` characters: some are quadratic).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _peer_parsers as peers
from events.formats.registry import named
from events.parsing.policy import Policy
from events.translator import Translator

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "u": {}}}
WORDS = "The quick brown fox jumps over the lazy dog. "
DSML = "｜DSML｜"
M3 = "]<]minimax[>["
TEXTS: dict[str, tuple[str, str]] = {  # label → format, output around the argument
    "content": ("hermes", "%s"),
    "reasoning": ("hermes", "<think>%s</think>"),
    "hermes": ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": "%s"}}\n</tool_call>'),
    "llama3_json": ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": "%s"}}'),
    "mistral": ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "%s"}'),
    "kimi_k2": ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "%s"}<|tool_call_end|><|tool_calls_section_end|>'),  # noqa: E501
    "deepseek_v3": ("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": "%s"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),  # noqa: E501
    "deepseek_v32": ("deepseek_v32", f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">%s</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>'),  # noqa: E501
    "qwen3_coder": ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"),  # noqa: E501
    "qwen3_coder, no type": ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=u>\n%s\n</parameter>\n</function>\n</tool_call>"),  # noqa: E501
    "glm45": ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"),
    "pythonic": ("pythonic", '[f(a="%s")]'),
    "gemma4": ("gemma4", '<|tool_call>call:f{a:<|"|>%s<|"|>}<tool_call|>'),
    "minimax_m3": ("minimax_m3", f'{M3}<tool_call>\n{M3}<invoke name="f">{M3}<a>%s{M3}</a>{M3}</invoke>\n{M3}</tool_call>'),  # noqa: E501
    "openai": ("openai", '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "%s"}<|call|>'),
}  # fmt: skip


def output(label: str, size: int) -> list[str]:
    text = TEXTS[label][1] % (WORDS * (size // len(WORDS) + 1))[:size]
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def ours(label: str) -> Callable[[str], object]:
    counter = itertools.count()
    translator = Translator(
        named(TEXTS[label][0]),
        tools=None,
        opened="",
        new_id=lambda kind: f"{kind}{next(counter)}",
        policy=Policy(tools={"f": SCHEMA}),
    )
    return translator.feed


def measure(make: Callable[[], Callable[[str], object]], deltas: list[str], runs: int = 3) -> tuple[float, float]:
    """(CPU seconds per 1,000 deltas, CPU milliseconds of the slowest), the least of some runs."""
    best, slowest = float("inf"), float("inf")
    for _ in range(runs):
        feed, clock = make(), time.thread_time
        gc.collect()
        gc.disable()
        begun, worst = clock(), 0.0
        for delta in deltas:
            start = clock()
            feed(delta)
            worst = max(worst, clock() - start)
        best, slowest = min(best, clock() - begun), min(slowest, worst)
        gc.enable()
    return best / len(deltas) * 1000, slowest * 1000


def table(sizes: list[int]) -> None:
    print(f"{'ours':22}" + "".join(f"{size // 1000:>8}k (slowest)" for size in sizes))
    rows = {label: [measure(lambda label=label: ours(label), output(label, size)) for size in sizes] for label in TEXTS}
    for label, row in rows.items():
        print(f"{label:22}" + "".join(f"{cost:9.4f} {worst:6.2f}ms" for cost, worst in row))
    calls = [row for label, row in rows.items() if label not in ("content", "reasoning")]
    first, last = max(row[0][0] for row in calls), max(row[-1][0] for row in calls)
    print(f"slowest format {first:.4f} at {sizes[0]}, {last:.4f} at {sizes[-1]}")
    print(f"{sizes[-1]} beside {sizes[0]}: at most {max(row[-1][0] / row[0][0] for row in calls):.2f} times")
    print(f"slowest delta: {max(worst for row in calls for _, worst in row):.2f} ms")


def beside(folder: Path, sizes: list[int]) -> None:
    for server, load in (("SGLang", peers.sglang), ("vLLM", peers.vllm)):
        for label, make in load(folder, SCHEMA).items():
            for size in sizes:
                deltas = output(label, size)
                (mine, _), (theirs, worst) = measure(lambda label=label: ours(label), deltas), measure(make, deltas, 1)
                said = sum(map(len, map(make(), deltas)))
                figures = f"{theirs:8.4f} (slowest {worst:6.2f} ms, {said} characters) ours {mine:.4f}"
                print(f"{server:7}{label:13}{size // 1000:4}k {figures}: {theirs / mine:6.1f}x")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[1000, 4000, 16000, 64000, 256000])
    arguments.add_argument("--peers", type=Path)
    arguments.add_argument("--peer-limit", type=int, default=4000)
    given = arguments.parse_args()
    table(given.sizes)
    if given.peers:
        beside(given.peers, [size for size in given.sizes if size <= given.peer_limit])


if __name__ == "__main__":
    main()
