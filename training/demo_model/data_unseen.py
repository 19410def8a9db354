"""Tools that the model was never told of, with requests that their schemas answer.

A name, an argument and a value each belong to one side of the split; the sentences occur on both.
"""

from collections.abc import Callable
from typing import NamedTuple

from training.demo_model.data_everyday import everyday_tool
from training.demo_model.data_requests import Request
from training.demo_model.data_tools import ToolDefinition, define
from training.demo_model.data_values import Values

VERBS = (
    "book play create delete add remove open close start stop order count rename move copy share schedule cancel "
    "reserve pay list show fetch get set update turn lock unlock print record upload download archive invite notify "
    "rate sort filter merge split encrypt compress resize rotate crop publish subscribe buy sell rent track log roll "
    "post check measure scan sync load store draw ring fill empty mark pin tag assign approve reject submit ship load "
    "convert choose pick clear reset restart enable disable mute show hide zoom paint clean wash feed water cook bake"
)
NOUNS = (
    "flight song light ticket invoice playlist room table taxi note task alarm event file folder photo video report "
    "user account order product cart payment price stock parcel door window lamp heater camera robot car bike bus "
    "train train_seat hotel meeting contact number message comment channel server database backup branch issue page "
    "form survey quiz game score level coin token card dice timer clock sensor pump valve fan oven fridge garden plant "
    "dog cat bird book chapter recipe ingredient meal drink bottle box bag shelf map route city_tour park museum "
    "league team player coach lesson course grade exam library license device printer screen volume brightness "
    "temperature currency unit color_theme font logo banner badge label "
    "log_entry metric chart graph dashboard counter queue job"
)
KEYS = (
    "title name amount count date day city country street number color size level speed volume user_id order_id id key "
    "code text message topic subject author owner label tag category type mode state unit price currency weight height "
    "width length depth angle duration minutes hours seconds start end source target origin destination from_city "
    "to_city language format path file folder url host port percent temperature brightness limit page query value item "
    "ingredient artist album genre team player score room table guests nights seat reason note priority status"
)
# Of the training's requests for unseen tools; evaluation measures them in a category of their own.
EVERYDAY_SHARE = 0.55
# Of training's names and keys, drawn from the whole word list: what is not listed above has to be copied all the same.
RANDOM_NAMES, RANDOM_KEYS = 0.65, 0.5
FLAGS = "enabled active public urgent loud open final silent force recursive verbose draft private shared visible"


class Argument(NamedTuple):
    """An argument's name and type."""

    name: str
    kind: str


def unseen_tool(values: Values) -> tuple[ToolDefinition, str, list[Argument]]:
    """Return a tool with its name in words and its arguments."""
    verb, noun = values.phrase(tuple(VERBS.split())), values.phrase(tuple(NOUNS.split()))
    if not values.held_out and values.chance(RANDOM_NAMES):
        verb, noun = (values.word() if values.chance(0.7) else verb), values.word()
    name = _joined(values, verb, noun)
    arguments = _arguments(values)
    schema = {argument.name: argument.kind for argument in arguments}
    return define(name, schema), f"{verb} {noun.replace('_', ' ')}", arguments


def _joined(values: Values, verb: str, noun: str) -> str:
    form = values.rng.random()
    if form < 0.72:
        return f"{verb}_{noun}"
    if form < 0.84:
        return verb + noun.title().replace("_", "")
    return f"{noun}_{verb}" if form < 0.92 else f"{verb}-{noun.replace('_', '-')}"


def _arguments(values: Values) -> list[Argument]:
    found: dict[str, str] = {}
    for _ in range(values.pick((0, 1, 1, 1, 2, 2, 3))):
        kind = values.pick(("string", "string", "string", "integer", "integer", "number", "boolean"))
        found[_key(values, kind)] = kind
    return [Argument(name, kind) for name, kind in found.items()]


