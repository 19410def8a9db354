"""A2UI surfaces in a run: painted while they are written, mended by the model, answered by the user."""

from __future__ import annotations

import json

import pytest

from adapters import agui
from agent_server.agents import A2ui, Agent, tool
from agent_server.agents.generative_ui import Component, Surface
from agent_server.agents.generative_ui.catalog import BASIC
from agent_server.runs.store import Store
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    SuccessOutcome,
    TextMessageContent,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from tests.agents.generative_ui.pages import CONTEXT, DATA, FORM, LIST, PAGE
from tests.agents.harness import House, of
from tests.agents.models import Model, call

ROWS = {"items": [{"title": "one"}, {"title": "two"}]}
BROKEN = [{"id": "root", "component": "Card", "child": "gone"}]


def render(components, surface="s", **more) -> str:
    return call("render_a2ui", surfaceId=surface, components=components, **more)


def kinds(activity) -> list[str]:
    """What an activity holds, in words: its status, or the operations it paints."""
    content = activity.content
    if "status" in content:
        return [content["status"]]
    return [key for operation in content["a2ui_operations"] for key in operation if key != "version"]


def painted(events) -> list[list[str]]:
    return [kinds(each) for each in of(events, ActivitySnapshot) if each.content.get("progressTokens") is None]


async def talk(scripts, *asks, agent=None, store=None):
    model = Model(scripts)
    async with House(agent or Agent(name="default"), model, store) as house:
        answers = [await house.ask("go", **ask) for ask in asks or [PAGE]]
        stored = await store.messages("", "t") if store is not None else []
    return model, answers, stored


async def test_a_surface_stands_before_its_call_has_ended():
    _, (events,), stored = await talk([render(LIST, data=ROWS), "There."], store=Store("sqlite://"))
    shown = of(events, ActivitySnapshot)
    assert {(each.activity_type, each.replace) for each in shown} == {("a2ui-surface", True)}
    (start,) = {each.message_id for each in shown}
    assert painted(events) == [
        ["building"],
        ["createSurface", "updateComponents"],
        ["createSurface", "updateComponents", "updateDataModel"],
        ["createSurface", "updateComponents", "updateDataModel"],
    ]
    values = [each.content["a2ui_operations"][-1]["updateDataModel"]["value"] for each in shown[-2:]]
    assert values == [{"items": ROWS["items"][:1]}, ROWS]
    first = next(each for each in shown if "a2ui_operations" in each.content)
    end = next(each for each in events if isinstance(each, ToolCallEnd))
    assert events.index(first) < events.index(end)
    assert sum(isinstance(each, ToolCallArgs) for each in events[events.index(first) :]) > 5
    assert start == f"a2ui-surface-{end.tool_call_id}"
    assert first.content["a2ui_operations"][0] == {
        "version": "v0.9", "createSurface": {"surfaceId": "s", "catalogId": BASIC},
    }  # fmt: skip
    (result,) = of(events, ToolCallResult)
    assert json.loads(result.content) == {"status": "rendered"}
    assert [each["role"] for each in stored] == ["user", "assistant", "tool", "activity", "assistant"]
    assert stored[3]["content"] == shown[-1].content and stored[3]["id"] == start


async def test_the_tool_is_declared_to_those_alone_who_show_surfaces():
    without = {"context": [{"description": "weather", "value": "rain"}]}
    model, _, _ = await talk(["a", "b", "c"], without, PAGE, {"forwardedProps": {"a2uiCatalogAvailable": True}})
    assert [each["tools"] for each in model.told] == [[], ["render_a2ui"], ["render_a2ui"]]
    model, _, _ = await talk(["a"], agent=Agent(name="default", a2ui=False))
    assert model.told[0]["tools"] == []
    own = {"name": "render_a2ui", "description": "the page's own", "parameters": {}}
    _, (events,), _ = await talk([render(FORM)], {**PAGE, "tools": [own]})
    assert not of(events, ActivitySnapshot) and isinstance(events[-1].outcome, SuccessOutcome)
    assert len(events[-1].outcome.pending_tool_call_ids) == 1


async def test_the_model_is_not_told_the_catalog_twice(monkeypatch):
    seen = []
    model = Model(["ok"])
    build = model.prompts.build_async

    async def watching(input, options, instructions=None, *, fits=True):
        seen.append(input)
        return await build(input, options, instructions)

    monkeypatch.setattr(model.prompts, "build_async", watching)
    async with House(Agent(name="default"), model) as house:
        await house.ask("go", context=[*CONTEXT, {"description": "weather", "value": "rain"}])
    assert [each.description for each in seen[0].context] == ["weather"]
    assert "componentTextField" in seen[0].tools[0].parameters["$defs"]


