"""The items of a response's output, while they are written."""

from __future__ import annotations

from typing import Literal

from adapters.custom_tools import InputText
from adapters.openai_responses.client_tools import CallKind
from adapters.openai_responses.items import COMPACTION
from events.metadata import Scored

Kind = Literal["message", "reasoning", "compaction"] | CallKind
CALLS: tuple[Kind, ...] = ("function_call", "custom_tool_call")
"""Calls that are streamed."""
ITEM_PREFIX: dict[Kind, str] = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc", "compaction": COMPACTION,
    "local_shell_call": "lsh", "shell_call": "sh", "apply_patch_call": "apc", "tool_search_call": "tsc",
}  # fmt: skip


def item_id(response_id: str, kind: Kind, index: int) -> str:
    """An output item's id: OpenAI's prefix for its kind, then what finds it again, the response and its place in it."""
    return f"{ITEM_PREFIX[kind]}_{response_id.removeprefix('resp_')}_{index}"


class OutputItem:
    """One output item while it is written. `index` is its place in the output. `cut`: a call that the output's end cut
    off."""

    __slots__ = ("cut", "deltas", "head", "id", "index", "input", "kind", "name", "sealed", "source", "tokens")

    def __init__(self, kind: Kind, source: str, id: str, index: int, name: str = "") -> None:
        self.kind: Kind = kind
        self.source = source
        self.id = id
        self.index = index
        self.name = name
        self.sealed: str | None = None
        self.cut = False
        self.deltas: list[str] = []
        self.tokens: list[Scored] = []
        self.head = b""
        self.input = InputText()

    @property
    def text(self) -> str:
        return "".join(self.deltas)
