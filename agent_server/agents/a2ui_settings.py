"""An agent's settings for the A2UI surfaces that its model may write."""

from __future__ import annotations

import msgspec


class A2ui(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for surfaces that the model writes.

    catalog_id: the catalog that surfaces name; "" for the page's. announce: announce at /copilotkit/info that this
    agent writes surfaces, so that pages without a catalog of their own use the basic one. attempts: how many calls the
    model has for one surface.
    """

    catalog_id: str = ""
    announce: bool = True
    attempts: int = 3
