"""Questions as people type them in a hurry: letters dropped, swapped, doubled, or the key beside the right one."""

from training.demo_model.data_values import Values, is_held_out

SHORTEST = 4
KEYS = "qwertyuiopasdfghjklzxcvbnm"
BESIDE_LIST = "wa qe wr et ry tu yi uo ip o qs ad sf dg fh gj hk jl k ax zc xv cb vn bm n"
NEIGHBOURS = dict(zip(KEYS, BESIDE_LIST.split(), strict=True))


def misspelt(values: Values, word: str) -> str:
    """Return the word with one slip, on this side of the split; words that are too short come back unchanged."""
    if len(word) < SHORTEST or not word.isascii() or not word.isalpha():
        return word
    for _ in range(20):
        slipped = _slip(values, word)
        if slipped != word and is_held_out(slipped) is values.held_out:
            return slipped
    return word


def _slip(values: Values, word: str) -> str:
    place = values.between(1, len(word) - 2)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    kind = values.rng.random()
    if kind < 0.3:
        return before + after
    if kind < 0.65:
        return before + after[0] + letter + after[1:]
    if kind < 0.85:
        return before + letter + letter + after
    return before + values.pick(NEIGHBOURS.get(letter.lower(), letter)) + after


def mistyped(values: Values, question: str, keep: frozenset[str], share: float = 0.5) -> str:
    """Return the question with slips in about `share` of its longer words, and in one at least.

    keep: words of values, in lower case, which stay as they are, since an answer has to carry them.
    """
    words = question.split(" ")
    open_places = [
        place
        for place, word in enumerate(words)
        if word.lower() not in keep and len(word) >= SHORTEST and word.isalpha() and word.isascii()
    ]
    if not open_places:
        return question
    certain = values.pick(open_places)
    for place in open_places:
        if place == certain or values.chance(share):
            words[place] = misspelt(values, words[place])
    return " ".join(words)
