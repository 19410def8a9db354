"""`make release-check`: dist/ with an sdist and a wheel, checked, installed in an empty environment and served from.

Beside them are lists of all packages that an installation has (SBOMs, CycloneDX 1.6): the wheel's alone, and those with
the extra `local`. Nothing is uploaded. What is in dist/ afterwards is what passed.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import httpx2
import typer
from packaging.metadata import Metadata
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = "agent_server/static/demo/index.html"
BASE = {"extra": ""}
"""The markers' environment where no extra is asked for."""
READY_SECONDS = 120
CYCLONEDX = "cyclonedx-bom==7.5.0"
"""What lists an environment's packages, in an environment of its own."""
HELLO = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "Hello"}]}


class ReleaseError(Exception):
    """Why this is not released."""


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    """Its standard output. Raises ReleaseError with all that it said."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def uv() -> Path:
    return Path(sys.executable).with_name("uv")


# the two archives


def version() -> str:
    """The project's version; pyproject.toml is its only source."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    run(uv(), "build", "--quiet", "--out-dir", folder, ROOT)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def changelog() -> dict[str, str]:
    """The text of each version in CHANGELOG.md, newest first; "Unreleased" is one of them."""
    parts = re.split(r"^## \[?([^\]\s]+).*\n", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def check_changelog(tag: str) -> None:
    """tag: the tag that is released, "" for none. A tagged tree has no unreleased changes. Raises ReleaseError."""
    versions = changelog()
    unreleased = versions.pop("Unreleased", "")
    if next(iter(versions)) != version():
        raise ReleaseError(f"CHANGELOG.md's newest version is {next(iter(versions))}, pyproject.toml's is {version()}.")
    if tag and tag != f"v{version()}":
        raise ReleaseError(f"The tag is {tag}, the version in pyproject.toml {version()}. Tag v{version()}.")
    if tag and unreleased:
        raise ReleaseError("CHANGELOG.md has changes under Unreleased. Put them under the version that is released.")


def contents(archive: Path) -> dict[str, bytes]:
    """The files of an archive; those of an sdist without its folder's name."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        files = {entry.name.partition("/")[2]: sdist.extractfile(entry) for entry in sdist if entry.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def check_archive(archive: Path) -> None:
    """The metadata by the rules that package indexes apply, and the files that a user needs."""
    files = contents(archive)
    name = next((name for name in files if name == "PKG-INFO" or name.endswith(".dist-info/METADATA")), None)
    if name is None:
        raise ReleaseError(f"{archive.name} has no metadata.")
    try:
        metadata = Metadata.from_email(files[name], validate=True)
    except ExceptionGroup as faults:
        raise ReleaseError(f"{archive.name}: {'; '.join(map(str, faults.exceptions))}") from faults
    if str(metadata.version) != version():
        raise ReleaseError(f"{archive.name} says that it is version {metadata.version}, pyproject.toml {version()}.")
    if not (metadata.description and metadata.description_content_type == "text/markdown"):
        raise ReleaseError(f"{archive.name} has no description in Markdown.")
    needed = {each.name for each in metadata.requires_dist or () if not each.marker or each.marker.evaluate(BASE)}
    if heavy := needed & {"torch", "transformers"}:
        raise ReleaseError(f"{archive.name} needs {', '.join(sorted(heavy))} without an extra.")
    if PAGE not in files:
        raise ReleaseError(f"{archive.name} lacks the page: build it first with `make demo`.")


# an empty environment, and a server in it


def empty_environment(folder: Path) -> Path:
    """Its Python; nothing is installed in it."""
    run(uv(), "venv", "--quiet", "--python", sys.executable, folder)
    return folder / "bin" / "python"


def install(python: Path, archive: Path, extra: str = "") -> None:
    """An archive in an environment, at the locked versions."""
    what = f"agent-server[{extra}] @ {archive.as_uri()}" if extra else str(archive)
    run(uv(), "pip", "install", "--quiet", "--python", python, "-c", ROOT / "constraints.txt", what)


def install_torch(python: Path) -> None:
    """The build that fits this machine, as `make setup` chooses it; it is installed by pip."""
    run(uv(), "pip", "install", "--quiet", "--python", python, "pip")
    run(python, ROOT / "scripts" / "torch_build.py")


@contextmanager
def served(python: Path, *arguments: str, command: str = "serve") -> Iterator[str]:
    """The address of the installed command, run from an empty folder that is its home as well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": str(python.parent), "HOME": home}
        line = [str(python.with_name("agent-server")), command, "--port", str(port), *arguments]
        process = subprocess.Popen(line, cwd=home, env=environment)
        try:
            yield ready(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            process.wait(60)


def ready(url: str, process: subprocess.Popen[bytes]) -> str:
    """The address, once the server there is ready for work."""
    for _ in range(READY_SECONDS * 10):
        if process.poll() is not None:
            raise ReleaseError(f"The server ended with status {process.returncode} before it was ready.")
        with suppress(httpx2.TransportError):
            if httpx2.get(f"{url}/ready").status_code == 200:
                return url
        time.sleep(0.1)
    raise ReleaseError(f"{url} was not ready after {READY_SECONDS} seconds.")


def drive(url: str) -> str:
    """A run from its start to its end; the text that the model said."""
    answer = httpx2.post(f"{url}/agui", json=HELLO, timeout=READY_SECONDS)
    if '"RUN_FINISHED"' not in answer.text or '"TEXT_MESSAGE_CONTENT"' not in answer.text:
        raise ReleaseError(f"The run at {url} did not end with an answer: {answer.status_code} {answer.text[-2000:]}")
    return "".join(re.findall(r'"TEXT_MESSAGE_CONTENT".*?"delta":"((?:[^"\\]|\\.)*)"', answer.text))


def bill_of_materials(python: Path, place: Path) -> Path:
    """The file, with every package that is installed for that Python, its version, licence and address. Raises
    ReleaseError for one that names not all of them."""
    run(
        uv(), "tool", "run", "--quiet", "--from", CYCLONEDX, "cyclonedx-py", "environment", "--sv", "1.6",
        "--output-reproducible", "--of", "JSON", "-o", place, "--pyproject", ROOT / "pyproject.toml", python,
    )  # fmt: skip
    check_bill(place, json.loads(run(uv(), "pip", "list", "--quiet", "--format", "json", "--python", python)))
    return place


def check_bill(place: Path, installed: list[dict[str, str]]) -> None:
    """Raises ReleaseError for a bill of materials that names not just what is installed."""
    told = json.loads(place.read_text("utf-8"))
    subject = told.get("metadata", {}).get("component", {})
    named = {(canonicalize_name(each["name"]), each.get("version")) for each in [*told["components"], subject]}
    there = {(canonicalize_name(each["name"]), each["version"]) for each in installed}
    if odd := sorted(str(name) for name, _ in named ^ there):
        raise ReleaseError(f"{place.name} and what is installed differ: {', '.join(odd)}.")


def try_out(archive: Path, folder: Path) -> None:
    """Install it alone and serve the scripts through an upstream; then with torch, and serve the bundled model. Of
    both, a wheel's packages are listed beside it."""
    python = empty_environment(folder)
    install(python, archive)
    said = run(python.with_name("agent-server"), "--version").strip()
    if said != version():
        raise ReleaseError(f"{archive.name} installs version {said}, not {version()}.")
    with served(python, "--engine", "scripted") as upstream, served(python, "--engine", upstream) as url:
        print(f"{archive.name} alone, over an upstream: {drive(url)[:60]!r}", flush=True)
    listed = archive.suffix == ".whl"
    if listed:
        bill_of_materials(python, archive.with_name(f"agent_server-{version()}.cdx.json"))
    install_torch(python)
    install(python, archive, "local")
    with served(python) as url:
        print(f"{archive.name} with torch, the bundled model: {drive(url)[:60]!r}", flush=True)
    if listed:
        bill_of_materials(python, archive.with_name(f"agent_server-{version()}-local.cdx.json"))


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def notes() -> None:
    """Print what CHANGELOG.md says about the version in pyproject.toml."""
    print(changelog()[version()])


@app.command()
def check(tag: Annotated[str, typer.Option(help="The tag that is released, such as v0.2.0.")] = "") -> None:
    """Build, check and try out all that is released. Nothing is uploaded."""
    check_changelog(tag)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archives = build(folder / "dist")
        for archive in archives:
            check_archive(archive)
            try_out(archive, folder / archive.suffix.lstrip("."))
        (ROOT / "dist").mkdir(exist_ok=True)
        for made in [*archives, *archives[0].parent.glob("*.cdx.json")]:
            shutil.copy(made, ROOT / "dist")
            print(f"dist/{made.name}: {made.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    try:
        app(standalone_mode=False)
    except ReleaseError as error:
        sys.exit(f"scripts/release.py: {error}")
