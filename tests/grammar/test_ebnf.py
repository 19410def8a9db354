"""EBNF as Lark: the same language as a recogniser that tries everything, and bounds on what a grammar may cost."""

import itertools
from random import Random

import pytest
import torch

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.constraint import Compiler, ConstraintError
from agent_server.generation.core.grammar import GrammarBackend
from events.grammar.ebnf import EBNFError, lark_of, parse
from tests.grammar.vocabulary import END, byte_level

JSON = r"""
# JSON, as llama.cpp's examples have it
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
HOSTILE = {
    "repeated repetitions": "root ::= ([a-z]{0,1000}){0,1000}",
    "repeated optional letters": "root ::= " + '"a"? ' * 3000,
    "doubled again and again": "root ::= r0\n"
    + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(40))
    + 'r40 ::= "q"',
    "ambiguous": 'root ::= s\ns ::= s s s | "a" | ""',
    "left recursion": 'root ::= root "a" | ""',
    "endless": "root ::= root",
    "deep": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000,
    "many alternatives": "root ::= " + " | ".join(f'"{i}" root' for i in range(5000)),
    "undecided": 'root ::= [a-z]* "a" ' + "[a-z] " * 40,
    "large": 'root ::= "' + "x" * 70_000 + '"',
    "huge bound": "root ::= [^x]{0,900000000}",
    "spaces in a bound that does not end": 'root ::= "a"{' + " " * 60_000 + "!",
    "spaces around its comma": 'root ::= "a"{' + " " * 20_000 + "," + " " * 20_000 + "!",
    "repeated groups": 'root ::= (("a" | "b" root?){0,300} "c"?){0,300}',
}


@pytest.fixture(scope="module")
def backend():
    tokenizer = byte_level()
    return GrammarBackend(tokenizer, tokenizer.get_vocab_size(with_added_tokens=True), [tokenizer.token_to_id(END)])


def accepts(backend, grammar, text):
    """Whether the compiled grammar takes the text as a whole, byte by byte."""
    matcher = grammar.matcher()
    tokens = [number for byte in text.encode() for number in [spelled(backend)[byte]]]
    return all(matcher.accept(token) for token in tokens) and matcher.accepting


def spelled(backend, known={}):  # noqa: B006
    if id(backend) not in known:
        texts = [backend._vocabulary.decode_bytes([number]) for number in range(backend._vocabulary.vocab_size)]
        known[id(backend)] = {text[0]: number for number, text in reversed([*enumerate(texts)]) if len(text) == 1}
    return known[id(backend)]


def compiled(backend, text):
    return backend.compile(Constraint(kind="ebnf", value=text))


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a" "ac" | "aa" "b"', ["aac", "aab"], ["aa", "aaa"]),
        ('root ::= x | y\nx ::= "a" "ac" x?\ny ::= "aa" "b"', ["aac", "aab", "aacaac"], ["aacaab"]),
        ('root ::= [a-c^] [^a-c\\]-] [\\x41\\u00e9-]', ["^dA", "axé", "b--"[:1] + "x-"], ["a]A", "a-A", "daA"]),
        ('root ::= "\\"\\n\\t\\\\" .', ['"\n\t\\x', '"\n\t\\\n', '"\n\t\\é'], ['"\n\t\\']),
        ('root ::= "a"{2} "b"{1,} "c"{,2} "d"{0,1}', ["aab", "aabbbccd"], ["ab", "aabccc", "aac"]),
        ('root ::= list\nlist ::= "x"\n  | "(" list ("," list)*\n")"', ["x", "(x,(x))"], ["(x", "()", "(x,)"]),
        ('root ::= ("a" | "b")+ # a comment "c"\n', ["abba"], ["", "c"]),
        ('root ::= "" | "a"', ["", "a"], ["aa"]),
        (JSON, ['{"a": [1, -2.5e3, true], "\\u00e9": {"b":null}}'], ["[1]", '{"a" 1}', '{"a": 01}', '{"a": "\n"}']),
    ],
)  # fmt: skip
def test_what_a_grammar_takes(backend, grammar, good, bad):
    found = compiled(backend, grammar)
    assert [text for text in good if not accepts(backend, found, text)] == []
    assert [text for text in bad if accepts(backend, found, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("root ::= (", "'(' without ')'"),
        ('root ::= "a")', "')' without '('"),
        ('other ::= "a"', "no rule 'root'"),
        ("root ::= missing", "no rule 'missing'"),
        ('root ::= "a"\nroot ::= "b"', "there twice"),
        ('root ::= "unclosed', "unexpected"),
        ("root ::= [z-a]", "comes behind"),
        ("root ::= []", "empty character class"),
        ('root ::= "a"{3,2}', "at most"),
        ('root ::= "a"{,}', "no number"),
        ('root ::= TagDispatch("a" root)', "TagDispatch"),
        (r'root ::= "\ud800"', "no character"),
        ("no grammar at all", "expected"),
    ],
)
def test_what_is_no_grammar_is_said(grammar, reason):
    with pytest.raises(EBNFError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        lark_of(grammar)


# against a recogniser that tries everything


def ends(rules, item, text, start, known):
    """Where in the text an item that begins at `start` may end, as far as `known` has its rules."""
    match item.kind:
        case "text":
            return {start + len(item.value)} if text.startswith(item.value, start) else set()
        case "name":
            return known.setdefault((item.value, start), set())
        case "choice":
            return set().union(*(ends(rules, inner, text, start, known) for inner in item.items))
        case "sequence":
            at = {start}
            for inner in item.items:
                at = set().union(*(ends(rules, inner, text, each, known) for each in at))
            return at
    at, found = {start}, {start} if not item.least else set()
    most = len(text) + 1 if item.most < 0 else item.most
    for count in range(1, max(most, item.least) + 1):
        at = set().union(*(ends(rules, item.items[0], text, each, known) for each in at))
        found |= at if count >= item.least else set()
    return found


def recognised(rules, text):
    """By the least fixed point: more is known in each round, until nothing is new."""
    known, before = {("root", 0): set()}, None
    while before != (before := {place: set(found) for place, found in known.items()}) or len(known) != len(before):
        for name, start in list(known):
            known[name, start] = known[name, start] | ends(rules, rules[name], text, start, known)
        if known == before:
            break
    return len(text) in known["root", 0]


def random_grammar(random, recursive):
    names = ["root", "x", "y"]

    def item(depth, allowed):
        kinds = ["text"] * 3 + (["name"] * 2 if allowed else []) + (["group", "repeat"] if depth < 2 else [])
        match random.choice(kinds):
            case "text":
                return f'"{"".join(random.choices("abc", k=random.choice((1, 1, 2, 2, 3))))}"'
            case "name":
                return random.choice(allowed)
            case "repeat":
                return f"({choice(depth + 1, allowed)}){random.choice(('*', '+', '?', '{2}', '{0,2}', '{1,}'))}"
        return f"({choice(depth + 1, allowed)})"

    def choice(depth, allowed):
        options = [
            " ".join(item(depth, allowed) for _ in range(random.randint(1, 3))) for _ in range(random.randint(1, 3))
        ]
        return " | ".join(options)

    return "\n".join(f"{name} ::= {choice(0, names if recursive else names[i + 1 :])}" for i, name in enumerate(names))


@pytest.mark.parametrize("recursive", [False, True])
def test_the_language_is_that_of_a_recogniser_that_tries_everything(backend, recursive):
    texts = ["".join(letters) for length in range(5) for letters in itertools.product("abc", repeat=length)]
    some = 0
    for seed in range(25):
        grammar = random_grammar(Random(seed), recursive)
        rules = parse(grammar)
        expected = {text for text in texts if recognised(rules, text)}
        try:
            found = compiled(backend, grammar)
        except ConstraintError:
            assert not expected, grammar  # a grammar of nothing, or of no finite text
            continue
        assert {text for text in texts if accepts(backend, found, text)} == expected, grammar
        some += bool(expected)
    assert some > 10


# what it may cost


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_or_bounded_in_every_step(backend, name):
    """Without bounds this test would take hours."""
    try:
        matcher = compiled(backend, HOSTILE[name]).matcher()
    except ConstraintError as error:
        assert len(str(error)) < 400
        return
    bits = torch.zeros(1, -(-backend._vocab_size // 32), dtype=torch.int32)
    for byte in b"aabacaadaeafagahaiajakalamaoaqarasatauavawaxayaz" * 4:
        backend.fill([matcher], bits)
        if matcher.error or not matcher.accept(spelled(backend)[byte]):
            break


def test_after_a_hostile_grammar_the_next_is_compiled_at_once(backend):
    compiler, answers = Compiler(backend), []
    for text in (*HOSTILE.values(), 'root ::= "a"'):
        compiler.compile(Constraint(kind="ebnf", value=text), lambda grammar, error: answers.append((grammar, error)))
    compiler._pool.shutdown(wait=True)
    assert len(answers) == len(HOSTILE) + 1
    assert answers[-1][0] is not None and accepts(backend, answers[-1][0], "a")
    refused = [error for grammar, error in answers if grammar is None]
    assert refused and all(error and "too long to compile" not in error for error in refused)
