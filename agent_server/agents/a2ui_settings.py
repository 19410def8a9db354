"""What an agent says of the A2UI surfaces that its model may write."""

from __future__ import annotations

import msgspec


class A2ui(msgspec.Struct, frozen=True, kw_only=True):
    """catalog_id: what surfaces name instead of the page's catalog; "" for the page's. announce: pages are told at
    /copilotkit/info that this agent writes surfaces, so that those without a catalog of their own show the basic one.
    attempts: calls that the model has for one surface."""

    catalog_id: str = ""
    announce: bool = True
    attempts: int = 3
