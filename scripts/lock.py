"""`constraints.txt`: one version of every package, for every platform and Python at once.

    scripts/lock.py write [--upgrade]    resolve what pyproject.toml declares and write the file
    scripts/lock.py check                prove the file against the package index
    scripts/lock.py extras [NAME...]     resolve each extra alone, its newest and its lowest versions
    scripts/lock.py lowest FILE          write the lowest versions that pyproject.toml declares, to install from

It is a requirements file with markers, not uv.lock, because plain pip reads it (`-c constraints.txt`, in the Makefile
and in images), because it names no index, and because a local build such as torch 2.13.0+cpu satisfies its pins, which
hashes would refuse. Versions that are in the file stay as long as they do; --upgrade takes the newest.

Both resolve from the plain index alone: no local folder of wheels, no extra index, nothing that is installed. The index
is UV_DEFAULT_INDEX, else the one that pip is configured with, else PyPI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PLATFORMS = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACOS = "14.0"
"""The oldest macOS that torch has wheels for."""
LEFT_OUT = ("vllm",)
"""Extras that are not locked: vLLM pins a torch of its own, see scripts/vllm."""
SOURCES = ("forbiddenfruit",)
"""Packages that have no wheels at all, on any platform: of the tests' tools. All others must have one."""
RESOLUTIONS = ("highest", "lowest-direct")
LOWEST = (
    "a2a",
    "ag2",
    "agno",
    "audio",
    "langgraph",
    "llama-index",
    "local",
    "lora",
    "postgres",
    "pydantic-ai",
    "redis",
    "telemetry",
)
"""Extras that `make test-lowest` installs together: all that run beside the core and raise none of its minimums."""
UNREACHABLE = ("Failed to fetch", "error sending request", "Could not connect", "dns error", "Request failed")


class LockError(Exception):
    """Why the lock could not be written or does not hold."""


class Resolver:
    """uv over one project folder, kept from everything that this machine has beside the index."""

    def __init__(self, root: Path) -> None:
        self.root = root
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
        self.declared = list(project.get("optional-dependencies", {}))
        self.extras = [name for name in self.declared if name not in LEFT_OUT]
        self.environment = plain_environment(os.environ, pip_index(os.environ))

    def universal(self, output: Path, *options: str) -> None:
        """Write the lock to `output`, of which what stands there is kept where it can be. Raises LockError."""
        options = ("--universal", "--fork-strategy", "fewest", "--no-header", "-o", str(output), *options)
        self._compile(*options, extras=self.extras)

    def platform(self, platform: str, python: str) -> None:
        """Resolve for one platform under the lock. Raises LockError.

        What the universal resolution has just fetched does first, and the index is asked again where that fails.
        """
        options = ["--python-platform", platform, "--python-version", python, "-c", "constraints.txt"]
        try:
            self._compile(*options, "--offline", extras=self.extras)
        except LockError:
            self._compile(*options, extras=self.extras)

    def alone(self, extra: str, resolution: str, python: str) -> None:
        """Resolve one extra without the lock, as a user's `pip install` does. Raises LockError."""
        self._compile(
            *("--python-platform", PLATFORMS[0], "--python-version", python, "--resolution", resolution),
            extras=[extra],
        )

    def lowest(self, output: Path) -> None:
        """Write the lowest versions of the dependencies and of LOWEST's for this Python. Raises LockError."""
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        options = ("--resolution", "lowest-direct", "--python-version", python, "--no-header", "-o", str(output))
        self._compile(*options, extras=LOWEST)

    def _compile(self, *options: str, extras: Sequence[str]) -> None:
        command = [uv(), "pip", "compile", "--no-config", "--quiet", "--no-annotate", "--no-python-downloads"]
        command += ["--python", sys.executable, "--only-binary", ":all:"]
        for name in SOURCES:
            command += ["--no-binary", name]
        for extra in extras:
            command += ["--extra", extra]
        if "--python-version" not in options:
            command += ["--python-version", PYTHONS[0]]
        command += [*options, "pyproject.toml"]
        done = subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LockError(reason(done.stderr))


def uv() -> str:
    """uv of this Python's environment, else of the path."""
    own = Path(sys.executable).with_name("uv")
    found = str(own) if own.exists() else shutil.which("uv")
    if found is None:
        raise LockError("uv is not installed; `make setup` installs it.")
    return found


