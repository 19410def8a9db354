"""Messages of a dialogue, and the ways in which a question is styled."""

import re
from collections.abc import Iterable

from training.demo_model.data_requests import Request
from training.demo_model.data_results import Outcome
from training.demo_model.data_typos import mistyped
from training.demo_model.data_values import Values
from training.demo_model.render import Message

WORD = re.compile(r"\w+")
QUESTION_STARTS = (
    "what",
    "how",
    "who",
    "which",
    "is ",
    "can ",
    "could",
    "do ",
    "does",
    "are ",
    "where",
    "why",
    "will",
    "when",
)
OPENINGS = ("hey, ", "hi, ", "ok, ", "please ", "now ", "hi! ", "and now ", "thanks! ")
ENDINGS = ("", "", "", ".", "!", " please", ", please")


def styled(values: Values, question: str, keep: Iterable[str] = ()) -> str:
    """Vary a question's capital letter, its ending and its opening, and now and then its spelling.

    keep: values in the question whose words are not misspelt.
    """
    is_question = question.lower().startswith(QUESTION_STARTS)
    if values.chance(values.typo_share):
        kept = frozenset(word for value in keep for word in WORD.findall(value.lower()))
        question = mistyped(values, question, kept, values.pick((0.0, 0.3, 0.6, 1.0)))
    text = question + values.pick(("?", "?", "") if is_question else ENDINGS)
    if values.chance(0.08):
        text = values.pick(OPENINGS) + text
    return text[:1].upper() + text[1:] if values.chance(0.55) else text


def user(text: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    """Return an assistant's message without calls."""
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def calling(requests: list[Request], thought: str = "") -> Message:
    """Return an assistant's message that makes the requested calls."""
    calls = [
        {"type": "function", "function": {"name": request.tool, "arguments": request.arguments}} for request in requests
    ]
    return {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": calls}


def call_thought(requests: list[Request]) -> str:
    """Return the thought that comes before the calls."""
    wishes = " ".join(request.thought for request in requests)
    return f"{wishes} I call {' and '.join(request.tool for request in requests)}."


def joined_answers(outcomes: list[Outcome]) -> str:
    """Return one answer to several results."""
    answers = [outcome.answer for outcome in outcomes]
    closed = [answer if answer[-1] in ".!?" else f"{answer}." for answer in answers[:-1]]
    return " ".join([*closed, answers[-1]])
