"""A2UI 1.0 for pages that say they take it: the same surfaces, painted in the same steps, in its messages."""

from __future__ import annotations

import json
from typing import Any

from agent_server.agents import Agent, tool
from agent_server.agents.generative_ui import Component, Surface, bound
from agent_server.agents.generative_ui.catalog import BASIC
from agent_server.agents.generative_ui.operations import NEWER_BASIC, in_version, renderer_catalog, version_of
from agent_server.runs.store import Store
from events.vocabulary import ActivitySnapshot
from tests.agents.generative_ui.pages import CONTEXT, LIST
from tests.agents.harness import House, of
from tests.agents.models import Model, call

ROWS = {"items": [{"title": "one"}, {"title": "two"}]}
FIXED = {"version": "v1.0", "createSurface": {"surfaceId": "s", "catalogId": BASIC}}


def page(**told: Any) -> dict[str, Any]:
    return {"a2uiRendererCapabilities": {"v1.0": {"supportedCatalogIds": ["mine"], **told}}}


async def painted(scripts: list[str], agent: Agent | None = None, **ask: Any) -> tuple[list[dict[str, Any]], Any]:
    """What the activities held, one after the other, and what is stored of the last one."""
    store = Store("sqlite://")
    async with House(agent or Agent(name="default"), Model(scripts), store) as house:
        events = await house.ask("go", **ask)
        (kept,) = [each["content"] for each in await store.messages("", "t") if each["role"] == "activity"]
    shown = [each.content for each in of(events, ActivitySnapshot) if "progressTokens" not in each.content]
    return shown, kept


def components(given: list[dict[str, Any]]) -> dict[str, Any]:
    return {"version": "v1.0", "updateComponents": {"surfaceId": "s", "components": given}}


def data(value: object) -> dict[str, Any]:
    return {"version": "v1.0", "updateDataModel": {"surfaceId": "s", "path": "/", "value": value}}


async def test_a_surface_is_painted_while_it_is_written() -> None:
    said = call("render_a2ui", surfaceId="s", components=LIST, data=ROWS)
    shown, kept = await painted([said, "There."], context=CONTEXT, forwardedProps=page())
    assert shown == [
        {"status": "building"},
        {"a2ui_operations": [FIXED, components(LIST)]},
        {"a2ui_operations": [FIXED, components(LIST), data({"items": ROWS["items"][:1]})]},
        {"a2ui_operations": [FIXED, components(LIST), data(ROWS)]},
    ]
    assert kept == shown[-1]


@tool
def flights() -> Surface:
    """Flights."""
    return Surface(id="s", root=Component("Text", text=bound("/from")), data={"from": "OSL"})


@tool
def newer() -> str:
    """A surface as 1.0 may write it."""
    body = {"surfaceId": "s", "components": LIST, "dataModel": ROWS}
    return json.dumps({"a2ui_operations": [{"version": "v1.0", "createSurface": body}]})


async def test_a_tool_s_surface_names_the_page_s_catalog() -> None:
    agent = Agent(name="default", tools=[flights, newer])
    shown, _ = await painted([call("flights"), "There."], agent, forwardedProps=page())
    text = {"id": "root", "component": "Text", "text": {"path": "/from"}}
    opened = {"version": "v1.0", "createSurface": {"surfaceId": "s", "catalogId": "mine"}}
    assert shown == [{"a2ui_operations": [opened, components([text]), data({"from": "OSL"})]}]
    shown, _ = await painted([call("newer"), "There."], agent, forwardedProps=page())
    assert shown == [{"a2ui_operations": [opened, components(LIST), data(ROWS)]}]
    shown, _ = await painted([call("newer"), "There."], agent)
    older = [{**each, "version": "v0.9"} for each in (FIXED, components(LIST), data(ROWS))]
    assert shown == [{"a2ui_operations": older}]


def test_what_1_0_has_no_more_is_left_out() -> None:
    check = {"condition": {"call": "required", "args": {"value": {"path": "/a"}}, "returnType": "boolean"}}
    field = {"id": "root", "component": "TextField", "checks": [check], "returnType": "kept"}
    given = [
        {"version": "v0.9", "createSurface": {"surfaceId": "s", "catalogId": "c", "theme": {"primaryColor": "#fff"}}},
        {"version": "v0.9", "updateComponents": {"surfaceId": "s", "components": [field]}},
        {"version": "v0.9", "updateDataModel": {"surfaceId": "s", "path": "/a"}},
        {"version": "v0.9", "deleteSurface": {"surfaceId": "s"}},
    ]
    bare = {"condition": {"call": "required", "args": {"value": {"path": "/a"}}}}
    assert in_version(given, "v1.0") == [
        {"version": "v1.0", "createSurface": {"surfaceId": "s", "catalogId": "c"}},
        components([{**field, "checks": [bare]}]),
        {"version": "v1.0", "updateDataModel": {"value": None, "surfaceId": "s", "path": "/a"}},
        {"version": "v1.0", "deleteSurface": {"surfaceId": "s"}},
    ]
    assert in_version(given, "v0.9") == given


def test_a_page_says_which_version_and_which_catalog_it_has() -> None:
    assert version_of(page()) == "v1.0" and renderer_catalog(page()) is not None
    for props in (None, {}, {"a2uiRendererCapabilities": 3}, {"a2uiRendererCapabilities": {"1.1": {}, "v1.0": []}}):
        assert version_of(props) == "v0.9" and renderer_catalog(props) is None
    none = renderer_catalog({"a2uiRendererCapabilities": {"v1.0": {"supportedCatalogIds": 1}}})
    assert none is not None and none.id == NEWER_BASIC
    broken = {"A": {"allOf": 1}, "B": {"properties": [], "required": 3}, "C": 1}
    assert renderer_catalog(page(inlineCatalogs=[{"catalogId": "own", "components": broken}])) is not None
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    inline = renderer_catalog(page(inlineCatalogs=[{"catalogId": "own", "components": {"Text": text}}]))
    assert inline is not None and inline.id == "own" and inline.components["Text"]["required"] == [
        "id", "component", "text",
    ]  # fmt: skip
