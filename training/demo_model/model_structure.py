"""Initial weights with which a small Llama can copy from the first steps.

The residual stream is divided: one constant feature, a body with the token itself, and
three slots for the three tokens before it. Heads of layer 0 fill the slots; one head of
each later layer looks for the place where the same tokens stood before and reads what
followed. Training may change all of it: only the start is arranged.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.demo_model.model import Attention, Layer, Shape, TinyLlama

EMBEDDING_SCALE = 0.08
CONSTANT = 0.3
SLOTS = 3
PREVIOUS_SHARPNESS = 30.0
MATCH_SHARPNESS = 14.0


@dataclass(frozen=True)
class Layout:
    """Where the parts of the residual stream are, and how large they are after the norm."""

    shape: Shape
    slot_width: int
    projection: Tensor

    @property
    def body(self) -> slice:
        """The dimensions of the token itself; dimension 0 is the constant."""
        return slice(1, self.shape.width - SLOTS * self.slot_width)

    @property
    def body_width(self) -> int:
        """Number of dimensions of the body."""
        return self.shape.width - SLOTS * self.slot_width - 1

    def slot(self, distance: int) -> int:
        """Return the first dimension of the slot for the token that many places back."""
        return self.shape.width - self.slot_width * distance

    def normed(self, value: float) -> float:
        """Return what the norm makes of a feature of a fresh embedding."""
        power = CONSTANT**2 + self.body_width * EMBEDDING_SCALE**2
        return value / math.sqrt(power / self.shape.width)


def orthonormal_rows(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Return random orthonormal rows."""
    square = torch.randn(columns, columns, generator=generator)
    orthogonal: Tensor = torch.linalg.qr(square)[0]
    return orthogonal[:rows]


def _frequencies(shape: Shape) -> list[float]:
    half = shape.head_width // 2
    return [shape.rope_base ** (-index / half) for index in range(half)]


def _prepare_embeddings(model: TinyLlama, layout: Layout) -> None:
    weight = model.embed_tokens.weight
    weight[:, 0] = CONSTANT
    weight[:, layout.body.stop :] *= 0.1


def _previous_token_head(attention: Attention, layout: Layout, distance: int) -> None:
    """Let a head attend to the token a fixed distance back and copy it to its slot."""
    width = layout.shape.head_width
    start, half = (distance - 1) * width, width // 2
    rows = slice(start, start + width)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[rows] = 0
    attention.o_proj.weight[:, rows] = 0
    fast = [(i, f) for i, f in enumerate(_frequencies(layout.shape)) if f > 0.02]
    gain = math.sqrt(PREVIOUS_SHARPNESS * math.sqrt(width) / len(fast)) / layout.normed(CONSTANT)
    for index, frequency in fast:
        angle = frequency * distance
        attention.q_proj.weight[start + index, 0] = gain
        attention.k_proj.weight[start + index, 0] = gain * math.cos(angle)
        attention.k_proj.weight[start + index + half, 0] = gain * math.sin(angle)
    size = layout.slot_width
    attention.v_proj.weight[start : start + size, layout.body] = layout.projection
    written = EMBEDDING_SCALE / layout.normed(EMBEDDING_SCALE)
    for index in range(size):
        attention.o_proj.weight[layout.slot(distance) + index, start + index] = written


def _matching_rows(shape: Shape) -> list[int]:
    """Return the rows of a head that hardly turn with the distance."""
    half = shape.head_width // 2
    slow = [index for index, frequency in enumerate(_frequencies(shape)) if frequency < 0.003]
    return slow + [index + half for index in slow]


def _match_queries(attention: Attention, layout: Layout, first: bool) -> None:
    """Compare this token (and in later layers the one before it) with earlier places."""
    rows = _matching_rows(layout.shape)
    alone = len(rows) if first else len(rows) * 2 // 3
    strength = MATCH_SHARPNESS * math.sqrt(layout.shape.head_width) / len(rows)
    gain = math.sqrt(strength) / (0.9 * layout.normed(EMBEDDING_SCALE))
    queries, keys = attention.q_proj.weight, attention.k_proj.weight
    for place, row in enumerate(rows):
        offset = place % layout.slot_width
        if place < alone:
            queries[row, layout.body] = gain * layout.projection[offset]
            keys[row, layout.slot(1) + offset] = gain
        else:
            queries[row, layout.slot(1) + offset] = gain
            keys[row, layout.slot(2) + offset] = gain


def _induction_head(layer: Layer, layout: Layout, first: bool, generator: torch.Generator) -> None:
    """Let head 0 find an earlier occurrence of this token and copy what followed it."""
    attention, width = layer.self_attn, layout.shape.head_width
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight[:width] = 0
    attention.o_proj.weight[:, :width] = 0
    _match_queries(attention, layout, first)
    kept = orthonormal_rows(width, layout.body_width, generator)
    attention.v_proj.weight[:width, layout.body] = kept
    attention.o_proj.weight[layout.body, :width] = (0.6 if first else 0.2) * kept.T


@torch.no_grad()
def structured_weights(model: TinyLlama, generator: torch.Generator) -> None:
    """Arrange the previous-token heads and the induction heads."""
    shape = model.shape
    slot_width = min(shape.width // 6, shape.head_width)
    body_width = shape.width - SLOTS * slot_width - 1
    projection = orthonormal_rows(slot_width, body_width, generator)
    layout = Layout(shape, slot_width, projection)
    _prepare_embeddings(model, layout)
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    for distance in range(1, SLOTS + 1):
        _previous_token_head(layers[0].self_attn, layout, distance)
    for index, layer in enumerate(layers[1:]):
        _induction_head(layer, layout, index == 0, generator)
