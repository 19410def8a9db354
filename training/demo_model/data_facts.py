"""Questions about this server and the world, and what the model cannot do, with one honest sentence each."""

import re

from training.demo_model.data_arithmetic import equation
from training.demo_model.data_chat import KNOWLEDGE_QUESTIONS, Exchange
from training.demo_model.data_phrases import Section, draw, read_sections
from training.demo_model.data_quiz import code_request, quiz_question
from training.demo_model.data_values import Values

HOW = (
    "how do i {}",
    "how can i {}",
    "how to {}",
    "how does one {}",
    "i want to {}",
    "can i {}",
    "{}",
    "tell me how to {}",
    "show me how to {}",
    "what do i need to {}",
    "how would i {}",
    "is it possible to {}",
    "explain how to {}",
    "i would like to {}",
    "what is the way to {}",
    "help me {}",
    "how do you {}",
    "how do we {}",
    "how could i {}",
    "how should i {}",
    "i need to {}",
    "i'd like to {}",
    "i am trying to {}",
    "i'm trying to {}",
    "would it be possible to {}",
    "is there a way to {}",
    "is it hard to {}",
    "am i able to {}",
    "what is the easiest way to {}",
    "what's the best way to {}",
    "do you know how to {}",
    "could you tell me how to {}",
    "can you explain how to {}",
    "where do i {}",
    "any idea how to {}",
    "i don't know how to {}",
    "i do not understand how to {}",
    "what do i have to do to {}",
    "what are the steps to {}",
    "which command do i need to {}",
    "my team wants to {}",
    "we want to {}",
    "please explain how to {}",
    "{} how",
    "need help to {}",
    "what does it take to {}",
    "could i {}",
    "may i {}",
    "steps to {}",
)
# What people write most, which training draws more often, whichever side of the split it is on.
PLAIN_HOW = ("how do i {}", "how do i {}", "how can i {}", "how to {}")
PLAIN_SHARE = 0.4
COMMON = ("copilotkit", "openai", "client", "tool", "agent", "install", "gpu", "anthropic", "port")
COMMON_SHARE = 0.4
FACT_OPENINGS = (
    *("",) * 14,
    "please ",
    "hey, ",
    "sorry, ",
    "and ",
    "ok, ",
    "one question: ",
    "quick question: ",
    "hello, ",
    "hi there, ",
    "so ",
    "just wondering, ",
    "i am new here. ",
    "i'm building a react app. ",
    "i have a next.js project. ",
    "we are evaluating this. ",
    "i read the readme. ",
    "another question: ",
    "one more thing: ",
    "great. ",
    "thanks. ",
    "i have a python project. ",
    "for my project: ",
)

# Evaluation asks whole phrases; the loosened ones are for training alone.
LOOSE_SHARE = 0.25
SMALL_WORD_LIST = (
    "a the to of in on it i you for with that this what how my me do can is are would could please does possible about "
    "there any want need way so here if one which where tell show know like use your now just also really"
)
SMALL_WORDS = SMALL_WORD_LIST.split()

ASKS = (
    "{}",
    "{}",
    "can you {}",
    "could you {}",
    "please {}",
    "i want you to {}",
    "would you {}",
    "you should {}",
    "{} please",
    "can you please {}",
    "could you please {}",
    "will you {}",
    "i need you to {}",
    "are you able to {}",
    "i would like you to {}",
    "i'd like you to {}",
    "help me {}",
    "do you know how to {}",
    "is it possible for you to {}",
    "hey, {}",
    "let's {}",
    "now {}",
    "try to {}",
    "i want to {}",
)
# The sections of `limits.txt` that are not requests are asked for less often.
RARE = {"person": 0.1, "meaning": 0.07, "blame": 0.08}
EQUATION_SHARE = 0.08
# Of training's questions about the world, and of what it declines.
QUIZ_SHARE, CODE_SHARE = 0.5, 0.12

# Questions in a form whose answer names the subject (`data_chat.knowledge`), so that no form has two answers.
NAMES_A_SUBJECT = re.compile("|".join(re.escape(form).replace(r"\{\}", ".+") for form in KNOWLEDGE_QUESTIONS))


def fact(values: Values) -> Exchange:
    """Return a question about the server, with the fact that answers it."""
    section = values.pick(read_sections("facts"))
    if not values.held_out and values.chance(COMMON_SHARE):
        section = values.pick([section for section in read_sections("facts") if section.name in COMMON])
    question, is_end = draw(values, "facts", section)
    if is_end:
        question = _how(values).format(question)
    question = values.pick(FACT_OPENINGS) + _loosened_at_times(values, question)
    return Exchange(question, section.thought, section.answer, (section.answer,))


def _how(values: Values) -> str:
    plain = not values.held_out and values.chance(PLAIN_SHARE)
    return values.pick(PLAIN_HOW) if plain else values.phrase(HOW)


def _loosened_at_times(values: Values, question: str) -> str:
    return loosened(values, question) if not values.held_out and values.chance(LOOSE_SHARE) else question


def loosened(values: Values, question: str) -> str:
    """Return a question with some of its small words left out and others put in, so that its subject counts."""
    words = [word for word in question.split(" ") if word not in SMALL_WORDS or values.chance(0.6)]
    for _ in range(values.pick((0, 1, 1, 2, 3))):
        words.insert(values.between(0, len(words)), values.pick(SMALL_WORDS))
    return " ".join(words)


def _limit(values: Values) -> Section:
    form = values.rng.random()
    rare = {section.name: section for section in read_sections("limits") if section.name in RARE}
    for name, share in RARE.items():
        if form < share:
            return rare[name]
        form -= share
    return values.pick([section for section in read_sections("limits") if section.name not in RARE])


def declined(values: Values) -> Exchange:
    """Return a request that no tool and no fact serves, with one honest sentence."""
    if values.chance(EQUATION_SHARE):
        section = next(section for section in read_sections("limits") if section.name == "teach")
        return Exchange(equation(values), section.thought, section.answer, (section.answer,))
    if not values.held_out and values.chance(CODE_SHARE):
        section = next(section for section in read_sections("limits") if section.name == "code")
        return Exchange(code_request(values), section.thought, section.answer, (section.answer,))
    section = _limit(values)
    question, is_end = draw(values, "limits", section)
    if is_end:
        question = values.pick(ASKS).format(question)
    if section.name not in RARE:
        question = _loosened_at_times(values, question)
    return Exchange(question, section.thought, section.answer, (section.answer,))


def world(values: Values) -> Exchange:
    """Return a question about the world in natural words, or a statement that asks for nothing."""
    file = "world" if values.chance(0.7) else "statements"
    section = values.pick(read_sections(file))
    question = draw(values, file, section)[0]
    if not values.held_out and file == "world" and values.chance(QUIZ_SHARE):
        question = quiz_question(values)
    while not values.held_out and NAMES_A_SUBJECT.fullmatch(question):
        question = draw(values, file, section)[0]
    return Exchange(question, section.thought, section.answer, (section.answer,))
