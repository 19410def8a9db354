"""The version that is installed."""

import importlib.metadata
from functools import cache


@cache
def version() -> str:
    """The distribution's version; "development" in a checkout that is not installed."""
    try:
        return importlib.metadata.version("agent-server")
    except importlib.metadata.PackageNotFoundError:
        return "development"
