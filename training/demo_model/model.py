"""A small Llama that is quick to train on a CPU, with weights named as in transformers.

The layers compute what `LlamaForCausalLM` computes, so a trained state can be loaded
there unchanged. `structured_weights` prepares the attention for copying.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig


@dataclass(frozen=True)
class Shape:
    """The dimensions of the network."""

    vocabulary: int
    width: int = 192
    layers: int = 6
    head_width: int = 32
    inner_width: int = 768
    rope_base: float = 100_000.0
    norm_epsilon: float = 1e-5

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return self.width // self.head_width

    def transformers_config(self, end: int, padding: int) -> LlamaConfig:
        """Return the same network as a transformers configuration."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.inner_width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            head_dim=self.head_width,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_base},
            rms_norm_eps=self.norm_epsilon,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=padding,
        )


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.epsilon = shape.norm_epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise in float32."""
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale * self.weight).to(hidden.dtype)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary positions to queries or keys."""
    first, second = heads.chunk(2, dim=-1)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(rotated, dim=-1).to(heads.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mix the values, in float32: the backward pass of short rows takes twice as long in bfloat16 on a CPU."""
    with torch.autocast(queries.device.type, enabled=False):
        wide = (queries.float(), keys.float(), values.float())
        return F.scaled_dot_product_attention(*wide, is_causal=True).to(values.dtype)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.head_width
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def _split(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, self.heads, self.head_width).transpose(1, 2)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Mix each position with the earlier ones."""
        queries = rotate(self._split(self.q_proj(hidden)), cosine, sine)
        keys = rotate(self._split(self.k_proj(hidden)), cosine, sine)
        values = self._split(self.v_proj(hidden))
        mixed = attend(queries, keys, values)
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2).reshape(hidden.shape)))


class FeedForward(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner_width, bias=False)
        self.down_proj = nn.Linear(shape.inner_width, shape.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each position on its own."""
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden)))


class Layer(nn.Module):
    """Attention and feed-forward, each with a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(shape), Attention(shape)
        self.post_attention_layernorm, self.mlp = Norm(shape), FeedForward(shape)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Run the layer."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosine, sine)
        return cast(Tensor, hidden + self.mlp(self.post_attention_layernorm(hidden)))


class TinyLlama(nn.Module):
    """Embeddings, layers and the last norm; logits come from the tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)
        half = shape.head_width // 2
        frequencies = shape.rope_base ** (-torch.arange(half) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the last hidden states."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        angles = positions[:, None] * cast(Tensor, self.frequencies)[None]
        cosine, sine = angles.cos(), angles.sin()
        hidden = self.embed_tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden, cosine, sine)
        return cast(Tensor, self.norm(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary."""
        return F.linear(hidden, self.embed_tokens.weight)


def random_weights(model: TinyLlama, generator: torch.Generator) -> None:
    """Draw small weights, smaller still where a block writes to the residual stream."""
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        scale = 0.08 if "embed" in name else 0.6 / math.sqrt(parameter.shape[1])
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            scale /= math.sqrt(2 * model.shape.layers)
        parameter.data.normal_(0, scale, generator=generator)
