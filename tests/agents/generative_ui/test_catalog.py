"""A page's catalog, as the model is told it and as a grammar holds it to it."""

from __future__ import annotations

import json

import llguidance
import llguidance.hf
import pytest
from ag_ui.core import Context
from transformers import PreTrainedTokenizerFast

from agent_server.agents.generative_ui.catalog import BASIC, Catalog, catalog_in
from agent_server.http.server import BUNDLED
from events.grammar.lint import prepare
from tests.agents.generative_ui.pages import CONTEXT, DATA, FORM, LIST

SCHEMA = CONTEXT[0]["description"]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    found = catalog_in([Context(**each) for each in CONTEXT])
    assert found is not None
    return found


@pytest.fixture(scope="module")
def admits(catalog):
    """Whether the grammar lets a call be written."""
    tokens = llguidance.hf.from_tokenizer(PreTrainedTokenizerFast(tokenizer_file=str(BUNDLED / "tokenizer.json")))
    grammar = llguidance.grammar_from("json_schema", json.dumps(prepare(catalog.parameters()).schema))

    def check(components, **more) -> bool:
        ids = tokens.tokenize_str(json.dumps({"surfaceId": "s", "components": components, **more}))
        return llguidance.LLMatcher(tokens, grammar).validate_tokens(ids) == len(ids)

    return check


def test_the_catalog_is_the_page_s(catalog):
    assert catalog.id == BASIC
    assert list(catalog.components) == ["Text", "Column", "List", "Card", "Button", "TextField"]
    assert {"DataBinding", "DynamicString", "Action"} <= set(catalog.shared)
    assert list(catalog.components["TextField"]["properties"])[:2] == ["id", "component"]
    assert catalog.components["TextField"]["required"] == ["id", "component", "label"]
    assert len(json.dumps(catalog.parameters())) < len(CONTEXT[0]["value"])


@pytest.mark.parametrize(
    ("change", "admitted"),
    [
        ({}, True),
        ({0: {"id": "top"}}, False),
        ({1: {"component": "Textfield"}}, False),
        ({1: {"placeholder": "?"}}, False),
        ({1: {"label": 3}}, False),
        ({2: {"action": "book"}}, False),
        ({3: {"text": {"path": "/form/name"}}}, True),
    ],
)
def test_a_call_that_is_held_to_the_grammar_names_the_catalog_s_components_alone(admits, change, admitted):
    components = [{**each, **change.get(index, {})} for index, each in enumerate(FORM)]
    assert admits(components, data=DATA) is admitted


def test_a_missing_property_and_an_empty_list_cannot_be_written(admits):
    assert admits(LIST) and not admits([])
    assert not admits([{"id": "root", "component": "Column"}])


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], "empty_components"),
        ("x", "empty_components"),
        (LIST[1:], "no_root"),
        ([*LIST, LIST[1]], "duplicate_id"),
        ([{"id": "root", "component": "Map"}], "unknown_component"),
        ([{"id": "root", "component": "Card"}], "missing_required_prop"),
        ([{"id": "root", "component": "Card", "child": "gone"}], "unresolved_child"),
        ([{"id": "root", "component": "Card", "child": "root"}], "child_cycle"),
        (FORM, "unresolved_binding"),
    ],
)
def test_faults_are_named(catalog, components, code):
    assert code in {fault["code"] for fault in catalog.faults(components, {}, whole=True)}


def test_what_is_bound_is_looked_for_once_the_data_is_whole(catalog):
    assert catalog.faults(FORM, None, whole=False) == []
    assert catalog.faults(FORM, DATA, whole=True) == []


@pytest.mark.parametrize(
    "value",
    [
        "no json",
        "[]",
        json.dumps({"components": {"X": 1}}),
        json.dumps({"components": {"X": {"allOf": [{"properties": {"a": {"$ref": "#/nowhere"}}}]}}}),
        json.dumps({"components": {f"C{n}": {"properties": {"a": {"enum": [*range(9000)]}}} for n in range(2)}}),
    ],
)
def test_a_catalog_that_cannot_be_read_still_gives_a_tool(value):
    found = catalog_in([Context(description=SCHEMA, value=value)])
    assert found is not None and found.id == BASIC
    prepare(found.parameters())


def test_a_page_that_names_its_catalog_alone_is_taken_by_its_name():
    listed = Context(description="A2UI catalog capabilities", value="Available A2UI catalog:\n- mine (custom)")
    assert catalog_in([listed]) == Catalog(id="mine")
    assert catalog_in([Context(description="weather", value="- rain")]) is None
