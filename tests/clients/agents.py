"""Coding agents as their users start them: the real programs, each with a home, a project and a configuration of its own.

`agent-server connect` makes the configuration. They are in the folder that `CLIENTS_ENV` names, installed by `make
test-clients`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_server.cli.connect import CLIENTS

FOLDER = Path(os.environ.get("CLIENTS_ENV", ".clients")).absolute()
PACKAGES = {
    "codex": "@openai/codex", "claude": "@anthropic-ai/claude-code", "opencode": "opencode-ai",
    "qwen": "@qwen-code/qwen-code",
}  # fmt: skip
SECONDS = 90.0

Call = tuple[str, Mapping[str, object]]


@dataclass(frozen=True)
class CodingAgent:
    """arguments: of the program, for a prompt and for whether it goes on with the last session. edits: the calls that
    read the file, put `new` in the place of `old`, and show it."""

    name: str
    title: str
    wire: str
    arguments: Callable[[str, bool], list[str]]
    edits: Callable[[Path, str, str], list[Call]]

    @property
    def version(self) -> str:
        manifest = FOLDER / "node_modules" / PACKAGES[self.name] / "package.json"
        return str(json.loads(manifest.read_text("utf-8"))["version"]) if manifest.exists() else "not installed"


def _codex(prompt: str, goes_on: bool) -> list[str]:
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    return ["exec", *options, "resume", "--last", prompt] if goes_on else ["exec", *options, prompt]


def _claude(prompt: str, goes_on: bool) -> list[str]:
    options = ["--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions"]
    return [*(["--continue"] if goes_on else []), "-p", prompt, *options]


def _opencode(prompt: str, goes_on: bool) -> list[str]:
    return ["run", *(["--continue"] if goes_on else []), prompt]


def _qwen(prompt: str, goes_on: bool) -> list[str]:
    return [*(["--continue"] if goes_on else []), "--yolo", "--auth-type", "openai", "-p", prompt]


def _by_commands(file: Path, old: str, new: str) -> list[Call]:
    commands = (f"cat {file.name}", f"sed -i s/{old}/{new}/ {file.name}", f"cat {file.name}")
    return [("exec_command", {"cmd": command}) for command in commands]


AGENTS = {
    agent.name: agent
    for agent in (
        CodingAgent("codex", "Codex", "Responses", _codex, _by_commands),
        CodingAgent("claude", "Claude Code", "Messages", _claude, lambda file, old, new: [
            ("Read", {"file_path": str(file)}),
            ("Edit", {"file_path": str(file), "old_string": old, "new_string": new}),
            ("Bash", {"command": f"cat {file.name}", "description": "Show the file"}),
        ]),
        CodingAgent("opencode", "OpenCode", "Chat Completions", _opencode, lambda file, old, new: [
            ("read", {"filePath": str(file)}),
            ("edit", {"filePath": str(file), "oldString": old, "newString": new}),
            ("bash", {"command": f"cat {file.name}", "description": "Show the file"}),
        ]),
        CodingAgent("qwen", "Qwen Code", "Chat Completions", _qwen, lambda file, old, new: [
            ("read_file", {"file_path": str(file)}),
            ("edit", {"file_path": str(file), "old_string": old, "new_string": new}),
            ("run_shell_command", {"command": f"cat {file.name}", "is_background": False}),
        ]),
    )
}  # fmt: skip


class Session:
    """One agent in a project of its own, connected to a server."""

    def __init__(self, agent: CodingAgent, folder: Path, url: str, model: str) -> None:
        self.agent = agent
        self.project, self.home = folder / "project", folder / "home"
        self.project.mkdir(parents=True)
        self.home.mkdir()
        configuration = CLIENTS[agent.name](url, model, "")
        self.environment = {**os.environ, "HOME": str(self.home), "PWD": str(self.project), "IS_SANDBOX": "1"}
        self.environment |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        if agent.name in ("claude", "qwen"):
            lines = (shlex.split(line)[1] for line in configuration.splitlines())
            self.environment |= dict(line.split("=", 1) for line in lines)
        else:
            file = {
                "codex": self.home / ".codex" / "config.toml",
                "opencode": self.project / "opencode.json",
            }[agent.name]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(configuration, "utf-8")

    async def start(self, prompt: str, *, goes_on: bool = False) -> asyncio.subprocess.Process:
        program = FOLDER / "node_modules" / ".bin" / self.agent.name
        return await asyncio.create_subprocess_exec(
            program, *self.agent.arguments(prompt, goes_on), cwd=self.project, env=self.environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    async def run(self, prompt: str, *, goes_on: bool = False) -> str:
        """All that the agent prints until it ends by itself."""
        process = await self.start(prompt, goes_on=goes_on)
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.stdout is not None
            raise AssertionError(
                f"{self.agent.name} did not end: {(await process.stdout.read()).decode()[-2000:]}"
            ) from None
        return output.decode()
