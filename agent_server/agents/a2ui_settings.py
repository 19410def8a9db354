"""An agent's settings for the A2UI surfaces that its model may write."""

from __future__ import annotations

import msgspec


class A2ui(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the A2UI surfaces that an agent's model may write.

    Attributes:
        catalog_id: The catalog that surfaces name; "" for the page's own.
        announce: Whether `/copilotkit/info` says that this agent writes surfaces, so that pages without a catalog of
            their own show the basic one.
        attempts: Maximum number of calls that the model may make for one surface.
    """

    catalog_id: str = ""
    announce: bool = True
    attempts: int = 3
