"""Surfaces built in Python."""

from __future__ import annotations

import pytest

from agent_server.agents.generative_ui import Component, Surface, bound, each, event
from agent_server.agents.generative_ui.operations import operations_in
from agent_server.agents.server_tools import result_content

FLIGHT = Component("Card", child=Component("Text", text=bound("price")))


def test_nested_components_become_a_flat_list_that_names_children_by_their_ids():
    surface = Surface(
        id="booking",
        root=Component(
            "Column",
            children=[
                Component("TextField", id="name", label="Name", value=bound("/form/name")),
                Component(
                    "Button", child=Component("Text", text="Book"), action=event("book", name=bound("/form/name"))
                ),
                Component("List", children=each(FLIGHT, "/flights")),
                Component("Tabs", tabs=[{"title": "One", "child": Component("Text", text="1")}]),
            ],
        ),
        data={"form": {"name": ""}, "flights": [{"price": 3}]},
    )
    assert surface.components() == [
        {"id": "root", "component": "Column", "children": ["name", "button-1", "list-2", "tabs-3"]},
        {"id": "name", "component": "TextField", "label": "Name", "value": {"path": "/form/name"}},
        {
            "id": "button-1",
            "component": "Button",
            "child": "text-4",
            "action": {"event": {"name": "book", "context": {"name": {"path": "/form/name"}}}},
        },
        {"id": "text-4", "component": "Text", "text": "Book"},
        {"id": "list-2", "component": "List", "children": {"componentId": "card-5", "path": "/flights"}},
        {"id": "card-5", "component": "Card", "child": "text-6"},
        {"id": "text-6", "component": "Text", "text": {"path": "price"}},
        {"id": "tabs-3", "component": "Tabs", "tabs": [{"title": "One", "child": "text-7"}]},
        {"id": "text-7", "component": "Text", "text": "1"},
    ]


def test_a_tool_s_result_holds_its_operations_and_the_page_s_catalog_is_put_in():
    surface = Surface(id="s", root=Component("Text", text="hi"), data={"a": 1})
    found = operations_in(result_content(surface), "mine")
    assert found == {
        "s": [
            {"version": "v0.9", "createSurface": {"surfaceId": "s", "catalogId": "mine"}},
            {
                "version": "v0.9",
                "updateComponents": {
                    "surfaceId": "s",
                    "components": [{"id": "root", "component": "Text", "text": "hi"}],
                },
            },
            {"version": "v0.9", "updateDataModel": {"surfaceId": "s", "path": "/", "value": {"a": 1}}},
        ]
    }
    own = Surface(id="s", root=Component("Text"), catalog_id="own")
    assert operations_in(result_content(own), "mine")["s"][0]["createSurface"]["catalogId"] == "own"


@pytest.mark.parametrize(
    "content",
    [
        "text",
        '{"a2ui_operations": 7}',
        '{"a2ui_operations": [{"beginRendering": {"surfaceId": "s"}}]}',
        '{"a2ui_operations": [{"createSurface": {"surfaceId": "s"}, "deleteSurface": {"surfaceId": "s"}}]}',
        '{"a2ui_operations": [{"createSurface": {}}, {"createSurface": []}, 3]}',
        '{"a2ui_operations": [',
        ["a2ui_operations"],
    ],
)
def test_what_clients_would_refuse_is_left_out(content):
    assert operations_in(content, "c") == {}


def test_two_components_of_one_id_are_refused():
    twins = Component("Column", children=[Component("Text", id="a"), Component("Text", id="a")])
    with pytest.raises(ValueError, match="two components have the id a"):
        Surface(id="s", root=twins)
