"""Every kernel compiles for GPUs that are not here: what the interpreter lets pass, the compilers do not."""

import pytest
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from agent_server.generation.attention.kernels import paged_kernels
from agent_server.generation.recorded.kernels import layer_kernels
from agent_server.generation.sampling.kernels import sample_kernels

TARGETS = {
    **{f"sm_{number}": GPUTarget("cuda", number, 32) for number in (80, 86, 89, 90, 100)},
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
ALIGNED = [["tt.divisibility", 16]]
"""What a launch knows of tensors from torch's allocator and of most strides, and compiles for."""
SHARED_MEMORY = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""KiB that a program may have (CUDA C++ Programming Guide, technical specifications; AMD CDNA 3 ISA)."""

ATTEND = {
    "out": "*bf16", "weighed": "*fp32", "shares": "*fp32", "queries": "*bf16", "key_cache": "*bf16",
    "value_cache": "*bf16", "tables": "*i32", "lengths": "*i32", "starts": "*i32", "sinks": "*bf16",
    "first": "i32", "scale": "fp32", "softcap": "fp32",
    "window": "i32", "group": "i32", "splits": "i32", "least": "i32", "query_token": "i32", "query_head": "i32", "table_row": "i32",
    "DK": 128, "DV": 128, "DK_MAIN": 128, "DK_REST": 0, "DV_BLOCK": 128, "HEADS": 4, "QUERIES": 16, "KEYS": 64,
    "PAGE": 32, "WINDOW": True, "SOFTCAP": True, "SINKS": True, "SPLIT": False,
}  # fmt: skip
STORE = {
    "keys": "*bf16", "values": "*bf16", "places": "*i64", "key_cache": "*bf16", "value_cache": "*bf16",
    "kv_heads": "i32", "key_token": "i32", "key_head": "i32",
    "value_token": "i32", "value_head": "i32", "DK": 96, "DV": 128, "WIDTH": 128,
}  # fmt: skip
COMBINE = {
    "out": "*bf16", "weighed": "*fp32", "shares": "*fp32", "starts": "*i32", "first": "i32", "splits": "i32",
    "DV": 96, "DV_BLOCK": 128, "SPLITS": 32,
}  # fmt: skip
SUMMARISE = {
    "summaries": "*fp32", "logits": "*fp32", "raw": "*fp32", "rows": "*i64", "numbers": "*fp32",
    "vocab_size": "i32", "width": "i32", "LOGPROBS": True, "SEGMENTS": 128, "PART": 2, "WIDTH": 2048,
}  # fmt: skip
PICK = {
    "tokens": "*i64", "logprobs": "*fp32", "totals": "*fp32", "last": "*i64", "summaries": "*fp32", "lists": "*fp32",
    "logits": "*fp32", "raw": "*fp32", "rows": "*i64", "positions": "*i64", "numbers": "*fp32", "top_ks": "*i64",
    "seeds": "*i64", "counts": "*i32", "vocab_size": "i32", "width": "i32", "LOGPROBS": True, "COUNTS": True,
    "SEGMENTS": 128, "LANES": 16, "WIDTH": 2048,
}  # fmt: skip
ADJUST = {
    "out": "*fp32", "logits": "*fp32", "rows": "*i64", "factors": "*fp32", "counts": "*i32", "prompts": "*i8",
    "masks": "*i32", "bits": "*i32", "vocab_size": "i32", "words": "i32", "PENALTIES": True, "MASKS": True,
    "BLOCK": 2048,
}  # fmt: skip
NORM = {
    "out": "*bf16", "total": "*bf16", "x": "*bf16", "residual": "*bf16", "weight": "*bf16", "epsilon": "fp32",
    "x_row": "i32", "residual_row": "i32", "WIDTH": 3072, "BLOCK": 4096, "ADD": True, "LATE": True, "OFFSET": 0.0,
}  # fmt: skip
GATED = {"out": "*bf16", "joined": "*bf16", "width": "i32", "joined_row": "i32", "GELU": True, "BLOCK": 1024}
ROTATE = {
    "q_out": "*bf16", "k_out": "*bf16", "queries": "*bf16", "keys": "*bf16", "cosine": "*bf16", "sine": "*bf16",
    "q_weight": "*bf16", "k_weight": "*bf16", "q_epsilon": "fp32", "k_epsilon": "fp32", "heads": "i32",
    "kv_heads": "i32", "q_token": "i32", "q_head": "i32", "k_token": "i32", "k_head": "i32", "angle_token": "i32",
    "DIM": 80, "BLOCK": 128, "NORM": True, "LATE": True, "OFFSET": 1.0,
}  # fmt: skip
GROUPED = {
    "out": "*bf16", "x": "*bf16", "weights": "*bf16", "ends": "*i32", "groups": "i32", "depth": "i32", "width": "i32",
    "x_row": "i32", "weights_group": "i32", "weights_depth": "i32", "weights_width": "i32",
    "GROUPS": 128, "ROWS": 64, "COLUMNS": 64, "DEPTH": 64,
}  # fmt: skip
WIDE = {"out": "*fp32", "x": "*fp32", "weights": "*fp32", "DEPTH": 32}
LATENT = {"DK": 576, "DK_MAIN": 512, "DK_REST": 64, "DV": 512, "DV_BLOCK": 512, "HEADS": 16, "QUERIES": 1, "KEYS": 16}
KERNELS = {
    "attend": (paged_kernels.attend_kernel, ATTEND),
    "attend, splits": (paged_kernels.attend_kernel, {**ATTEND, "SPLIT": True, "QUERIES": 4}),
    "attend, latent": (paged_kernels.attend_kernel, {**ATTEND, **LATENT, "SPLIT": True}),
    "store": (paged_kernels.store_kernel, STORE),
    "combine": (paged_kernels.combine_kernel, COMBINE),
    "summarise": (sample_kernels.summarise_kernel, SUMMARISE),
    "pick": (sample_kernels.pick_kernel, PICK),
    "adjust": (sample_kernels.adjust_kernel, ADJUST),
    "norm": (layer_kernels.norm_kernel, NORM),
    "gated": (layer_kernels.gated_kernel, GATED),
    "rotate": (layer_kernels.rotate_kernel, ROTATE),
    "grouped": (layer_kernels.grouped_kernel, GROUPED),
    "grouped, few rows": (layer_kernels.grouped_kernel, {**GROUPED, "ROWS": 16}),
    "grouped, float32": (layer_kernels.grouped_kernel, {**GROUPED, **WIDE}),
}


@pytest.mark.parametrize(("target", "aligned"), [*((target, True) for target in TARGETS), ("sm_80", False)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_it_compiles(kernel, target, aligned):
    """As a launch specialises it, and where strides and offsets are odd."""
    function, given = KERNELS[kernel]
    names = [parameter.name for parameter in function.params]
    assert set(names) == set(given)
    signature = {name: given[name] if isinstance(given[name], str) else "constexpr" for name in names}
    constants = {(names.index(name),): value for name, value in given.items() if not isinstance(value, str)}
    options = {"num_warps": 16 if kernel == "pick" else 4, "num_stages": 2}
    known = {
        (at,): ALIGNED
        for at, parameter in enumerate(function.params)
        if aligned and signature[parameter.name] not in ("constexpr", "fp32") and not parameter.do_not_specialize
    }
    made = compile(ASTSource(function, signature, constants, known), target=TARGETS[target], options=options)
    assert made.asm["hsaco" if target == "gfx942" else "cubin"]
    assert made.metadata.shared <= SHARED_MEMORY[target] * 1024
