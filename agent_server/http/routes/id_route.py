"""Routes whose parameters are ids that clients choose."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.routing import Match, Route
from starlette.types import Scope

_SLASH = re.compile("%2f", re.IGNORECASE)
HELD = "\udc2f"
"""Stands for an encoded slash while the path is matched: no decoded path contains half of a surrogate pair."""


class IdRoute(Route):
    """A route whose parameters may contain a slash, if it is encoded. Servers hand over the path with every slash
    decoded, so it is decoded here from the path as it was sent."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = (scope.get("raw_path") or b"").decode("latin-1")
        if _SLASH.search(sent) is None:
            return super().matches(scope)
        match, child = super().matches({**scope, "path": unquote(_SLASH.sub(HELD, sent))})
        if match is not Match.NONE:
            params = child["path_params"].items()
            child["path_params"] = {name: value.replace(HELD, "/") for name, value in params}
        return match, child