async def test_the_agent_s_catalog_goes_before_the_page_s():
    agent = Agent(name="default", a2ui=A2ui(catalog_id="mine"))
    _, (events,), _ = await talk([render(FORM, data=DATA), "ok"], agent=agent)
    last = of(events, ActivitySnapshot)[-1]
    assert last.content["a2ui_operations"][0]["createSurface"]["catalogId"] == "mine"


async def test_the_model_is_told_what_is_wrong_and_mends_it_in_the_same_place():
    scripts = [render(BROKEN), render(FORM), render(FORM, data=DATA), "There."]
    model, (events,), stored = await talk(scripts, store=Store("sqlite://"))
    shown = of(events, ActivitySnapshot)
    assert len({each.message_id for each in shown}) == 1
    states = [each for each in painted(events) if each]
    assert states[0] == ["building"] and states[-1] == ["createSurface", "updateComponents", "updateDataModel"]
    retrying = [each.content for each in shown if each.content.get("status") == "retrying"]
    assert [(each["attempt"], each["maxAttempts"]) for each in retrying] == [(2, 3), (3, 3)]
    assert retrying[0]["errors"][0]["code"] == "unresolved_child"
    assert retrying[1]["errors"][0]["code"] == "unresolved_binding"
    results = of(events, ToolCallResult)
    assert (
        "'gone' does not match any component id" in results[0].content
        and "Call render_a2ui again" in results[0].content
    )
    assert results[0].metadata == {"isError": True} and json.loads(results[2].content) == {"status": "rendered"}
    assert any("gone" in str(each.get("content")) for each in model.told[1]["messages"])
    assert [each["role"] for each in stored].count("activity") == 1


async def test_after_three_attempts_the_surface_has_failed_and_the_model_answers_in_words():
    scripts = [render(BROKEN), render(BROKEN), '<tool_call>\n{"name": "render_a2ui", "arguments": {"surfaceId": 3}}\n</tool_call>', "Sorry."]  # fmt: skip
    _, (events,), stored = await talk(scripts, store=Store("sqlite://"))
    assert painted(events)[-1] == ["failed"]
    assert of(events, ActivitySnapshot)[-1].content["attempts"] == 3
    assert "Do not try again" in of(events, ToolCallResult)[-1].content
    (activity,) = [each for each in stored if each["role"] == "activity"]
    assert activity["content"]["status"] == "failed"


async def test_two_surfaces_of_one_turn_are_two_activities():
    _, (events,), stored = await talk(
        [render(FORM, "a", data=DATA) + render(LIST, "b", data=ROWS), "Both."], store=Store("sqlite://")
    )
    assert len({each.message_id for each in of(events, ActivitySnapshot)}) == 2
    assert [each["role"] for each in stored] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "activity",
        "activity",
        "assistant",
    ]


async def test_properties_of_another_type_than_the_catalog_s_are_told():
    wrong = [{**FORM[3], "id": "root", "text": 7}]
    _, (events,), _ = await talk([render(wrong), "Sorry."])
    assert "components[0].text" in of(events, ToolCallResult)[0].content
    assert painted(events)[-1] == ["failed"]


async def test_a_call_that_breaks_off_leaves_no_surface_under_construction():
    broken = render(FORM, data=DATA)[:-60]
    _, (events,), _ = await talk([broken, "Sorry."])
    last = of(events, ActivitySnapshot)[-1]
    assert "a2ui_operations" in last.content or last.content["status"] == "failed"
    begun = render(FORM, data=DATA)[:80]
    _, (events,), _ = await talk([begun, "Sorry."])
    assert kinds(of(events, ActivitySnapshot)[-1]) == ["failed"]


async def test_a_run_that_is_stopped_leaves_no_surface_under_construction():
    from agent_server.engines.scripted import Script

    model = Model([Script(text=render(FORM, data=DATA), delay=0.05)])
    async with House(Agent(name="default"), model, Store("sqlite://")) as house:
        run = await house.start("go", **PAGE)
        async for _, event in run.events():
            if isinstance(event, ActivitySnapshot):
                await run.cancel()
                break
        events = await house.follow(run)
        stored = await house.store.messages("", "t")
    assert kinds(of(events, ActivitySnapshot)[-1]) == ["failed"]
    assert [each["content"]["status"] for each in stored if each["role"] == "activity"] == ["failed"]


@tool
def flights() -> Surface:
    """Flights."""
    return Surface(id="flights", root=Component("Text", text="OSL-BER"))


@tool
def both() -> str:
    """Two surfaces."""
    made = [*Surface(id="a", root=Component("Text", text="1")).operations(), *Surface(id="b", root=Component("Text", text="2")).operations()]  # fmt: skip
    return json.dumps({"a2ui_operations": made})


