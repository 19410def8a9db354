"""`events` and `adapters` are names that other distributions install too, and pip overwrites silently."""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType

OURS = "agent-server"


def require_own(*packages: str) -> None:
    """Raise ImportError that names the colliding distribution if a package of ours is not ours."""
    for name in packages:
        package: ModuleType | None = None
        with contextlib.suppress(Exception):  # that of another distribution may lack its dependencies
            package = importlib.import_module(name)
        if getattr(package, "DISTRIBUTION", None) != OURS:
            from importlib.metadata import packages_distributions  # slow to import, and seldom needed

            installers = packages_distributions().get(name, [])
            others = sorted({installer for installer in installers if installer.lower() != OURS})
            raise ImportError(
                f"The package {name!r} at {getattr(package, '__file__', None)} is not agent-server's: "
                f"{' and '.join(others) or 'another distribution'} installed the same name over it. Uninstall that and "
                f"reinstall agent-server, or give agent-server an environment of its own."
            )
