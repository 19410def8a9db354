"""ByteDance Seed-OSS: Qwen3-Coder's tags in `<seed:tool_call>`."""

from __future__ import annotations

from events.formats.family import Family
from events.formats.output_format import OutputFormat
from events.formats.samples import function_tag_samples
from events.formats.shapes import function_tag, think

REASONING = think("<seed:tool_call>", start="<seed:think>", end="</seed:think>")
SEED_OSS = OutputFormat(
    name="seed_oss",
    reasoning=REASONING,
    tools=function_tag("<seed:tool_call>", "</seed:tool_call>"),
    drop=("<|im_end|>",),
)

SAMPLES = {
    "seed_oss": function_tag_samples("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
}

FAMILY = Family(
    formats=(SEED_OSS,),
    reasoning={"seed_oss": REASONING},
    samples=SAMPLES,
)
