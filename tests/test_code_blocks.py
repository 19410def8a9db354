"""Every code block of the README and the documentation is tried; tests/code_blocks.py says how each is."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import shlex
import subprocess
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path

import httpx
import pytest
from typer.main import get_command

from agent_server import Agent
from agent_server.agents.guard_model import load_guards
from agent_server.agents.loading import load_mcp_file
from agent_server.cli.evaluate import read_cases
from agent_server.cli.main import app
from agent_server.http.auth.keys_file import parse_keys
from agent_server.http.served_models import read_models_file
from events.parsing import machine
from tests.code_blocks import OWN_TESTS, ROOT, Block, all_blocks, blocks, counts, tried
from tests.server import scripted, serving

COMMENT = re.compile(r"\s+#.*$|^#.*$", re.MULTILINE)
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
ELSEWHERE = {
    "vllm": "another server's command, as its documentation has it",
    "vllm-router": "as its documentation has it",
    "ray": "as its documentation has it",
    "lm_eval": "the harness's own command; the page has the figures of a run",
    "python3": "makes an environment, or starts Dynamo or SGLang's router as their documentation has it",
    "npm": "run by tests/tutorials/copilotkit.test.mjs",
    "podman": "run by tests/images, with the images that `make images` builds",
    "cd": "a folder of the page's reader",
    "source": "a folder of the page's reader",
    "export": "a variable for the command behind it",
    ".venv/bin/pip": "run by tests/packaging/test_installed.py",
    "uvx": "run by tests/packaging/test_installed.py",
    "pip": "downloads a peer's sources, which its suite does as well",
}
"""Programs of which nothing is tried but that the shell can read their line, each with the reason."""
GENERIC = sorted(
    {block.page for block in all_blocks("python") if "/tutorials/" not in block.page and block.page not in OWN_TESTS}
)


def test_every_block_is_tried():
    print("\n" + "\n".join(counts()))
    assert [str(block) for block in all_blocks() if not tried(block)] == []


@pytest.mark.parametrize("page", GENERIC)
async def test_a_pages_python_runs_and_its_agents_answer(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_SERVER_STORE_URL", "memory")
    monkeypatch.setattr(machine, "READERS", copy.copy(machine.READERS))
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.code, str(block), "exec"), names)
            made = names.pop("agent", None)
            if isinstance(made, Agent) and not made.mcp_servers and not made.model:
                async with serving(scripted("Done."), agents=[made]) as server, httpx.AsyncClient(timeout=60) as client:
                    body = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "Hi"}]}
                    answer = await client.post(f"{server.url}/agui/{made.name}", json=body)
                assert '"RUN_FINISHED"' in answer.text


def commands(block: Block) -> list[list[str]]:
    """The commands of a block as words, without comments and variables before them."""
    lines = COMMENT.sub("", block.code).replace("\\\n", " ").splitlines()
    words = [shlex.split(line) for line in lines if line.strip()]
    return [list(dropwhile(ASSIGNMENT.fullmatch, each)) for each in words]


def refuse(arguments: list[str]) -> None:
    """Raise the command's own error where `agent-server` does not take these arguments."""
    name, command, context = "agent-server", get_command(app), None
    while True:
        context = command.make_context(name, arguments, parent=context, obj=None)
        if not hasattr(command, "resolve_command"):
            return
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("block", all_blocks("sh"), ids=str)
async def test_the_commands_of_a_block_are_ones_that_there_are(block: Block):
    await asyncio.to_thread(subprocess.run, ["bash", "-n"], input=block.code, text=True, check=True)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for program, *arguments in commands(block):
        match program:
            case ".venv/bin/agent-server" if "--version" not in arguments:
                refuse(arguments)
            case "make":
                for target in (each for each in arguments if "=" not in each):
                    assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), f"make help does not list {target}"
            case ".venv/bin/python" if arguments[0] == "-m":
                assert find_spec(arguments[1]), arguments[1]
                if arguments[1] == "pytest":
                    assert all((ROOT / each).exists() for each in arguments[2:])
            case ".venv/bin/python":
                assert (ROOT / arguments[0]).is_file(), arguments[0]
            case "curl":
                await asked(arguments)
            case ".venv/bin/agent-server":
                pass  # --version, which tests/packaging/test_installed.py asks for
            case _:
                assert program in ELSEWHERE, f"{program} is tried by nothing"


async def asked(arguments: list[str]) -> None:
    """Make curl's request of a server. What it names may be missing there; the route may not, and the body must fit."""
    method, headers, body, url = "", {}, None, ""
    values = iter(arguments)
    for each in values:
        match each:
            case "-X":
                method = next(values)
            case "-H":
                name, _, value = next(values).partition(": ")
                headers[name] = value.replace("$KEY", "secret")
            case "-d" | "--json":
                body = json.loads(next(values))
            case _:
                url = each
    if "/engine/" in url:  # a worker's, which tests/engines/worker asks
        return
    async with serving(scripted("Hi."), operator_keys=("secret",)) as server, httpx.AsyncClient(timeout=60) as client:
        where = re.sub(r"^(http://)?localhost:8000", server.url, url)
        answer = await client.request(method or ("POST" if body else "GET"), where, headers=headers, json=body)
    assert answer.status_code not in (401, 403, 405, 415, 422), answer.text
    assert "No route" not in answer.text


def test_a_command_that_there_is_not_is_found():
    with pytest.raises(Exception, match="No such option"):
        refuse(["serve", "--no-such-option"])


def test_the_files_that_pages_show_are_read(tmp_path: Path):
    def saved(page: str, language: str, name: str) -> Path:
        (block,) = [each for each in blocks(page) if each.language == language]
        (tmp_path / name).write_text(block.code)
        return tmp_path / name

    servers = load_mcp_file(saved("docs/agents.md", "json", "mcp.json"), {"HOME": "/home/ann", "TICKETS_TOKEN": "t"})
    assert [server.name for server in servers] == ["files", "tickets"]
    assert [case.id for case in read_cases(saved("docs/evaluation.md", "json", "cases.jsonl"))] == ["looks", "sends"]
    assert list(read_models_file(saved("docs/several-models.md", "toml", "m.toml"))) == ["small", "tuned", "large"]
    guards = load_guards([str(saved("docs/guardrails.md", "toml", "guards.toml"))], {"llama-guard": object()}, None)
    assert guards is not None
    (key,) = parse_keys(saved("docs/operating.md", "toml", "keys.toml").read_text())
    assert (key.tenant, key.runs) == ("acme", 4)


def test_the_proxy_that_the_page_shows_is_the_one_in_deploy():
    (block,) = all_blocks("nginx")
    ours = [line.strip() for line in (ROOT / "deploy" / "nginx.conf").read_text("utf-8").splitlines()]
    lines = [line.strip() for line in block.code.splitlines() if "proxy_pass" not in line]
    assert [line for line in lines if line not in ours] == []
