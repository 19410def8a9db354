from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from events.template.environment import ChatTemplate, TemplateError, to_json, variables
from tests.garbage import left_in_cycles

USER = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **extra: Any) -> str:
    return ChatTemplate(source).render(USER if messages is None else messages, **extra)


def test_lists_may_grow_without_touching_the_callers_data() -> None:
    source = "{%- set ids = [] -%}{%- set _ = ids.append('a') -%}{%- set _ = messages.append(1) -%}{{ ids }}{{ messages | length }}"
    messages = list(USER)
    assert render(source, messages) == "['a']2"
    assert messages == USER


def test_lists_may_be_a_queue() -> None:
    assert render("{%- set ids = ['a', 'b'] -%}{{ ids.pop(0) }}{{ ids }}") == "a['b']"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.clear() }}",
        "{{ messages[0].clear() }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{% set ns = namespace(a=1) %}{{ ns.__class__.__init__.__globals__ }}",
        "{% set ns = namespace(a=1) %}{{ ns._Namespace__attrs.items }}",
        "{{ raise_exception.__globals__.keys() }}",
    ],
)
def test_everything_else_stays_forbidden(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ messages[0] | tojson }}", [{"role": "user", "content": "<b> & 'x' é"}]) == (
        '{"role": "user", "content": "<b> & \'x\' é"}'
    )


def test_json_accepts_generators_undefined_values_and_layout() -> None:
    assert render("{{ messages | map(attribute='content') | tojson }}") == '["hello"]'
    assert render("{{ nothing | tojson }}") == "null"
    assert render("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}") == '{"a":2,"b":1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert to_json("é", ensure_ascii=True) == '"\\u00e9"'


def test_json_can_be_read_back() -> None:
    assert render("""{{ ('{"a": [1]}' | from_json).a[0] + ({'a': 1} | from_json).a }}""") == "2"


def test_safe_text_does_not_escape_what_it_is_joined_with() -> None:
    assert render("{{ \"'x'\" | safe + '<b>' + (messages[0] | tojson) }}").startswith("'x'<b>{\"role\"")
    assert render("{{ '<' | e + '<' }}") == "&lt;<"


def test_tools_are_left_out_when_there_are_none() -> None:
    source = "{{ 'absent' if tools is not defined else tools | length }}"
    assert render(source) == "absent"
    assert render(source, tools=[]) == "absent"
    assert render(source, tools=[{"type": "function"}]) == "1"


def test_the_clock_is_handed_in() -> None:
    source = "{{ strftime_now('%d.%m.%Y') }} {{ datetime }}"
    assert render(source, now=lambda: datetime(2031, 2, 3)) == "03.02.2031 2031-02-03"
    assert render(source) == render(source)


def test_firefunction_reads_functions_as_text() -> None:
    assert render("{{ functions }}", tools=[{"a": 1}]) == '[\n  {\n    "a": 1\n  }\n]'


def test_generation_blocks_and_loop_controls() -> None:
    source = "{% generation %}{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}{% endgeneration %}"
    assert render(source) == "02"


def test_a_refusal_is_told_from_a_mistake() -> None:
    with pytest.raises(TemplateError, match="no such role") as refusal:
        render("{{ raise_exception('no such role') }}")
    assert refusal.value.raised
    with pytest.raises(TemplateError) as mistake:
        render("{{ messages + 1 }}")
    assert not mistake.value.raised


@pytest.mark.parametrize("source", ["{% if %}", "{{ '", "{% endfor %}", "{% generation %}"])
def test_an_invalid_template_is_one_error(source: str) -> None:
    with pytest.raises(TemplateError, match="not valid"):
        ChatTemplate(source)
    assert variables(source) == frozenset()


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 100000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ range(10**9) }}",
    ],
)
def test_output_is_bounded(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source, max_characters=1_000_000)


@pytest.mark.parametrize("end", ["", "{{ raise_exception('no') }}", "{{ 'x' * 3000 }}"])
def test_a_rendering_leaves_nothing_to_the_cycle_collector(end: str) -> None:
    """However it ends: macros and the context that they were defined in would keep each other."""
    source = "{% macro one(m) %}{{ two(m) }}{% endmacro %}{% macro two(m) %}{{ m.role }}{% endmacro %}"
    template = ChatTemplate(source + "{% for m in messages %}{{ one(m) }}{% endfor %}" + end)

    def attempt() -> str:
        try:
            return template.render([{"role": "user"}], max_characters=2000)
        except TemplateError:
            return "refused"

    assert attempt() == ("refused" if end else "user")
    with left_in_cycles() as left:
        attempt()
    assert left == []


def test_variables_are_all_names_that_are_read() -> None:
    source = "{% if enable_thinking %}{% set x = 1 %}{{ x }}{% endif %}{% for m in messages %}{{ m }}{% endfor %}"
    assert {"enable_thinking", "messages"} <= variables(source)


def test_missing_tools_are_none_and_may_be_iterated() -> None:
    """xLAM's template asks whether they are none, that of Hermes 2 Pro iterates them."""
    source = "{{ 'T' if tools is not none }}{{ 'U' if tools }}{% for t in tools %}x{% endfor %}{{ other is none }}"
    assert ChatTemplate(source).render([]) == "False"
    assert ChatTemplate(source).render([], tools=[{"a": 1}]) == "TUxFalse"
