"""Markers are found wherever the text is cut, and nothing but the beginning of one is held back."""

from hypothesis import given
from hypothesis import strategies as st

from events.parsing.source import Scanner

MARKERS = ("<a>", "<ab>", "</a>", "]<]m[>[<a>", "<a>\n<b")


def found_in(pieces: list[str]) -> tuple[str, list[str]]:
    """(the text outside of markers, the markers)."""
    scanner, held, outside, inside = Scanner(MARKERS), "", "", []
    for number, piece in enumerate([*pieces, ""]):
        held += piece
        while True:
            stop, marker = scanner.find(held, 0, number == len(pieces))
            outside += held[:stop]
            held = held[stop + len(marker or "") :]
            if marker is None:
                break
            inside.append(marker)
    return outside + held, inside


@given(st.lists(st.sampled_from([*MARKERS, "<", ">", "a", "]", "[", "/", "\n", "<a", "text"])), st.data())
def test_every_split_finds_the_same(parts: list[str], data):
    text = "".join(parts)
    edges = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *edges], [*edges, len(text)], strict=True)]
    assert found_in(pieces) == found_in([text]) == found_in(list(text))


def test_only_a_possible_beginning_is_held():
    scanner = Scanner(("<tool>",))
    assert scanner.find("a < b <to", 0) == (6, None)
    assert scanner.find("a < b <to", 0, True) == (9, None)
    assert scanner.find("a <tool>", 0) == (2, "<tool>")
    assert Scanner(()).find("anything", 0) == (8, None)


def test_a_longer_marker_is_waited_for():
    scanner = Scanner(("<a>", "<a>\n<b"))
    assert scanner.find("<a>", 0) == (0, None)
    assert scanner.find("<a>x", 0) == (0, "<a>")
    assert scanner.find("<a>\n<b", 0) == (0, "<a>\n<b")
    assert scanner.find("<a>", 0, True) == (0, "<a>")
