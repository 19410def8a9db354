"""Which of two places is warmer or colder, told after both temperatures, and numbers put in order."""

from dataclasses import dataclass

from training.demo_model.data_chat import Exchange
from training.demo_model.data_results import a_temperature
from training.demo_model.data_values import Values

# `{0}` is the question's word, `{1}` and `{3}` are the places, `{2}` and `{4}` their temperatures.
TOLD = (
    "it is {2} in {1} and {4} in {3}, which is {0}",
    "it is {2} in {1} and {4} in {3}, where is it {0}",
    "{1} has {2} degrees and {3} has {4}: which is {0}",
    "{1} {2}, {3} {4}: which one is {0}",
    "{1}: {2}, {3}: {4}. which is {0}",
    "if {1} has {2} and {3} has {4}, which place is {0}",
    "what is {0}, {1} with {2} degrees or {3} with {4}",
    "{2} in {1}, {4} in {3}, what is {0}",
    "with {2} degrees in {1} and {4} in {3}, which city is {0}",
)

RISING = (
    "sort {}",
    "sort these numbers: {}",
    "put {} in order",
    "order these: {}",
    "sort {} from small to large",
    "arrange {} by size",
    "sort ascending: {}",
    "{} sorted",
    "bring {} into order",
    "sort the numbers {}",
)
FALLING = (
    "sort {} from large to small",
    "sort descending: {}",
    "sort {} backwards",
    "order {} from the largest down",
    "put {} in order, largest first",
    "sort {} in falling order",
)
LARGEST = ("largest", "biggest", "highest", "greatest", "most", "maximum")
SMALLEST = ("smallest", "lowest", "least", "minimum", "fewest")
FIND = (
    "which is the {0} of {1}",
    "what is the {0} of {1}",
    "{0} of {1}",
    "find the {0}: {1}",
    "which number is the {0}: {1}",
    "the {0} number of {1}",
    "tell me the {0} of {1}",
)


@dataclass(frozen=True)
class Weather:
    """What was said of a place."""

    place: str
    temperature: float
    shown: str
    conditions: str = ""


@dataclass(frozen=True)
class Comparison:
    """The answer, what it has to carry, and the place that it does not name last; none if both are the same."""

    answer: str
    carried: tuple[str, ...]
    loser: Weather | None = None


def compared(first: Weather, second: Weather, colder: bool) -> Comparison:
    """Compare two places."""
    seen = tuple(f"{place.shown} in {place.place}" for place in (first, second))
    told = f"It is {seen[0]} and {seen[1]}"
    if first.temperature == second.temperature:
        return Comparison(f"{told}: both are the same.", (*seen, "both are the same"))
    better, worse = (first, second) if (first.temperature < second.temperature) == colder else (second, first)
    more, word = ("less", "colder") if colder else ("more", "warmer")
    verdict = f"{better.place} is {word}"
    return Comparison(f"{told}: {better.shown} is {more}, so {verdict}.", (*seen, verdict), worse)


def comparing_word(values: Values, colder: bool) -> str:
    """Return a word that asks for the colder or the warmer one."""
    return values.pick(("colder", "cooler") if colder else ("warmer", "hotter"))


def comparing_thought(first: Weather, second: Weather) -> str:
    """Return the thought before a comparison of temperatures that were told in an earlier turn."""
    return f"I compare {first.shown} in {first.place} and {second.shown} in {second.place}."


def told_comparison(values: Values) -> Exchange:
    """Return a comparison of temperatures that the user tells, which are close to each other in every third."""
    first = _weather(values, a_temperature(values))
    near = first.temperature + values.between(-4, 4)
    second = _weather(values, near if values.chance(0.35) else a_temperature(values))
    colder = values.chance(0.4)
    question = values.phrase(TOLD).format(
        comparing_word(values, colder), first.place, first.shown, second.place, second.shown
    )
    result = compared(first, second, colder)
    return Exchange(question, comparing_thought(first, second), result.answer, result.carried)


def sorting(values: Values) -> Exchange:
    """Return numbers to be put in order, or the largest or smallest of them: what a comparison rests on."""
    numbers = sorted({round(a_temperature(values), 1) for _ in range(values.between(2, 9))})
    shown = [str(int(number) if number == int(number) else number) for number in numbers]
    given = values.rng.sample(shown, len(shown))
    asked = values.pick((", ", ", ", " ", " and ")).join(given)
    kind = values.rng.random()
    if kind < 0.3:
        largest = values.chance(0.5)
        word = values.phrase(LARGEST if largest else SMALLEST)
        answer = f"{shown[-1 if largest else 0]} is the {'largest' if largest else 'smallest'}."
        return Exchange(values.phrase(FIND).format(word, asked), "I compare the numbers.", answer, (answer,))
    falling = kind < 0.5
    question = values.phrase(FALLING if falling else RISING).format(asked)
    answer = ", ".join(shown[::-1] if falling else shown)
    return Exchange(question, "I put the numbers in order.", answer, (answer,))


def _weather(values: Values, temperature: float) -> Weather:
    shown = round(temperature, 1)
    return Weather(values.city(), shown, str(int(shown) if shown == int(shown) else shown))
