"""The blocks of a GGUF file as integers with scales, and a product that uses these integers without rounding them.

ggml's formats store a row of a matrix in blocks: integers of two to eight bits, and for each 16 or 32 of them a scale,
in some formats also a minimum. torch's four-bit product (`_weight_int4pack_mm_for_cpu`) takes integers of four bits
and, for each 32 of them, a scale and an offset: `(number - 8) * scale + offset`. An integer of more than four bits
becomes two of four, `16 * high + low`, in two columns of one product. The formats:
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch import unflatten as split
from torch.nn.functional import pad

from agent_server.generation.device import multiplies_bfloat16
from agent_server.generation.loading.linear_layers import ReplacementLinear

GROUP = 32
"""Integers of a row that share a scale in torch's product."""
ROWS = 64
"""Rows of a matrix are packed in multiples of this, the largest row block of any x86 kernel."""
AT_ONCE = 1 << 20
"""Weights that are unpacked at a time, few enough for a CPU's caches."""
WIDE = 48
"""The number of input rows from which a product with unpacked weights is faster."""
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Numbers(NamedTuple):
    """The integers of some rows of a matrix.

    codes: `[rows, in]`. scales, base: `[rows, in / group]`, the scale of each group and the value of its integer 0.
    Without a `base`, the integers are signed; four-bit ones then start at -8.
    """

    codes: Tensor
    scales: Tensor
    base: Tensor | None = None
    bits: int = 8

    def values(self) -> Tensor:
        """Return the weights, `[rows, in]` in float32."""
        grouped = split(self.codes.float(), 1, (self.scales.shape[1], -1)) * self.scales[..., None]
        return grouped.flatten(1) if self.base is None else (grouped + self.base[..., None]).flatten(1)


def _half(blocks: Tensor, start: int) -> Tensor:
    """Read a float16 number of each block."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()[..., 0]


def _nibbles(data: Tensor) -> Tensor:
    """`[..., n]` bytes → `[..., 2 n]` integers: all lower halves before all upper ones."""
    return torch.cat([data & 15, data >> 4], -1)


def _bits(data: Tensor, width: int) -> Tensor:
    """`[..., n]` bytes → `[..., 8 / width, n]`: the lowest `width` bits of all bytes, then the next ones of all, …"""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return (data[..., None, :] >> shifts) & ((1 << width) - 1)


def _flags(data: Tensor) -> Tensor:
    """`[..., 4]` bytes → `[..., 32]` bits, in order."""
    return ((data[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2)


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The twelve bytes of Q4_K and Q5_K → eight scales and eight minimums of six bits each."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], -1)
    minimums = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], -1)
    return scales.float(), minimums.float()


def _q4_0(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[..., 2:]).view(torch.int8) - 8, _half(blocks, 0), bits=4)


def _q4_1(blocks: Tensor) -> Numbers:
    return Numbers(_nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2), bits=4)


def _q5_0(blocks: Tensor) -> Numbers:
    codes = _nibbles(blocks[..., 6:]) | (_flags(blocks[..., 2:6]) << 4)
    return Numbers(codes.view(torch.int8) - 16, _half(blocks, 0))


def _q5_1(blocks: Tensor) -> Numbers:
    codes = _nibbles(blocks[..., 8:]) | (_flags(blocks[..., 4:8]) << 4)
    return Numbers(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> Numbers:
    return Numbers(blocks[..., 2:].contiguous().view(torch.int8), _half(blocks, 0))


def _q4_k(blocks: Tensor) -> Numbers:
    scales, minimums = _k_scales(blocks[..., 4:16])
    codes = _nibbles(split(blocks[..., 16:], -1, (4, 32)))
    return Numbers(codes, scales * _half(blocks, 0)[..., None], -minimums * _half(blocks, 2)[..., None], bits=4)


def _q5_k(blocks: Tensor) -> Numbers:
    scales, minimums = _k_scales(blocks[..., 4:16])
    codes = split(_nibbles(split(blocks[..., 48:], -1, (4, 32))), -1, (2, 32)).flatten(-3, -2)
    codes = codes | (_bits(blocks[..., 16:48], 1) << 4)
    return Numbers(codes, scales * _half(blocks, 0)[..., None], -minimums * _half(blocks, 2)[..., None])


def _q6_k(blocks: Tensor) -> Numbers:
    low = _nibbles(split(blocks[..., :128], -1, (2, 64))).flatten(-2)
    high = _bits(split(blocks[..., 128:192], -1, (2, 32)), 2).flatten(-3)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float() * _half(blocks, 208)[..., None]
    return Numbers((low | (high << 4)).view(torch.int8) - 32, scales)


def _q2_k(blocks: Tensor) -> Numbers:
    codes = _bits(split(blocks[..., 16:80], -1, (2, 32)), 2)
    scales, minimums = (blocks[..., :16] & 15).float(), (blocks[..., :16] >> 4).float()
    return Numbers(codes, scales * _half(blocks, 80)[..., None], -minimums * _half(blocks, 82)[..., None])


def _q3_k(blocks: Tensor) -> Numbers:
    low = _bits(split(blocks[..., 32:96], -1, (2, 32)), 2).flatten(-3)
    high = _bits(blocks[..., :32], 1).flatten(-2)
    packed = blocks[..., 96:108]
    scales = _nibbles(packed[..., :8]) | (_bits(packed[..., 8:], 2).flatten(-2) << 4)
    codes = (low | (high << 2)).view(torch.int8) - 4
    return Numbers(codes, (scales.view(torch.int8) - 32).float() * _half(blocks, 108)[..., None])


def _levels(data: Tensor) -> Tensor:
    return torch.tensor(IQ4_LEVELS, dtype=torch.int8)[_nibbles(data).int()]


def _iq4_nl(blocks: Tensor) -> Numbers:
    return Numbers(_levels(blocks[..., 2:]), _half(blocks, 0))


def _iq4_xs(blocks: Tensor) -> Numbers:
    high = _bits(blocks[..., 2:4, None], 2).flatten(-3)
    low = torch.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], -1).flatten(-2)
    scales = (low | (high << 4)).view(torch.int8) - 32
    return Numbers(_levels(split(blocks[..., 8:], -1, (8, 16))), scales.float() * _half(blocks, 0)[..., None])


FORMATS: dict[str, tuple[int, Callable[[Tensor], Numbers]]] = {
    "Q4_0": (18, _q4_0), "Q4_1": (20, _q4_1), "Q5_0": (22, _q5_0), "Q5_1": (24, _q5_1), "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k), "Q3_K": (110, _q3_k), "Q4_K": (144, _q4_k), "Q5_K": (176, _q5_k), "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _iq4_nl), "IQ4_XS": (136, _iq4_xs),
}  # fmt: skip
"""The bytes of a block, and the function that reads its integers."""


def numbers(rows: Tensor, kind: str) -> Numbers:
    """Read rows `[rows, bytes]` of a file in a format of FORMATS."""
    size, read = FORMATS[kind]
    codes, scales, base, bits = read(split(rows, 1, (-1, size)))
    return Numbers(codes.flatten(1), scales.flatten(1), None if base is None else base.flatten(1), bits)


class _Columns(NamedTuple):
    """Four-bit integers `[rows, columns]` for torch's product, with a scale and an offset for each GROUP of them."""

    nibbles: Tensor
    scales: Tensor
    offsets: Tensor