def _key(values: Values, kind: str) -> str:
    if kind == "boolean":
        return values.phrase(tuple(FLAGS.split()))
    if not values.held_out and values.chance(RANDOM_KEYS):
        return values.word()
    return values.phrase(tuple(KEYS.split()))


def _value(values: Values, kind: str) -> object:
    texts: tuple[Callable[[], str], ...] = (
        lambda: values.words(1, 3),
        values.word,
        values.city,
        values.person,
        values.color,
        values.topic,
    )
    makers: dict[str, Callable[[], object]] = {
        "integer": lambda: values.between(0, 99) if values.chance(0.6) else values.between(100, 99999),
        "number": lambda: values.between(0, 999) / 10,
        "boolean": lambda: values.chance(0.5),
        "string": lambda: values.pick(texts)(),
    }
    return makers[kind]()


def unseen_request(values: Values) -> tuple[ToolDefinition, Request]:
    """Return an unseen tool and a request that asks for it."""
    tool, ask = declared_tool(values)
    return tool, ask()


def declared_tool(values: Values) -> tuple[ToolDefinition, Callable[[], Request]]:
    """Return an unseen tool, in training an everyday one at times, and a maker of requests for it."""
    everyday = not values.held_out and values.chance(EVERYDAY_SHARE)
    return everyday_tool(values) if everyday else _unseen(values)


def _unseen(values: Values) -> tuple[ToolDefinition, Callable[[], Request]]:
    tool, spoken, arguments = unseen_tool(values)
    name = str(tool["function"]["name"])

    def ask() -> Request:
        given = {argument.name: _value(values, argument.kind) for argument in arguments}
        question = values.pick((_sentence, _sentence, _titled, _named))(values, name, spoken, given)
        return Request(name, question, given, f"The user asks for {name}.")

    return tool, ask


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairs(values: Values, given: dict[str, object]) -> str:
    link, join = values.pick((" ", " ", ": ", " = ", " is ")), values.pick((" and ", ", ", " "))
    spoken = values.chance(0.5)
    return join.join(f"{key.replace('_', ' ') if spoken else key}{link}{_shown(value)}" for key, value in given.items())


def _sentence(values: Values, _name: str, spoken: str, given: dict[str, object]) -> str:
    """As in "please book a flight with city Rome", or "book a flight to Rome"."""
    verb, _, noun = spoken.partition(" ")
    start = values.pick(("", "", "", "please ", "can you ", "could you ", "i want to ", "now "))
    text = f"{start}{verb} {values.pick(('', 'a ', 'the ', 'my ', 'the '))}{noun}"
    if not given:
        return text
    if len(given) == 1 and values.chance(0.6):
        link = values.pick((" ", " ", ": ", " to ", " for ", " at ", " called ", " in "))
        return f"{text}{link}{_shown(next(iter(given.values())))}"
    return f"{text}{values.pick((' with ', ' with the ', ', ', ': ', ' where '))}{_pairs(values, given)}"


def _titled(values: Values, _name: str, spoken: str, given: dict[str, object]) -> str:
    """As the page offers it: the tool's name and its arguments', then a colon and what the person wrote."""
    title = spoken[:1].upper() + spoken[1:]
    if not given:
        return title
    names = " and ".join(key.replace("_", " ") for key in given)
    return f"{title}, {names}: {values.pick((', ', ' and ')).join(_shown(value) for value in given.values())}"


def _named(values: Values, name: str, _spoken: str, given: dict[str, object]) -> str:
    """As someone writes who knows the tool's name."""
    start = values.pick(("", "call ", "use ", "run ", "please call ", "call the tool ", "use the tool "))
    if not given:
        return start + name
    if values.chance(0.25):
        return f"{start}{name}({', '.join(f'{key}={_shown(value)}' for key, value in given.items())})"
    return f"{start}{name}{values.pick((' with ', ' with ', ' ', ': '))}{_pairs(values, given)}"
