"""CopilotKit's Open Generative UI: mirror the arguments of a page's own tool `generateSandboxedUi` while they stream.

The page runs the tool and answers it. Meanwhile it shows an activity `open-generative-ui`: css and functions as soon as
they are complete, the html in pieces, each expression separately (`@copilotkit/runtime` 1.74).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from agent_server.agents.generative_ui.json_watch import JsonWatch

SANDBOX = "generateSandboxedUi"
ACTIVITY = "open-generative-ui"
WHOLE = ("css", "jsFunctions")
Patch = list[dict[str, object]]
_WHOLE = re.compile(
    r"(?:[^\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4}|(?=[^\\])))*",
    re.DOTALL,
)
"""The longest prefix of a JSON string's text that can be decoded: it ends neither within an escape nor between two
surrogates."""


class Mirror:
    """Mirrors one call. `feed` returns the patch for the activity; `content` is the activity's content after it."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {"generating": True}
        self._watch = JsonWatch(
            lambda path: len(path) == 1 or (len(path) == 2 and path[0] == "jsExpressions"), streamed=("html",)
        )

    def feed(self, delta: str) -> Patch:
        patch: Patch = []
        for path, value in self._watch.feed(delta):
            name = str(path[0])
            if len(path) == 2:
                if name == "jsExpressions" and isinstance(value, str):
                    self._append(name, value, patch)
            elif name == "initialHeight" and isinstance(value, int | float):
                self._set(name, value, patch)
            elif name in WHOLE and isinstance(value, str):
                self._set(name, value, patch)
                self._set(f"{name}Complete", True, patch)
            elif name == "html":
                if piece := self._decodable_html():
                    self._append(name, piece, patch)
                self._set("htmlComplete", True, patch)
            elif name == "jsExpressions":
                self._set("jsExpressionsComplete", True, patch)
        if piece := self._decodable_html():
            self._append("html", piece, patch)
        return patch

    def finish(self) -> Patch:
        patch: Patch = []
        self._set("generating", False, patch)
        return patch

    def _decodable_html(self) -> str:
        """The html that has arrived since the last call and can be decoded."""
        text = self._watch.take_streamed()
        match = _WHOLE.match(text)
        whole = match[0] if match is not None else ""
        self._watch.put_back(text[len(whole) :])
        try:
            return msgspec.json.decode(f'"{whole}"', type=str) if whole else ""
        except msgspec.DecodeError:  # a lone surrogate, or a control character that JSON forbids
            return ""

    def _append(self, name: str, value: str, patch: Patch) -> None:
        if name not in self.content:
            self._set(name, [], patch)
        self.content[name] = [*self.content[name], value]
        patch.append({"op": "add", "path": f"/{name}/-", "value": value})

    def _set(self, name: str, value: object, patch: Patch) -> None:
        self.content[name] = value
        patch.append({"op": "add", "path": f"/{name}", "value": value})
