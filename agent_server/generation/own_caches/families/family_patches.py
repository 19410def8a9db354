"""Patches of single model families in transformers, so that their sequences can share a forward.

Each patch recognises a model by attributes of its modules, not by its name, and changes only that model. It leaves a
forward without a cache as it is, since the check at load time compares with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_server.generation.own_caches.families.attention_temperature import scale_by_positions
from agent_server.generation.own_caches.families.compressed_keys import compress_by_rows
from agent_server.generation.own_caches.families.lightning_attention import count_by_keys
from agent_server.generation.own_caches.families.recurrent_blocks import keep_states_in_caches
from agent_server.generation.own_caches.families.token_shift import shift_by_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def apply_patches(model: PreTrainedModel) -> None:
    """Patch a model, once, before it is tried on its own caches."""
    if hasattr(model, "patched"):
        return
    model.patched = True
    scale_by_positions(model)
    compress_by_rows(model)
    count_by_keys(model)
    keep_states_in_caches(model)
    shift_by_rows(model)
