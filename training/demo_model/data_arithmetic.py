"""Arithmetic as people say and write it: signs, words for the operations, words for the numbers, roots and powers."""

import re
from collections.abc import Callable

from training.demo_model.data_values import Values, is_held_out

ONE_LIST = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ONES = ONE_LIST.split()
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SIGNS = {
    "⋅": "*",
    "∗": "*",
    "×": "*",
    "x": "*",
    "X": "*",
    "·": "*",
    "÷": "/",
    ":": "/",
    "−": "-",
    "–": "-",
    "^": "**",
    "**": "**",
}
WORDS = {
    "plus": "+",
    "and": "+",
    "added to": "+",
    "minus": "-",
    "less": "-",
    "take away": "-",
    "times": "*",
    "multiplied by": "*",
    "multiplied with": "*",
    "divided by": "/",
    "over": "/",
    "to the power of": "**",
}
# Of training's sums: two short numbers and a sign, as most people type them.
PLAIN_SHARE = 0.3
PLAIN_SIGNS = ("*", "*", "+", "+", "-", "/", "x", "x", "×")
PLAIN_WORDS = ("plus", "minus", "times", "times")
PLAIN_FORMS = ("what is {}", "what is {}", "{}", "{}", "{}?", "what's {}", "whats {}", "how much is {}", "{}=", "{}=?")
# `{0}` and `{1}` are the numbers; the second text is the expression.
SHAPES = (
    ("the sum of {0} and {1}", "{0} + {1}"),
    ("the product of {0} and {1}", "{0} * {1}"),
    ("the difference between {0} and {1}", "{0} - {1}"),
    ("the difference of {0} and {1}", "{0} - {1}"),
    ("{0} percent of {1}", "{0} / 100 * {1}"),
    ("{0} % of {1}", "{0} / 100 * {1}"),
    ("{0}% from {1}", "{0} / 100 * {1}"),
    ("half of {0}", "{0} / 2"),
    ("a third of {0}", "{0} / 3"),
    ("a quarter of {0}", "{0} / 4"),
    ("double {0}", "{0} * 2"),
    ("twice {0}", "{0} * 2"),
    ("{0} squared", "{0} ** 2"),
    ("{0}²", "{0} ** 2"),
    ("{0} cubed", "{0} ** 3"),
    ("the square of {0}", "{0} ** 2"),
    ("the square root of {0}", "{0} ** 0.5"),
    ("square root of {0}", "{0} ** 0.5"),
    ("sqrt {0}", "{0} ** 0.5"),
    ("sqrt({0})", "{0} ** 0.5"),
    ("√{0}", "{0} ** 0.5"),
    ("the root of {0}", "{0} ** 0.5"),
    ("the average of {0} and {1}", "({0} + {1}) / 2"),
    ("the mean of {0} and {1}", "({0} + {1}) / 2"),
    ("the total of {0} and {1}", "{0} + {1}"),
    ("the quotient of {0} and {1}", "{0} / {1}"),
    ("{0} by {1}", "{0} * {1}"),
    ("one half of {0}", "{0} / 2"),
    ("a tenth of {0}", "{0} / 10"),
    ("three quarters of {0}", "{0} * 3 / 4"),
    ("two thirds of {0}", "{0} * 2 / 3"),
    ("triple {0}", "{0} * 3"),
    ("three times {0}", "3 * {0}"),
    ("{0} in the square", "{0} ** 2"),
    ("the cube of {0}", "{0} ** 3"),
    ("sqrt of {0}", "{0} ** 0.5"),
    ("the sqrt of {0}", "{0} ** 0.5"),
    ("root of {0}", "{0} ** 0.5"),
    ("a square root of {0}", "{0} ** 0.5"),
    ("a {0} percent tip on {1}", "{0} / 100 * {1}"),
    ("{0} pct of {1}", "{0} / 100 * {1}"),
    ("{1} less {0} percent", "{1} - {0} / 100 * {1}"),
    ("{1} plus {0} percent", "{1} + {0} / 100 * {1}"),
)
# Requests with the numbers inside of them, which no other question may enclose.
COMMANDS = (
    ("add {0} and {1}", "{0} + {1}"),
    ("add {0} to {1}", "{1} + {0}"),
    ("sum {0} and {1}", "{0} + {1}"),
    ("subtract {0} from {1}", "{1} - {0}"),
    ("take {0} from {1}", "{1} - {0}"),
    ("multiply {0} by {1}", "{0} * {1}"),
    ("multiply {0} and {1}", "{0} * {1}"),
    ("multiply {0} with {1}", "{0} * {1}"),
    ("divide {0} by {1}", "{0} / {1}"),
    ("square {0}", "{0} ** 2"),
    ("double {0}", "{0} * 2"),
    ("halve {0}", "{0} / 2"),
    ("i have {0} and get {1} more", "{0} + {1}"),
    ("i had {0} and lost {1}", "{0} - {1}"),
    ("how many are {0} and {1}", "{0} + {1}"),
    ("what do {0} and {1} make", "{0} + {1}"),
    ("how often does {1} go into {0}", "{0} / {1}"),
    ("split {0} into {1} parts", "{0} / {1}"),
    ("increase {0} by {1}", "{0} + {1}"),
    ("reduce {0} by {1}", "{0} - {1}"),
    ("raise {0} to the power {1}", "{0} ** {1}"),
    ("take the square root of {0}", "{0} ** 0.5"),
    ("take the root of {0}", "{0} ** 0.5"),
    ("triple {0}", "{0} * 3"),
    ("put {0} and {1} together", "{0} + {1}"),
    ("count {0} and {1} together", "{0} + {1}"),
    ("share {0} among {1} friends", "{0} / {1}"),
    ("how many times does {1} fit into {0}", "{0} / {1}"),
    ("i bought {0} and ate {1}", "{0} - {1}"),
    ("what is left when i take {1} from {0}", "{0} - {1}"),
    ("{0} boxes with {1} eggs each, how many eggs", "{0} * {1}"),
    ("one costs {0}, how much are {1}", "{0} * {1}"),
)
# Equations, of which the calculator knows nothing: `{0}` to `{2}` are numbers, the letter is drawn.
EQUATIONS = (
    "x + {0} = {1}",
    "x - {0} = {1}",
    "{0}x = {1}",
    "{0}x + {1} = {2}",
    "{0}x - {1} = {2}",
    "{0} + x = {1}",
    "{0} - x = {1}",
    "x / {0} = {1}",
    "x^2 = {0}",
    "{0} * x = {1}",
    "{0}x + {1} = {2}x",
    "x+{0}={1}",
    "{0}x+{1}={2}",
    "x plus {0} is {1}",
)
UNKNOWNS = (
    "solve {}",
    "{}",
    "what is x if {}",
    "find x: {}",
    "solve {} for x",
    "if {}, what is x",
    "x in {}",
    "{} x = ?",
)