def _columns(source: Numbers) -> _Columns:
    """Convert to the columns of torch's product. Scales are rounded to bfloat16, in which it computes, and offsets are
    computed from the rounded scales."""
    codes, bits = source.codes, source.bits
    scales = source.scales.bfloat16().float()
    base = torch.zeros_like(scales) if source.base is None else source.base
    if bits == 4:
        return _Columns(codes + 8, scales, base) if source.base is None else _Columns(codes, scales, base + 8 * scales)
    codes = codes.view(torch.int8)
    group = codes.shape[1] // scales.shape[1]
    grouped = split(codes, 1, (-1, group))
    if group == GROUP:  # a group of upper halves, then one of lower halves
        nibbles = torch.stack([(grouped >> 4) + 8, grouped & 15], 2)
        return _Columns(
            nibbles.flatten(1),
            torch.stack([16 * scales, scales], 2).flatten(1),
            torch.stack([torch.zeros_like(base), base + 8 * scales], 2).flatten(1),
        )
    raised = (
        grouped + 8
    )  # sixteen lower halves and their upper halves are a group: the inputs are 16 times as large there
    return _Columns(torch.stack([raised & 15, (raised >> 4) + 8], 2).flatten(1), scales, base / 17)


@cache
def rows_of_kernel() -> int:
    """Return the rows of a block in torch's product on this CPU; 0 if it has no fast kernel."""
    codes = (torch.arange(ROWS)[:, None] + torch.arange(GROUP)).to(torch.uint8) % 16
    try:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0
    return next((rows for rows in (64, 32) if torch.equal(_packed(codes, rows), packed)), 0)