async def test_any_tool_s_operations_are_painted_behind_its_result():
    agent = Agent(name="default", tools=[flights, both])
    _, (events,), stored = await talk(
        [call("flights") + call("both"), "There."], {}, agent=agent, store=Store("sqlite://")
    )
    results = {each.tool_call_id: events.index(each) for each in of(events, ToolCallResult)}
    one, *two = sorted(of(events, ActivitySnapshot), key=lambda each: len(each.message_id))
    call_id = one.message_id.removeprefix("a2ui-surface-")
    assert events.index(one) > results[call_id]
    assert [each["version"] for each in one.content["a2ui_operations"]] == ["v0.9", "v0.9"]
    assert one.content["a2ui_operations"][0]["createSurface"]["catalogId"] == BASIC
    (other,) = results.keys() - {call_id}
    assert {each.message_id for each in two} == {f"a2ui-surface-a-{other}", f"a2ui-surface-b-{other}"}
    assert [each["role"] for each in stored].count("activity") == 3


async def test_progress_is_told_before_the_first_paint():
    padded = [{**FORM[0], "children": ["name", "send"]}, *FORM[1:3], {**FORM[3], "text": "Book " * 100}]
    _, (events,), _ = await talk([render(padded, data=DATA), "ok"])
    tokens = [
        each.content["progressTokens"] for each in of(events, ActivitySnapshot) if "progressTokens" in each.content
    ]
    assert len(tokens) > 3 and tokens == sorted(tokens)


async def test_other_tools_and_words_pass_as_they_were():
    _, (events,), _ = await talk(["Just words."])
    assert "".join(each.delta for each in of(events, TextMessageContent)) == "Just words."
    assert not of(events, ActivitySnapshot)


def test_attempts_are_the_agent_s_to_set():
    with pytest.raises(TypeError):
        A2ui(attempt=3)
    assert Agent(name="a", a2ui=True).announces_a2ui and not Agent(name="a").announces_a2ui
    assert not Agent(name="a", a2ui=A2ui(announce=False)).announces_a2ui


async def test_an_action_is_answered_and_both_stay_with_the_thread():
    action = {"name": "book", "surfaceId": "s", "sourceComponentId": "send", "context": {"name": "Ada"}}
    model = Model([render(FORM, data=DATA), "Fill it in.", "Booked for Ada."])
    async with House(Agent(name="default"), model, Store("sqlite://")) as house:
        await house.ask("go", **PAGE)
        wire = house.input(**PAGE).model_dump(mode="json", by_alias=True)
        wire["forwardedProps"]["a2uiAction"] = {"userAction": action}
        acted = agui.from_wire({key: value for key, value in wire.items() if value is not None})
        events = await house.follow(await house.manager.start(acted.input, house.options))
        stored = await house.store.messages("", "t")
    assert "".join(each.delta for each in of(events, TextMessageContent)) == "Booked for Ada."
    assert [each["role"] for each in stored] == [
        "user", "assistant", "tool", "activity", "assistant", "assistant", "tool", "assistant",
    ]  # fmt: skip
    told = model.told[-1]["messages"]
    assert told[-1]["content"].startswith('User performed action "book"') and told[-2]["toolCalls"]


SANDBOX = {"name": "generateSandboxedUi", "description": "the page's sandbox", "parameters": {}}


async def test_a_page_s_own_sandbox_is_mirrored_while_its_call_is_written_and_kept():
    written = call("generateSandboxedUi", initialHeight=99, css="p{}", html="<p>Hello</p>", jsExpressions=["f()"])
    _, (events,), stored = await talk([written], {"tools": [SANDBOX]}, store=Store("sqlite://"))
    (snapshot,), deltas = of(events, ActivitySnapshot), of(events, ActivityDelta)
    start, end = (next(each for each in events if isinstance(each, kind)) for kind in (ToolCallStart, ToolCallEnd))
    assert events.index(snapshot) < events.index(start) and snapshot.content == {"generating": True}
    assert snapshot.message_id == f"{start.tool_call_id}-activity" and snapshot.activity_type == "open-generative-ui"
    assert len([each for each in deltas if events.index(each) < events.index(end)]) > 5
    assert deltas[-1].patch == [{"op": "add", "path": "/generating", "value": False}]
    (activity,) = [each for each in stored if each["role"] == "activity"]
    assert "".join(activity["content"]["html"]) == "<p>Hello</p>" and activity["content"]["generating"] is False
    assert isinstance(events[-1].outcome, SuccessOutcome) and events[-1].outcome.pending_tool_call_ids
    _, (events,), _ = await talk([written, "ok"], {"tools": []})
    assert not of(events, ActivitySnapshot)
