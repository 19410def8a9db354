"""Agents with more tools than their model's context has room for."""

from __future__ import annotations

import json

import pytest
from ag_ui.core import Tool as ToolDeclaration

from agent_server.agents import Agent, ToolLimits, tool
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_search import SEARCH_TOOLS, ToolIndex
from agent_server.runs.store import Store
from events.vocabulary import InterruptOutcome, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call

# Names and descriptions as the MCP servers for GitHub, Playwright and file systems declare them.
REAL = {
    "create_or_update_file": "Create or update a single file in a GitHub repository",
    "search_repositories": "Search for GitHub repositories",
    "create_repository": "Create a new GitHub repository in your account",
    "get_file_contents": "Get the contents of a file or directory from a GitHub repository",
    "push_files": "Push multiple files to a GitHub repository in a single commit",
    "create_issue": "Create a new issue in a GitHub repository",
    "create_pull_request": "Create a new pull request in a GitHub repository",
    "fork_repository": "Fork a GitHub repository to your account or specified organization",
    "create_branch": "Create a new branch in a GitHub repository",
    "list_commits": "Get list of commits of a branch in a GitHub repository",
    "list_issues": "List issues in a GitHub repository with filtering options",
    "merge_pull_request": "Merge a pull request",
    "browser_navigate": "Navigate to a URL",
    "browser_take_screenshot": "Take a screenshot of the current page.",
    "browser_click": "Perform click on a web page",
    "browser_press_key": "Press a key on the keyboard",
    "browser_tabs": "List, create, close, or select a browser tab.",
    "read_text_file": "Read the complete contents of a file from the file system as text.",
    "move_file": "Move or rename files and directories.",
    "directory_tree": "Get a recursive tree view of files and directories as a JSON structure.",
}
QUERIES = {
    "open an issue about the bug": "create_issue",
    "merge the PR, a pull request": "merge_pull_request",
    "rename a file": "move_file",
    "take a picture of the page (screenshot)": "browser_take_screenshot",
    "go to a web address (navigate to a url)": "browser_navigate",
    "listing the commits on a branch": "list_commits",
    "forking a repository": "fork_repository",
    "moveFile": "move_file",
    "directory_tree": "directory_tree",
}


def made(name: str, description: str, **more) -> Tool:
    def function(value: str) -> str:
        return f"{name} {value}"

    return tool(function, name=name, description=description + " (all of it, at length)" * 12, **more)


TOOLS = [made(name, text, requires_approval=name == "merge_pull_request") for name, text in REAL.items()]


def house(*scripts: str, context: int = 8192, **more) -> House:
    agent = Agent(name="default", tools=TOOLS)
    return House(agent, Model([*scripts, "Done."], context_length=context, grammars=True), Store("sqlite://"), **more)


@pytest.mark.parametrize(("query", "name"), QUERIES.items())
def test_a_search_has_the_tool_among_its_results(query, name):
    tools = [ToolDeclaration(name=each, description=text, parameters={}) for each, text in REAL.items()]
    assert name in [each.name for each in ToolIndex(tools).search(query)]


async def test_tools_beyond_the_context_s_share_are_searched_and_then_called_by_their_names():
    script = [call(SEARCH_TOOLS, query="new issue in a repository"), call("create_issue", value="x")]
    async with house(*script) as many:
        events = await many.ask("go")
        prompts = [each["tools"] for each in many.model.told]
    assert prompts == [[SEARCH_TOOLS]] * 3  # the beginning of the prompt stays the same, and stays cached
    results, answer = [each.content for each in of(events, ToolCallResult)]
    first = json.loads(results)[0]
    assert first["name"] == "create_issue" and first["parameters"]["required"] == ["value"]
    assert answer == "create_issue x"


async def test_a_tool_that_was_searched_is_approved_and_its_arguments_are_checked_as_any_other():
    script = [
        call(SEARCH_TOOLS, query="merge a pull request"),
        call("create_issue", valu=1),
        call("merge_pull_request", value="x"),
    ]
    async with house(*script) as many:
        events = await many.ask("go")
        (asked,) = events[-1].outcome.interrupts
        assert isinstance(events[-1].outcome, InterruptOutcome) and asked.metadata["toolName"] == "merge_pull_request"
        assert "Invalid arguments" in of(events, ToolCallResult)[1].content
        events = await many.resume({"interruptId": asked.id, "status": "resolved", "payload": {"approved": True}})
    assert [each.content for each in of(events, ToolCallResult)] == ["merge_pull_request x"]


async def test_a_search_without_a_result_says_what_to_do():
    async with house(call(SEARCH_TOOLS, query="zzz") + call(SEARCH_TOOLS, query="")) as many:
        events = await many.ask("go")
    nothing, empty = [each.content for each in of(events, ToolCallResult)]
    assert "No tool matches 'zzz'" in nothing and "query" in empty


@pytest.mark.parametrize(("context", "share"), [(131072, 0.25), (8192, 0.0)])
async def test_tools_that_fit_or_may_not_be_deferred_are_declared(context, share):
    async with house(context=context, limits=ToolLimits(context_share=share)) as many:
        await many.ask("go")
    assert many.model.told[0]["tools"] == list(REAL)
