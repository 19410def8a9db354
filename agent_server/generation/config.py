"""What to load and how: plain data that travels to the engine's process."""

from __future__ import annotations

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to load and how. Zero, "" and "auto" leave the choice to the loader.

    device: "cpu", "cuda", "cuda:1", "mps". dtype: "float32", "bfloat16", "float16". kv_cache_dtype: the same, for keys
    and values; another than the model's on the CPU alone. quantize: "int8" or "int4" for weights that are quantised as
    they are loaded. trust_remote_code: run code that comes with the checkpoint. adapter: folder of a LoRA adapter.
    max_batch: rows. max_queued: generations that may wait. step_tokens: budget of a step. kv_cache_bytes: memory for
    keys and values. max_context: tokens of prompt and answer. threads: torch's, for one operation. memory: "slab" or
    "paged". overlap: launch a step before the last one's tokens are seen. run_ahead: compute tokens that a grammar
    leaves no choice about together, where nothing overlaps. flatten: record the model's forward and play it back as one
    list of operations; None does so for small models on the CPU, and wherever Triton's kernels run. cuda_graphs:
    capture decoding.
    """

    model: str
    name: str = ""
    device: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantize: str = ""
    trust_remote_code: bool = False
    adapter: str = ""
    max_batch: int = 64
    max_queued: int = 512
    step_tokens: int = 0
    kv_cache_bytes: int = 0
    max_context: int = 0
    threads: int = 0
    memory: str = "auto"
    overlap: bool | None = None
    run_ahead: bool = True
    flatten: bool | None = None
    cuda_graphs: bool = True
