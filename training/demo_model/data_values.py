"""Random values for the dialogues, drawn from one side of a fixed split.

A value belongs to the held-out side when its hash says so. Training draws only
values of the other side, evaluation only held-out ones, whatever the seeds.
"""

import hashlib
import random
import string
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

HELD_OUT_PERCENT = 20
TYPO_SHARE = 0.25
SYLLABLE_LIST = (
    "ba be bi bo da de di do fa fe ga go ha he ja jo ka ke ki ko la le li lo lu ma me mi mo na ne "
    "ni no pa pe po ra re ri ro ru sa se si so ta te ti to tu va ve vi za zo bar ber den dor fal "
    "gar hel jin kar len lyn mar nor pol quin ran sel stan tor ven wes xan yor zan burg ford ham "
    "ingen mouth poli stad ton ville"
)
SYLLABLES = SYLLABLE_LIST.split()
PLACE_PREFIXES = (
    "San",
    "New",
    "Port",
    "Saint",
    "Los",
    "La",
    "Fort",
    "Lake",
    "North",
    "Old",
    "Mount",
    "El",
)
PLACE_LINKS = ("de", "del", "of", "do", "la", "am", "es")
PLACE_SUFFIXES = ("City", "Bay", "Springs", "Beach", "Falls", "Valley", "Hills", "Town")
REGIONS = ("Europe", "America", "Asia", "Africa", "Australia", "Pacific")
SIGNS = {" x ": "*", "x": "*", " × ": "*", " ÷ ": "/", " : ": "/"}
WORD_OPERATORS = {
    "plus": "+",
    "minus": "-",
    "times": "*",
    "multiplied by": "*",
    "divided by": "/",
    "over": "/",
}
T = TypeVar("T")


