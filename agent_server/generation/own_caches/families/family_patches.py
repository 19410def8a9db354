"""What transformers' code of single families lacks, so that their sequences can be run together, put in its place.

Each is found by what a model's modules have, not by its name, changes that model alone, and leaves a forward without a
cache as it is: that is what the check at load compares with.
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
    """Before the model is tried on caches of its own. A model that was mended before stays as it is."""
    if hasattr(model, "mended"):
        return
    model.mended = True
    scale_by_positions(model)
    compress_by_rows(model)
    count_by_keys(model)
    keep_states_in_caches(model)
    shift_by_rows(model)
