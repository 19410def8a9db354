"""`events` and `adapters` are names that other distributions install too, and pip overwrites silently."""

from __future__ import annotations

import importlib
from types import ModuleType

OURS = "agent-server"


def require_own(*packages: str) -> None:
    """Raise ImportError that names the colliding distribution if a package of ours is not ours."""
    for name in packages:
        found = _imported(name)
        if getattr(found, "DISTRIBUTION", None) != OURS:
            raise ImportError(
                f"The package {name!r} at {getattr(found, '__file__', None)} is not agent-server's: "
                f"{_installers(name)} installed the same name over it. Uninstall that and reinstall agent-server, "
                f"or give agent-server an environment of its own."
            )


def _imported(name: str) -> ModuleType | None:
    """The module; None where it cannot be imported, as somebody else's without its dependencies."""
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def _installers(package: str) -> str:
    import importlib.metadata  # slow to import, and seldom needed

    names = importlib.metadata.packages_distributions().get(package, [])
    others = sorted({name for name in names if name.lower() != OURS})
    return " and ".join(others) if others else "another distribution"
