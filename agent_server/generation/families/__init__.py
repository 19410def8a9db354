"""What transformers' code of single families lacks, so that their sequences can be run together, put in its place.

Each is found by what a model's modules have, not by its name, changes that model alone, and leaves a forward without a
cache as it is: that is what the check at load compares with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_server.generation.families.attention_temperature import scale_by_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def mend(model: PreTrainedModel) -> None:
    """Before the model is tried on caches of its own."""
    scale_by_positions(model)
