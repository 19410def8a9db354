"""How far prompts are whose requests ask for it.

A step is launched long before a GPU has computed it, and chunks of a prompt are not waited for. So each chunk leaves a
mark in the device's own order of work, and counts as computed when the device has passed it.
"""

from __future__ import annotations

import torch

from agent_server.generation.core.generation import Generation
from agent_server.generation.scheduling.step_plan import Chunk


class PromptProgress:
    """`launched` notes what was begun, `reached` says what is computed since it was last asked. False while there is
    nothing to say."""

    def __init__(self) -> None:
        self._marks: list[tuple[torch.cuda.Event | None, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._marks)

    def launched(self, generation: Generation, chunk: Chunk, device: torch.device) -> None:
        """A chunk is on its way. The end of a prompt is told with its first token."""
        if generation.told < 0:
            self._marks.append((None, generation.number, chunk.start))
        if chunk.samples:
            return
        mark = None
        if device.type == "cuda":
            mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(device))
        self._marks.append((mark, generation.number, chunk.start + chunk.length))

    def reached(self) -> list[tuple[int, int]]:
        """Generations' numbers, and how many tokens of their prompts are computed, in the order of the work."""
        ahead = (i for i, (mark, _, _) in enumerate(self._marks) if mark is not None and not _passed(mark))
        done = next(ahead, len(self._marks))
        passed, self._marks = self._marks[:done], self._marks[done:]
        return [(number, tokens) for _, number, tokens in passed]


def _passed(mark: torch.cuda.Event) -> bool:
    return bool(mark.query())  # type: ignore[no-untyped-call]
