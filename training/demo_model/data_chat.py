"""Small talk, questions about the model itself, and honest refusals."""

from collections.abc import Callable
from typing import NamedTuple

from training.demo_model.data_phrases import Section, draw, read_sections
from training.demo_model.data_quiz import subject as quiz_subject
from training.demo_model.data_values import Values


class Exchange(NamedTuple):
    """A user's message, a thought and an answer, without any tool."""

    question: str
    thought: str
    answer: str
    carried: tuple[str, ...] = ()


KNOWLEDGE_QUESTIONS = (
    "what is {}",
    "who is {}",
    "who was {}",
    "explain {}",
    "what is the capital of {}",
    "tell me about {}",
    "how does {} work",
    "why is {} important",
    "what do you know about {}",
    "where is {}",
    "what does {} mean",
    "how old is {}",
    "do you know {}",
    "when was {} invented",
    "what is the history of {}",
    "what are {}",
    "what's {}",
    "whats {}",
    "who invented {}",
    "who wrote {}",
    "how tall is {}",
    "how far is {}",
    "how big is {}",
    "how many {} are there",
    "tell me something about {}",
    "do you know anything about {}",
    "give me facts about {}",
    "can you explain {}",
    "what can you tell me about {}",
    "where do {} come from",
    "i want to know about {}",
)
REPEAT_REQUESTS = (
    "repeat: {}",
    "say {}",
    "repeat after me: {}",
    "echo {}",
    "please say: {}",
    "print {}",
    "repeat {}",
)
STATEMENTS = (
    "my {} is {}",
    "i like {}",
    "i have a {}",
    "yesterday i saw a {}",
    "the {} is too {}",
    "we went to the {} with {}",
    "i think that {} are {}",
    "there was a {} in my {}",
    "my {} likes {}",
    "if the {} were {}",
    "you and the {}",
    "i want a {}",
    "i bought a new {}",
    "people say that {} are {}",
    "do you like {}",
    "why is my {} so {}",
    "should i buy a {}",
    "is {} better than {}",
    "would you rather be {} or {}",
    "can a {} be {}",
    "are there any {}",
    "does a {} have {}",
    "how many {} has a {}",
    "when will the {} be {}",
)
# More ways of training alone to ask for a repetition, so that evaluation's draws stay as they were.
MORE_REPEATS = ("repeat after me: {}", "repeat after me {}", "say: {}", "please repeat: {}", "can you say {}")
# What people type first, which training draws more often.
COMMON = ("greeting", "wellbeing", "self", "skills", "server", "thanks", "bye", "models", "short", "praise", "test")
COMMON_SHARE = 0.3
UNCLEAR_ANSWER = "I did not understand that. I am only a tiny demo model. Ask me what I can do."


def small_talk(values: Values) -> Exchange:
    """Return an exchange about the model or about nothing in particular."""
    intent = values.pick(read_sections("talk_known"))
    if not values.held_out and values.chance(COMMON_SHARE):
        intent = values.pick([section for section in read_sections("talk_known") if section.name in COMMON])
        return Exchange(values.pick(intent.whole), intent.thought, intent.answer, (intent.answer,))
    question = values.pick(intent.whole)
    if not values.held_out and values.chance(0.6):
        question = draw(values, "talk", _more(intent.name))[0]
    elif len(question) > 6 and values.chance(0.04):
        gap = values.between(1, len(question) - 2)
        question = question[:gap] + question[gap + 1 :]
    return Exchange(question, intent.thought, intent.answer, (intent.answer,))


def more_talk(values: Values) -> Exchange:
    """Return small talk whose phrases are split, so that evaluation asks what training never did."""
    intent = values.pick(read_sections("talk_known"))
    return Exchange(draw(values, "talk", _more(intent.name))[0], intent.thought, intent.answer, (intent.answer,))


def _more(name: str) -> Section:
    return next(section for section in read_sections("talk") if section.name == name)


def knowledge(values: Values) -> Exchange:
    """Return a question about the world, which the model cannot answer."""
    subject = values.pick((values.topic, values.topic, values.city, values.person))()
    if not values.held_out and values.chance(0.2):
        subject = quiz_subject(values)
    question = values.pick(KNOWLEDGE_QUESTIONS).format(subject)
    answer = f"I am only a tiny demo model and know nothing about {subject}. A real model will."
    return Exchange(question, f"I do not know {subject}.", answer, (subject,))


def unclear(values: Values) -> Exchange:
    """Return words without a request in them, or a statement with which the model can do nothing."""
    text = values.words(2, 9) if values.chance(0.5) else _statement(values)
    return Exchange(text, "This makes no sense to me.", UNCLEAR_ANSWER)


def _statement(values: Values) -> str:
    pieces = (values.pick(STATEMENTS).format(values.words(1, 2), values.words(1, 2)) for _ in range(2))
    text = values.pick((". ", ", and ", " because ", " but ")).join(pieces)
    text = text if values.chance(0.4) else values.pick(STATEMENTS).format(values.words(1, 2), values.words(1, 2))
    return text[:1].upper() + text[1:] + values.pick((".", "", "!", "?")) if values.chance(0.6) else text


def repetition(values: Values) -> Exchange:
    """Return a request to repeat words, numbers or a random string."""
    texts: tuple[Callable[[], str], ...] = (
        lambda: values.words(1, 8),
        lambda: values.words(1, 8),
        values.city,
        lambda: values.arithmetic()[1],
        lambda: " ".join(values.number() for _ in range(values.between(1, 5))),
        lambda: " ".join(values.letters(1, 8) for _ in range(values.between(2, 9))),
    )
    text = values.pick(texts)()
    forms = REPEAT_REQUESTS if values.held_out else (*REPEAT_REQUESTS, *MORE_REPEATS)
    question = values.pick(forms).format(text)
    return Exchange(question, "The user wants to hear this again.", text, (text,))


def introduction(values: Values) -> Exchange:
    """Return an exchange in which the user gives a name."""
    name = values.person()
    question = values.pick(("my name is {}", "i am {}", "i'm {}", "call me {}")).format(name)
    return Exchange(question, f"The user is {name}.", f"Nice to meet you, {name}!", (name,))