def plain_environment(environment: Mapping[str, str], index: str | None) -> dict[str, str]:
    """The environment without what adds packages to those of the one index."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("UV_", "PIP_")) or name in ("UV_CACHE_DIR", "UV_HTTP_RETRIES", "UV_HTTP_TIMEOUT")
    }
    kept["MACOSX_DEPLOYMENT_TARGET"] = MACOS
    if "PIP_CERT" in environment:
        kept.setdefault("SSL_CERT_FILE", environment["PIP_CERT"])
    if index:
        kept["UV_DEFAULT_INDEX"] = index
    return kept


def pip_index(environment: Mapping[str, str]) -> str | None:
    """The one index that uv or pip is configured with; None is PyPI."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if environment.get(name):
            return environment[name]
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def reason(said: str) -> str:
    """uv's error; one sentence before it where the index did not answer."""
    if any(sign in said for sign in UNREACHABLE):
        return f"The package index cannot be reached, so nothing is proved.\n{said.strip()}"
    return said.strip()


def write(root: Path, *options: str) -> None:
    Resolver(root).universal(root / "constraints.txt", *options)


def check(root: Path) -> Iterator[str]:
    """What is wrong with the lock, each fault with the place where it shows."""
    resolver = Resolver(root)
    if fault := stale(resolver):
        yield fault
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        places = [(platform, python) for platform in PLATFORMS for python in PYTHONS]
        yield from filter(None, pool.map(lambda place: unresolved(resolver, *place), places))


def check_extras(root: Path, names: Sequence[str] = ()) -> Iterator[str]:
    """Each extra, or of these, that cannot be resolved alone, with the resolution and the Python where it fails.

    All at once is not enough: vLLM is not in the lock, and the lock hides a lowest version that has no wheel.
    """
    resolver = Resolver(root)

    def fault(extra: str, resolution: str, python: str) -> str | None:
        try:
            resolver.alone(extra, resolution, python)
        except LockError as error:
            return f"{extra}, {resolution}, Python {python}: {error}"
        return None

    chosen = names or resolver.declared
    cases = [(extra, each, python) for extra in chosen for each in RESOLUTIONS for python in PYTHONS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from filter(None, pool.map(lambda case: fault(*case), cases))


def stale(resolver: Resolver) -> str | None:
    """Whether the lock is what its own pins and pyproject.toml make of it; asks the index for every package."""
    lock = resolver.root / "constraints.txt"
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / "constraints.txt"
        again.write_bytes(lock.read_bytes())
        try:
            resolver.universal(again, "--refresh")
        except LockError as error:
            return f"constraints.txt cannot be resolved for all platforms at once: {error}"
        differing = sorted(pins(again) ^ pins(lock))
    if differing:
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        return f"constraints.txt does not fit pyproject.toml ({', '.join(differing[:5])}{more}): run `make lock`."
    return None


def pins(lock: Path) -> set[str]:
    lines = (line.strip() for line in lock.read_text("utf-8").splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def unresolved(resolver: Resolver, platform: str, python: str) -> str | None:
    try:
        resolver.platform(platform, python)
    except LockError as error:
        return f"{platform}, Python {python}: {error}"
    return None


def report(found: Iterable[str], success: str) -> int:
    """Print each fault, else the success; the exit status."""
    faults = list(found)
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(success)
    return 1 if faults else 0


def main(arguments: Sequence[str], root: Path) -> int:
    match arguments:
        case ["write"] | ["write", "--upgrade"]:
            write(root, *arguments[1:])
            return 0
        case ["check"]:
            where = f"on {', '.join(PLATFORMS)} for Python {', '.join(PYTHONS)}"
            return report(check(root), f"constraints.txt resolves {where}.")
        case ["extras", *names]:
            which = f"The extra {', '.join(names)}" if names else "Each extra"
            return report(check_extras(root, names), f"{which} resolves alone, {' and '.join(RESOLUTIONS)}.")
        case ["lowest", output]:
            Resolver(root).lowest(Path(output).resolve())
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], Path(__file__).parents[1]))
    except LockError as error:
        sys.exit(f"scripts/lock.py: {error}")
