"""What to load and how: plain data that travels to the engine's process."""

from __future__ import annotations

from agent_server.settings import ComputeSettings


class EngineConfig(ComputeSettings):
    """An operator's settings of the generation core, the model that they are for, and what no setting changes.

    model: folder or hub name. memory: "slab", "paged" or "auto". overlap: launch a step before the last one's tokens
    are seen. run_ahead: compute tokens that a grammar leaves no choice about together, where nothing overlaps. flatten:
    record the model's forward and play it back as one list of operations; None does so for small models on the CPU,
    once there is nothing to compute, and wherever Triton's kernels run.
    """

    model: str
    name: str = ""
    memory: str = "auto"
    overlap: bool | None = None
    run_ahead: bool = True
    flatten: bool | None = None