def in_words(number: int) -> str:
    """Spell a number below 1,000: 21 is twenty-one."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens = TENS[number // 10 - 2]
        return f"{tens}-{ONES[number % 10]}" if number % 10 else tens
    rest = f" and {in_words(number % 100)}" if number % 100 else ""
    return f"{ONES[number // 100]} hundred{rest}"


def _spelt(values: Values) -> tuple[str, str]:
    """Return a number in words and in digits; in training few above a hundred."""
    number = values.between(0, 20) if values.chance(0.5) else values.between(20, 99)
    number = number * 10 if values.chance(0.08) else number
    words = in_words(number)
    return words.replace("-", " ") if values.chance(0.4) else words, str(number)


def _operands(values: Values) -> tuple[list[str], list[str]]:
    """Return two numbers as they are said and as they are calculated."""
    if values.chance(0.35):
        pairs = [_spelt(values), _spelt(values)]
        return [words for words, _ in pairs], [digits for _, digits in pairs]
    numbers = [values.number(), values.number()]
    return numbers, numbers


def _signed(values: Values) -> tuple[str, str]:
    first, second, sign = values.number(), values.number(), values.pick(tuple(SIGNS))
    glued = sign not in ("x", ":") or (sign == "x" and not values.held_out)
    gap = values.pick((" ", " ", "")) if glued else " "
    return f"{first}{gap}{sign}{gap}{second}", f"{first} {SIGNS[sign]} {second}"


def _worded(values: Values) -> tuple[str, str]:
    said, digits = _operands(values)
    word = values.pick(tuple(WORDS))
    if values.chance(0.2):
        third, second = _operands(values), values.pick(tuple(WORDS))
        spoken = f"{said[0]} {word} {said[1]} {second} {third[0][0]}"
        return spoken, f"{digits[0]} {WORDS[word]} {digits[1]} {WORDS[second]} {third[1][0]}"
    return f"{said[0]} {word} {said[1]}", f"{digits[0]} {WORDS[word]} {digits[1]}"


def _written(values: Values) -> tuple[str, str]:
    """Return two to five numbers with the calculator's own signs and uneven gaps, which are passed on as they are."""
    text = f"-{values.number()}" if values.chance(0.1) else values.number()
    for _ in range(values.pick((1, 1, 1, 2, 3, 4))):
        before, after = values.pick(("", " ")), values.pick(("", " "))
        text += f"{before}{values.pick('+-*/')}{after}{values.number()}"
    return text, text


