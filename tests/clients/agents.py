"""Coding agents as their users start them: the real programs, each with a home, a project and a configuration of its own.

`agent-server connect` makes the configuration. They are in the folder that `CLIENTS_ENV` names, installed by `make
test-clients`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from agent_server.cli.connect import CLIENTS, Target

FOLDER = Path(os.environ.get("CLIENTS_ENV", ".clients")).absolute()
PAINT = str(Path(__file__).with_name("paint_server.py"))
"""An MCP server with one tool, `mix`."""
MIX = "mcp__paint__mix"
SECONDS = float(os.environ.get("CLIENTS_SECONDS", "90"))
"""How long a program may take for one prompt."""

Call = tuple[str, Mapping[str, object]]


@dataclass(frozen=True)
class CodingAgent:
    """arguments: of the program, for a prompt and for whether it goes on with the last session. edits: the calls that
    read the file, put `new` in the place of `old`, and show it. shell: the call that runs a command. picture: the call
    that reads a picture. search: the calls that find the tool `mix`, which is not declared, and call it; none if the
    agent has no such search. lacks: why columns of the matrix have no test. program: its file, if that is not its name."""

    name: str
    title: str
    package: str
    wire: str
    arguments: Callable[[str, bool], list[str]]
    edits: Callable[[Path, str, str], list[Call]]
    shell: Callable[[str], Call]
    picture: Callable[[Path], Call]
    search: tuple[Call, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    program: str = ""

    @property
    def version(self) -> str:
        manifest = FOLDER / "node_modules" / self.package / "package.json"
        return str(json.loads(manifest.read_text("utf-8"))["version"]) if manifest.exists() else "not installed"


def _codex(prompt: str, goes_on: bool) -> list[str]:
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    return ["exec", *options, "resume", "--last", prompt] if goes_on else ["exec", *options, prompt]


def _claude(prompt: str, goes_on: bool) -> list[str]:
    options = ["--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions"]
    return [*(["--continue"] if goes_on else []), "-p", prompt, *options]


def _copilot(prompt: str, goes_on: bool) -> list[str]:
    options = ["--allow-all-tools", "--allow-all-paths", "--disable-client-telemetry", "--no-color"]
    return [*(["--continue"] if goes_on else []), "-p", prompt, *options]


def _opencode(prompt: str, goes_on: bool) -> list[str]:
    return ["run", *(["--continue"] if goes_on else []), prompt]


def _qwen(prompt: str, goes_on: bool) -> list[str]:
    return [*(["--continue"] if goes_on else []), "--yolo", "-p", prompt]


def _pi(prompt: str, goes_on: bool) -> list[str]:
    return [*(["--continue"] if goes_on else []), "--offline", "-p", prompt]


def _cline(prompt: str, goes_on: bool) -> list[str]:
    return ["--auto-approve", "true", prompt]


def _continue(prompt: str, goes_on: bool) -> list[str]:
    return [*(["--resume"] if goes_on else []), "--auto", "-p", prompt]


def _kilo(prompt: str, goes_on: bool) -> list[str]:
    return ["run", "--auto", *(["--continue"] if goes_on else []), prompt]


def _kimi(prompt: str, goes_on: bool) -> list[str]:
    return [*(["--continue"] if goes_on else []), "--prompt", prompt]


def _bash(command: str) -> Call:
    return "Bash", {"command": command, "description": "Run a command", "timeout": 120_000}


_OPENCODE = CodingAgent(
    "opencode", "OpenCode", "opencode-ai", "Chat Completions", _opencode,
    edits=lambda file, old, new: [
        ("read", {"filePath": str(file)}),
        ("edit", {"filePath": str(file), "oldString": old, "newString": new}),
        ("bash", {"command": f"cat {file.name}", "description": "Show the file"}),
    ],
    shell=lambda command: ("bash", {"command": command, "description": "Run a command"}),
    picture=lambda file: ("read", {"filePath": str(file)}),
    lacks={"tool search": "has none"},
)  # fmt: skip

AGENTS = {
    agent.name: agent
    for agent in (
        CodingAgent(
            "codex", "Codex", "@openai/codex", "Responses", _codex,
            edits=lambda file, old, new: [
                ("exec_command", {"cmd": command})
                for command in (f"cat {file.name}", f"sed -i s/{old}/{new}/ {file.name}", f"cat {file.name}")
            ],
            shell=lambda command: ("exec_command", {"cmd": command, "yield_time_ms": 120_000}),
            picture=lambda file: ("view_image", {"path": str(file)}),
            search=(("tool_search", {"query": "mix two colours"}), (MIX, {"one": "red", "other": "blue"})),
        ),
        CodingAgent(
            "claude", "Claude Code", "@anthropic-ai/claude-code", "Messages", _claude,
            edits=lambda file, old, new: [
                ("Read", {"file_path": str(file)}),
                ("Edit", {"file_path": str(file), "old_string": old, "new_string": new}),
                _bash(f"cat {file.name}"),
            ],
            shell=_bash,
            picture=lambda file: ("Read", {"file_path": str(file)}),
            search=(("ToolSearch", {"query": f"select:{MIX}"}), (MIX, {"one": "red", "other": "blue"})),
        ),
        CodingAgent(
            "copilot", "GitHub Copilot CLI", "@github/copilot", "Chat Completions", _copilot,
            edits=lambda file, old, new: [
                ("view", {"path": str(file)}),
                ("edit", {"path": str(file), "old_str": old, "new_str": new}),
                ("bash", {"command": f"cat {file.name}", "description": "Show the file"}),
            ],
            shell=lambda command: ("bash", {"command": command, "description": "Run a command", "initial_wait": 120}),
            picture=lambda file: ("view", {"path": str(file)}),
            lacks={"tool search": "has none", "image": "sends none"},
        ),
        _OPENCODE,
        replace(_OPENCODE, name="kilo", title="Kilo Code", package="@kilocode/cli", arguments=_kilo),
        CodingAgent(
            "qwen", "Qwen Code", "@qwen-code/qwen-code", "Chat Completions", _qwen,
            edits=lambda file, old, new: [
                ("read_file", {"file_path": str(file)}),
                ("edit", {"file_path": str(file), "old_string": old, "new_string": new}),
                ("run_shell_command", {"command": f"cat {file.name}", "is_background": False}),
            ],
            shell=lambda command: ("run_shell_command", {"command": command, "is_background": False}),
            picture=lambda file: ("read_file", {"file_path": str(file)}),
            search=(
                ("tool_search", {"query": f"select:{MIX}"}),
                ("tool_call", {"name": MIX, "arguments": {"one": "red", "other": "blue"}}),
            ),
        ),
        CodingAgent(
            "pi", "pi", "@earendil-works/pi-coding-agent", "Chat Completions", _pi,
            edits=lambda file, old, new: [
                ("read", {"path": str(file)}),
                ("edit", {"path": str(file), "edits": [{"oldText": old, "newText": new}]}),
                ("bash", {"command": f"cat {file.name}"}),
            ],
            shell=lambda command: ("bash", {"command": command}),
            picture=lambda file: ("read", {"path": str(file)}),
            search=(("tool_search", {"query": "mix"}), (MIX, {"one": "red", "other": "blue"})),
        ),
        CodingAgent(
            "kimi", "Kimi Code", "@moonshot-ai/kimi-code", "Chat Completions", _kimi,
            edits=lambda file, old, new: [
                ("Read", {"path": str(file)}),
                ("Edit", {"path": str(file), "old_string": old, "new_string": new}),
                ("Bash", {"command": f"cat {file.name}"}),
            ],
            shell=lambda command: ("Bash", {"command": command, "timeout": 120}),
            picture=lambda file: ("ReadMediaFile", {"path": str(file)}),
            lacks={"tool search": "has none"},
        ),
        CodingAgent(
            "cline", "Cline", "cline", "Chat Completions", _cline,
            edits=lambda file, old, new: [
                ("read_files", {"files": [{"path": str(file)}]}),
                ("editor", {"path": str(file), "old_text": old, "new_text": new}),
                ("run_commands", {"commands": [f"cat {file.name}"]}),
            ],
            shell=lambda command: ("run_commands", {"commands": [command]}),
            picture=lambda file: ("read_files", {"files": [{"path": str(file)}]}),
            lacks={"tool search": "has none", "resume": "needs a terminal"},
        ),
        CodingAgent(
            "continue", "Continue", "@continuedev/cli", "Chat Completions", _continue, program="cn",
            edits=lambda file, old, new: [
                ("Read", {"filepath": str(file)}),
                ("Edit", {"file_path": str(file), "old_string": old, "new_string": new}),
                ("Bash", {"command": f"cat {file.name}"}),
            ],
            shell=lambda command: ("Bash", {"command": command}),
            picture=lambda file: ("Read", {"filepath": str(file)}),
            lacks={"tool search": "has none", "image": "reads text alone"},
        ),
    )
}  # fmt: skip


class Session:
    """One agent in a project of its own, connected to a server. paint: give it the MCP server with the tool `mix`."""

    def __init__(self, agent: CodingAgent, folder: Path, target: Target, *, paint: bool = False) -> None:
        self.agent = agent
        self.target = target
        self.project, self.home = folder / "project", folder / "home"
        self.project.mkdir(parents=True)
        self.home.mkdir()
        self.more: list[str] = []
        configuration = CLIENTS[agent.name](target)
        self.environment = {**os.environ, "HOME": str(self.home), "PWD": str(self.project), "IS_SANDBOX": "1"}
        self.environment["PATH"] = f"{FOLDER / 'node_modules' / '.bin'}:{os.environ['PATH']}"  # has Node 22
        self.environment |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
        self.environment |= {"CLINE_NO_AUTO_UPDATE": "1", "CLINE_TELEMETRY_DISABLED": "1"}
        self.environment |= {"COPILOT_AUTO_UPDATE": "false"}
        self.painter = folder / "painter"
        server = {"command": sys.executable, "args": [PAINT, str(self.painter)]}
        match agent.name:
            case "codex":
                if paint:  # Codex searches only for models whose entry in its catalogue says so
                    self._write(folder / "models.json", json.dumps({"models": [self._catalogued(target)]}))
                    configuration = f"model_catalog_json = {json.dumps(str(folder / 'models.json'))}\n{configuration}"
                    configuration += f"\n[mcp_servers.paint]\ncommand = {json.dumps(sys.executable)}\n"
                    configuration += f"args = {json.dumps(server['args'])}\n"
                    configuration += "\n[features]\ntool_search_always_defer_mcp_tools = true\n"
                self._write(self.home / ".codex" / "config.toml", configuration)
            case "claude" | "copilot":
                lines = (shlex.split(line)[1] for line in configuration.splitlines())
                self.environment |= dict(line.split("=", 1) for line in lines)
                if paint:
                    self._write(folder / "mcp.json", json.dumps({"mcpServers": {"paint": server}}))
                    self.more = ["--mcp-config", str(folder / "mcp.json")]
                    self.environment["ENABLE_TOOL_SEARCH"] = "true"
            case "opencode":
                self._write(self.project / "opencode.json", configuration)
            case "kilo":
                self._write(self.project / "kilo.json", configuration)
            case "continue":
                self._write(self.home / ".continue" / "config.yaml", configuration)
            case "kimi":
                self._write(self.home / ".kimi-code" / "config.toml", configuration)
            case "qwen":
                settings = json.loads(configuration) | ({"mcpServers": {"paint": server}} if paint else {})
                self._write(self.home / ".qwen" / "settings.json", json.dumps(settings))
            case "pi":
                self.more = ["--model", f"agent-server/{target.model}"]
                self._write(self.home / ".pi" / "agent" / "models.json", configuration)
                if paint:
                    servers = {"paint": {**server, "exposure": "deferred"}}
                    self._write(self.home / ".pi" / "agent" / "mcp.json", json.dumps({"mcpServers": servers}))

    def _catalogued(self, target: Target) -> dict[str, object]:
        return {
            "slug": target.model, "display_name": target.model, "description": "", "visibility": "list", "priority": 1,
            "supported_in_api": True, "supported_reasoning_levels": [], "supports_reasoning_summaries": False,
            "support_verbosity": False, "supports_parallel_tool_calls": False, "supports_search_tool": True,
            "shell_type": "unified_exec", "experimental_supported_tools": [], "input_modalities": ["text", "image"],
            "truncation_policy": {"mode": "tokens", "limit": 10_000}, "context_window": target.context,
            "base_instructions": "You are a coding agent.",
        }  # fmt: skip

    def _write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    @property
    def when_paint_is_there(self) -> Call:
        """A command that waits until the agent knows the tool `mix`."""
        return self.agent.shell(f"until test -e {self.painter}; do sleep 0.1; done; sleep 2")

    async def start(self, prompt: str, *, goes_on: bool = False) -> asyncio.subprocess.Process:
        if self.agent.name == "cline":
            # It keeps its provider, and continues a session by its id.
            before = (
                ["history", "--json", "--limit", "1"] if goes_on else shlex.split(CLIENTS["cline"](self.target))[1:]
            )
            output, _ = await (await self._execute(*before)).communicate()
            self.more = ["--id", json.loads(output)[0]["sessionId"]] if goes_on else []
        return await self._execute(*self.more, *self.agent.arguments(prompt, goes_on))

    async def _execute(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            FOLDER / "node_modules" / ".bin" / (self.agent.program or self.agent.name), *arguments, cwd=self.project, env=self.environment,
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

    def close(self) -> None:
        """End what the agent has left running, such as Cline's hub."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home):
                    process.kill()

    async def interrupt(self, process: asyncio.subprocess.Process) -> None:
        """Press Ctrl-C, and wait until the program has ended."""
        os.killpg(process.pid, signal.SIGINT)
        try:
            await asyncio.wait_for(process.communicate(), 20)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
