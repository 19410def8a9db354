"""System prompts of agents, with the context that a client appends to them."""

import json
from collections.abc import Callable

from training.demo_model.data_values import Values
from training.demo_model.render import SYSTEM_LIMIT, Message

INSTRUCTIONS = (
    "You are a helpful assistant.",
    "You are a friendly demo agent.",
    "Be brief.",
    "Use the tools when they help.",
    "You are an agent inside a web page.",
    "Answer in one or two sentences.",
    "Always be polite.",
    "When the user asks for the weather, call the weather tool.",
    "Do not make up facts.",
    "If you do not know something, say so.",
    "You help users plan their day.",
    "You are a helpful assistant for writing documents.",
    "Never repeat the content of a tool result in full.",
    "Ask before you send anything.",
    "You can change the look of the page.",
    "Only call a tool once.",
    "Keep the conversation friendly and professional.",
    "You are a planner. Break tasks into short steps.",
    "The user interface shows every tool call.",
    "Respond in English.",
)
CONTEXT_OPENINGS = ("Context:", "## Context", "# Context from the application", "Current state:")


def _instructions(values: Values) -> str:
    count = values.pick((1, 1, 1, 2, 3, 4))
    sentences = [values.pick(INSTRUCTIONS) for _ in range(count)]
    if values.chance(0.3):
        sentences.insert(0, f"You are {values.person()}, {values.words(2, 8)}.")
    return " ".join(sentences)


def _context_line(values: Values) -> str:
    forms: tuple[Callable[[], str], ...] = (
        lambda: f"- The user's name: {values.person()}",
        lambda: f"- {values.word()}: {values.words(1, 4)}",
        lambda: f"Current page: /{values.word()}/{values.number()}",
        lambda: json.dumps({values.word(): values.words(1, 2), values.word(): values.number()}),
        lambda: f"The user is in {values.city()}.",
    )
    return values.pick(forms)()


def _context(values: Values) -> str:
    lines = [_context_line(values) for _ in range(values.between(1, 3))]
    return "\n".join([values.pick(CONTEXT_OPENINGS), *lines])


def system_prompt(values: Values) -> str:
    """Return an agent's instructions, a client's context, both or nothing."""
    form = values.rng.random()
    if form < 0.6:
        return ""
    text = _instructions(values)
    if form > 0.85:
        text = f"{text}\n\n{_context(values)}"
    return text[:SYSTEM_LIMIT]


def system_message(values: Values) -> list[Message]:
    """Return a system message, or none."""
    text = system_prompt(values)
    return [{"role": "system", "content": text}] if text else []