def _plain(values: Values) -> tuple[str, str]:
    """Return a whole request; a sign of the calculator's own is passed on as it was written."""
    first, second = (str(values.between(1, values.pick((12, 20, 99)))) for _ in range(2))
    if values.chance(0.15):
        word = values.pick(PLAIN_WORDS)
        text = f"{in_words(int(first))} {word} {in_words(int(second))}"
        return values.pick(PLAIN_FORMS[:-2]).format(text), f"{first} {WORDS[word]} {second}"
    if values.chance(0.15):
        first = values.number()
    sign, gap = values.pick(PLAIN_SIGNS), values.pick(("", " "))
    text = f"{first}{gap}{sign}{gap}{second}"
    return values.pick(PLAIN_FORMS).format(text), f"{first} {SIGNS[sign]} {second}" if sign in SIGNS else text


def equation(values: Values) -> str:
    """Return a request to solve an equation, which no tool here can do."""
    letter, numbers = values.pick("xxxyna"), [values.number() for _ in range(3)]
    asked = values.phrase(UNKNOWNS).format(values.phrase(EQUATIONS).format(*numbers))
    return asked if letter == "x" else re.sub(r"(?<![a-z])x(?![a-z])", letter, asked)


def _shaped(values: Values, shapes: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    said, digits = _operands(values)
    spoken, expression = values.pick(shapes)
    return spoken.format(*said), expression.format(*digits)


def _drawn(values: Values) -> tuple[str, str, bool]:
    makers: tuple[Callable[[], tuple[str, str]], ...] = (
        values.arithmetic,
        values.arithmetic,
        lambda: _signed(values),
        lambda: _written(values),
        lambda: _worded(values),
        lambda: _shaped(values, SHAPES),
    )
    if not values.held_out and values.chance(PLAIN_SHARE):
        return *_plain(values), True
    if values.chance(0.12):
        return *_shaped(values, COMMANDS), True
    return *values.pick(makers)(), False


def problem(values: Values) -> tuple[str, str, bool]:
    """Return a problem as it is said, its expression, and whether it is a whole request."""
    spoken, expression, whole = _drawn(values)
    while is_held_out(expression.replace(" ", "")) is not values.held_out:
        spoken, expression, whole = _drawn(values)
    return spoken, expression, whole