def _packed(nibbles: Tensor, rows: int) -> Tensor:
    """Pack `[out, in]` into `[out, in / 2]`, in blocks of `rows` rows; torch's own packing is four times slower.

    Within a block, column by column, the lower half of a byte belongs to a row of the block's first half and the upper
    half to the corresponding row of its second half.
    """
    halves = split(nibbles, 0, (-1, 2, rows // 2))
    return (halves[:, 0] | halves[:, 1] << 4).transpose(1, 2).reshape(len(nibbles), -1)


class BlockLinear(ReplacementLinear):
    """A linear layer with the integers of a file's blocks.

    Few input rows use torch's four-bit product in bfloat16; many rows, as in prompts, use weights that are unpacked
    temporarily.
    """

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear, rows: Tensor, kind: str) -> None:
        """rows: the file's bytes, `[out, bytes]`."""
        super().__init__(linear)
        self.kind = kind
        step = max(ROWS, AT_ONCE // linear.in_features // ROWS * ROWS)
        for start in range(0, len(rows), step):
            block_numbers = numbers(rows[start : start + step], kind)
            columns, missing = _columns(block_numbers), -len(block_numbers.codes) % ROWS
            packed = _packed(pad(columns.nibbles.view(torch.uint8), (0, 0, 0, missing)), rows_of_kernel())
            scales = pad(torch.stack([columns.scales, columns.offsets], -1), (0, 0, 0, 0, 0, missing))
            if not start:
                self._group = linear.in_features // block_numbers.scales.shape[1] if block_numbers.bits != 4 else 0
                total = -(-len(rows) // ROWS) * ROWS
                self.register_buffer("packed", packed.new_empty(total, packed.shape[1]), persistent=False)
                shape = (scales.shape[1], total, 2)
                self.register_buffer("scales", torch.empty(shape, dtype=torch.bfloat16), persistent=False)
            self.packed[start : start + len(packed)] = packed
            self.scales[:, start : start + len(packed)] = scales.transpose(0, 1)

    @property
    def weight(self) -> Tensor:
        """`[out, in]` in float32, unpacked for model code that reads it."""
        return self._weights(slice(None)).T[: self.out_features]

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self.in_features)
        if len(rows) >= WIDE:
            dtype = torch.bfloat16 if multiplies_bfloat16() else rows.dtype
            outputs, rows = rows.new_empty(len(rows), len(self.packed), dtype=dtype), rows.to(dtype)
            step = max(ROWS, AT_ONCE // self.in_features // ROWS * ROWS)
            for start in range(0, len(self.packed), step):
                part = slice(start, start + step)
                torch.mm(rows, self._weights(part).to(dtype), out=outputs[:, part])
        else:
            rows = rows.bfloat16()
            if self._group == GROUP:
                rows = split(rows, 1, (-1, 1, GROUP)).expand(-1, -1, 2, -1).flatten(1)
            elif self._group:
                halves = split(rows, 1, (-1, self._group))
                rows = torch.stack([halves, 16 * halves], 2).flatten(1)
            outputs = torch.ops.aten._weight_int4pack_mm_for_cpu(rows.contiguous(), self.packed, GROUP, self.scales)
        outputs = outputs[:, : self.out_features].to(inputs.dtype)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.reshape(*inputs.shape[:-1], self.out_features)

    def _weights(self, part: slice) -> Tensor:
        """Unpack the weights of some of the outputs, `[in, out]` in float32."""
        # `[out, in / 2]` → `[in, out]`, from -8 to 7.
        packed = self.packed[part]
        rows = rows_of_kernel()
        blocks = packed.view(-1, 2 * packed.shape[1], rows // 2)
        halves = torch.stack([blocks & 15, blocks >> 4], 2).view(torch.int8) - 8
        codes = halves.permute(1, 0, 2, 3).reshape(2 * packed.shape[1], -1)
        scales, offsets = self.scales[:, part].float().unbind(-1)
        values = split(codes.float(), 0, (-1, GROUP)).mul_(scales[:, None]).add_(offsets[:, None])
        if self._group == GROUP:
            values = split(values, 0, (-1, 2)).sum(1)
        elif self._group:
            low, high = split(values, 1, (2, self._group)).unbind(1)
            values = low + 16 * high
        return values.flatten(0, 1)


class BlockEmbedding(nn.Module):
    """An embedding whose rows stay in the file's blocks until they are looked up. rows: `[vocabulary, bytes]`."""

    def __init__(self, embedding: nn.Embedding, rows: Tensor, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = embedding  # some model families scale the looked-up rows
        embedding.padding_idx = None
        embedding.weight = nn.Parameter(torch.empty(0, embedding.embedding_dim, dtype=dtype), requires_grad=False)
        self.num_embeddings, self.embedding_dim = embedding.num_embeddings, embedding.embedding_dim
        self.kind, self.dtype, self._rows = kind, dtype, rows
        self.rows_in_blocks = embedding.num_embeddings * embedding.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        weight = numbers(self._rows[ids.flatten()], self.kind).values().to(self.dtype)
        places = torch.arange(len(weight)).view(ids.shape)
        outputs: Tensor = torch.func.functional_call(self.embedding, {"weight": weight}, (places,))
        return outputs
