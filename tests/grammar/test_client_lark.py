"""Clients' Lark grammars where their text stands: what the embedded engine's grammar lets through."""

import json

import llguidance
import pytest

from agent_server.generation.core.grammar import LIMITS, GrammarBackend
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from events.grammar.client_lark import LarkError, in_front_of, in_json
from events.grammar.lark import lark
from events.grammar.nodes import Node, constant, sequence

END = "</p>"
PATCH = r"""
start: begin line+ end   // as OpenAI's own clients patch files
begin: "*** Begin \"Patch\"" LF
line: ("+" | "-") /(.*)/ LF
end: "*** End"i LF?
%import common.LF
"""
SUM = r"""
start: expression
expression: term (("+" | "-") term)*
term: NUMBER | "(" expression ")"
%import common (NUMBER, WS)
%ignore WS
"""
KINDS = r"""
start: WORD ("," /[^,\s\\]{2,3}/)* ("a".."c")? SIGN?
WORD.2: /(?s:.)\w|\d+/
SIGN: /ab|[\"'\n]/
"""
FITS = {
    "a patch": (PATCH, '*** Begin "Patch"\n+say "x\\n" \tand é 😀\n-/p \n*** eND\n'),
    "a patch with quotes alone": (PATCH, '*** Begin "Patch"\n+"\n+\\"\\\n*** End'),
    "a sum": (SUM, "1 + (2 -\n\t3.5e3)"),
    "kinds": (KINDS, '"_,a",b/cb"'),
    "other kinds": (KINDS, "7"),
}
WRONG = {
    "a line without its sign": (PATCH, '*** Begin "Patch"\nsay\n*** End'),
    "a mark without quotes": (PATCH, "*** Begin Patch\n+\n*** End"),
    "a sum that is open": (SUM, "1 + (2"),
    "too short": (KINDS, "7,a"),
    "a range": (KINDS, "77,ab,d"),
}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    tokenizer = load_model_files(BUNDLED).tokenizer
    return GrammarBackend(tokenizer, tokenizer.get_vocab_size(), [0])


def accepted(backend: GrammarBackend, node: Node, text: str) -> bool:
    source = lark(node, backend._controls)
    matcher = llguidance.LLMatcher(backend._vocabulary, source, log_level=0, limits=LIMITS)
    assert not matcher.is_error(), matcher.get_error()
    ids = backend._tokenizer.encode(text, add_special_tokens=False).ids
    return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())


def quoted(grammar: str) -> Node:
    return sequence(
        constant('{"input":"'), {"type": "grammar", "grammar": in_json(grammar), "syntax": "lark"}, constant('"}')
    )


def tagged(grammar: str) -> Node:
    return sequence({"type": "grammar", "grammar": in_front_of(grammar, END), "syntax": "lark"}, constant(END))


@pytest.mark.parametrize("name", FITS)
def test_what_the_grammar_means_is_let_through(backend: GrammarBackend, name: str):
    grammar, text = FITS[name]
    assert accepted(backend, quoted(grammar), '{"input":' + json.dumps(text, ensure_ascii=False) + "}")
    assert accepted(backend, tagged(grammar), text + END)


@pytest.mark.parametrize("name", WRONG)
def test_nothing_else_is(backend: GrammarBackend, name: str):
    grammar, text = WRONG[name]
    assert not accepted(backend, quoted(grammar), '{"input":' + json.dumps(text, ensure_ascii=False) + "}")
    assert not accepted(backend, tagged(grammar), text + END)


def test_a_pattern_does_not_run_past_the_mark_behind_it(backend: GrammarBackend):
    grammar = "start: /(?s:.*)/"
    assert accepted(backend, tagged(grammar), "any\ntext" + END)
    assert not accepted(backend, tagged(grammar), "text < text" + END)
    assert accepted(backend, quoted(grammar), '{"input":"text </p> \\" text"}')


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('start: %json {"type": "object"}', "%json is not taken"),
        ("start: <tool_call>", "< is not taken"),
        ("%import common.SOMETHING\nstart: SOMETHING", "SOMETHING is not known here"),
        ("%import .other.X\nstart: X", "common terminals alone"),
        ("start: /(?=a)b/", "assert is not taken"),
        ("start: /(a/", "cannot be read"),
        ('start: "ab".."c"', "one character to another"),
    ],
)
def test_what_cannot_be_rewritten_is_named(grammar: str, said: str):
    with pytest.raises(LarkError, match=said):
        in_json(grammar)