def is_held_out(value: str) -> bool:
    """Tell whether a value is reserved for evaluation (case does not matter)."""
    digest = hashlib.md5(value.lower().encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


@cache
def read_values(name: str, held_out: bool) -> tuple[str, ...]:
    """Read one side of a list in `values/`."""
    path = Path(__file__).parent / "values" / f"{name}.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if is_held_out(line) is held_out)


@cache
def side_of(phrases: tuple[str, ...], held_out: bool) -> tuple[str, ...]:
    """Return one side of a list of two or more phrases; one that the hashes leave empty gets the last or the first."""
    held = [phrase for phrase in phrases if is_held_out(phrase)] or [phrases[-1]]
    held = held[1:] if len(held) == len(phrases) else held
    return tuple(held) if held_out else tuple(phrase for phrase in phrases if phrase not in held)


class Values:
    """Draws the values of one dialogue; every method consumes the same random stream.

    typo_share: how many of the questions are mistyped; in training some, in evaluation those that measure it alone.
    """

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self.rng = rng
        self.held_out = held_out
        self.typo_share = 0.0 if held_out else TYPO_SHARE

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[int(self.rng.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer of the closed interval."""
        return low + int(self.rng.random() * (high - low + 1))

    def listed(self, name: str) -> str:
        """Return an entry of a list in `values/`."""
        return self.pick(read_values(name, self.held_out))

    def phrase(self, phrases: tuple[str, ...]) -> str:
        """Return one of the phrases of this side of the split."""
        return self.pick(side_of(phrases, self.held_out))

    def invented(self, make: Callable[[], str]) -> str:
        """Repeat a recipe until its value is on this side of the split."""
        value = make()
        while is_held_out(value) is not self.held_out:
            value = make()
        return value

    def real_or_invented(self, name: str, share: float, make: Callable[[], str]) -> str:
        """Return a listed value, or in training sometimes an invented one."""
        if self.held_out or self.chance(share):
            return self.listed(name)
        return self.invented(make)

    def syllables(self, low: int, high: int) -> str:
        """Return a pronounceable name."""
        return "".join(self.pick(SYLLABLES) for _ in range(self.between(low, high))).title()

    def letters(self, low: int, high: int) -> str:
        """Return a run of random lower-case letters."""
        return "".join(self.pick(string.ascii_lowercase) for _ in range(self.between(low, high)))

    def word(self) -> str:
        """Return an English word, in training sometimes random letters."""
        if not self.held_out and self.chance(0.15):
            return self.invented(lambda: self.letters(2, 7))
        return self.listed("words")

    def words(self, low: int, high: int) -> str:
        """Return several words."""
        return " ".join(self.word() for _ in range(self.between(low, high)))

    def city(self) -> str:
        """Return a city of one to four words, sometimes in lower case."""
        name = self.real_or_invented("cities", 0.5, self._invented_city)
        return name.lower() if self.chance(0.15) else name

    def _invented_city(self) -> str:
        name = self.syllables(2, 3) if self.chance(0.6) else self.word().title()
        shape = self.rng.random()
        if shape < 0.55:
            return name
        if shape < 0.72:
            return f"{self.pick(PLACE_PREFIXES)} {name}"
        if shape < 0.84:
            return f"{name} {self.pick(PLACE_SUFFIXES)}"
        if shape < 0.92:
            return f"{name} {self.syllables(1, 3)}"
        return f"{name} {self.pick(PLACE_LINKS)} {self.syllables(2, 3)}"

    def timezone(self) -> str:
        """Return a city, or a zone such as Europe/Oslo."""
        city = self.city()
        if self.chance(0.8):
            return city
        return f"{self.pick(REGIONS)}/{city.title().replace(' ', '_')}"

    def person(self) -> str:
        """Return a first name."""
        return self.real_or_invented("names", 0.55, lambda: self.syllables(2, 2))

    def color(self) -> str:
        """Return a CSS colour name, or a hexadecimal colour."""
        if self.chance(0.1):
            return self.invented(self._hex_color)
        return self.real_or_invented("colors", 0.6, self._invented_color)

    def _hex_color(self) -> str:
        return "#" + "".join(self.pick("0123456789abcdef") for _ in range(6))

    def _invented_color(self) -> str:
        return self.pick(("", "dark", "light", "deep", "pale", "medium")) + self.word()

    def topic(self) -> str:
        """Return what a text, a search or a plan is about."""
        return self.real_or_invented("topics", 0.4, self._invented_topic)

    def _invented_topic(self) -> str:
        phrase = self.words(1, 3)
        return f"{self.pick(('the', 'a', 'my'))} {phrase}" if self.chance(0.25) else phrase

    def _any_number(self) -> str:
        size = self.rng.random()
        if size < 0.12:
            return f"{self.between(0, 99)}.{self.between(1, 99)}"
        if size < 0.45:
            return str(self.between(0, 20))
        return str(self.between(0, 999) if size < 0.85 else self.between(1000, 99999))

    def number(self) -> str:
        """Return a number; those of three or more characters respect the split."""
        value = self._any_number()
        while len(value) > 2 and is_held_out(value) is not self.held_out:
            value = self._any_number()
        return value

    def arithmetic(self) -> tuple[str, str]:
        """Return an arithmetic problem as a user writes it and as an expression."""
        spoken, expression = self._any_arithmetic()
        while is_held_out(expression.replace(" ", "")) is not self.held_out:
            spoken, expression = self._any_arithmetic()
        return spoken, expression

    def _any_arithmetic(self) -> tuple[str, str]:
        first, second = self.number(), self.number()
        form = self.rng.random()
        if form < 0.45:
            written = f"{first} {self.pick('+-*/')} {second}"
            written = written.replace(" ", "") if self.chance(0.3) else written
            return written, written
        if form < 0.5:
            sign = self.pick(tuple(SIGNS))
            return f"{first}{sign}{second}", f"{first} {SIGNS[sign]} {second}"
        if form < 0.62:
            written = self._three_terms(first, second)
            return written, written
        if form < 0.92:
            word = self.pick(tuple(WORD_OPERATORS))
            return f"{first} {word} {second}", f"{first} {WORD_OPERATORS[word]} {second}"
        return f"{first}% of {second}", f"{first} / 100 * {second}"

    def _three_terms(self, first: str, second: str) -> str:
        third, inner, outer = self.number(), self.pick("+-*/"), self.pick("+-*/")
        shapes = (
            f"{first} {inner} {second} {outer} {third}",
            f"({first} {inner} {second}) {outer} {third}",
            f"{first} {outer} ({second} {inner} {third})",
        )
        return self.pick(shapes)
