"""Whole dialogues of every category, from the values, requests and results."""

import random
from collections.abc import Callable, Iterator
from itertools import chain

from training.demo_model.data_chat import (
    Exchange,
    introduction,
    knowledge,
    repetition,
    small_talk,
    unclear,
)
from training.demo_model.data_requests import ASK, Request, ask_plan
from training.demo_model.data_results import Outcome, outcome_of
from training.demo_model.data_system import system_prompt
from training.demo_model.data_tools import (
    ToolDefinition,
    argument_types,
    demo_tool,
    invented_tool,
    tool_name,
    toolset,
)
from training.demo_model.data_values import Values
from training.demo_model.render import Dialogue, Message

CATEGORY_WEIGHTS = {
    "chat": 14,
    "knowledge": 6,
    "unclear": 2,
    "repeat": 4,
    "name": 2,
    "call": 25,
    "two_calls": 9,
    "invented_call": 2,
    "absent": 14,
    "answer": 13,
    "two_answers": 8,
    "plan_answer": 9,
    "invented_answer": 1,
    "follow_up": 6,
}
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
CALL_WEIGHTS = {
    "get_weather": 2,
    "calculate": 3,
    "get_time": 2,
    "change_background": 2,
    "generate_task_steps": 5,
    "search": 2,
    "send_email": 4,
    "write_document": 3,
    "generate_haiku": 2,
}
PAIRABLE = ("get_weather", "get_time", "calculate")
JOINABLE = (*PAIRABLE, "change_background", "search")
FOLLOW_UPS = (
    "and in {}",
    "what about {}",
    "and {}",
    "how about {}",
    "and what about {}",
    "and for {}",
)
SUBJECTS = {
    "get_weather": "the weather",
    "calculate": "calculations",
    "get_time": "the time",
    "change_background": "the background",
    "generate_task_steps": "plans",
    "search": "searches",
    "send_email": "emails",
    "write_document": "documents",
    "generate_haiku": "haikus",
}
NAME_QUESTIONS = ("what is my name", "who am i", "do you remember my name", "what's my name")


def styled(values: Values, question: str) -> str:
    """Vary a question's capital letter, its ending and its opening."""
    is_question = question.lower().startswith(QUESTION_STARTS)
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


def invented_request(values: Values, tool: ToolDefinition) -> Request:
    """Ask for an unknown tool by its name and argument names."""
    arguments: dict[str, object] = {}
    for key, kind in argument_types(tool).items():
        makers: dict[str, Callable[[], object]] = {
            "integer": lambda: values.between(0, 999),
            "number": lambda: values.between(0, 999) / 10,
            "boolean": lambda: values.chance(0.5),
        }
        arguments[key] = makers.get(kind, lambda: values.words(1, 2))()
    name = tool_name(tool)
    spoken = name if values.chance(0.5) else name.replace("_", " ")
    shown = {key: str(value).lower() for key, value in arguments.items()}
    details = " and ".join(f"{key} {value}" for key, value in shown.items())
    question = f"{values.pick(('', 'call ', 'please ', 'use '))}{spoken}"
    question += f" with {details}" if details else ""
    return Request(name, question, arguments, f"The user asks for {name}.")


def without_stray_thoughts(dialogue: Dialogue) -> Dialogue:
    """Remove the thoughts of a dialogue in which thinking is switched off."""
    if not dialogue.thinking:
        for message in dialogue.messages:
            message.pop("reasoning_content", None)
    return dialogue


class DialogueFactory:
    """Makes dialogues from a seed, with the values of one side of the split."""

    def __init__(self, seed: str, held_out: bool = False) -> None:
        self.values = Values(random.Random(seed), held_out)
        self._makers: dict[str, Callable[[], Dialogue]] = {
            "chat": lambda: self._plain("chat", small_talk),
            "knowledge": lambda: self._plain("knowledge", knowledge),
            "unclear": lambda: self._plain("unclear", unclear),
            "repeat": lambda: self._plain("repeat", repetition),
            "name": self._name,
            "call": lambda: self._calls("call", self._single_request()),
            "two_calls": lambda: self._calls("two_calls", self._request_pair()),
            "invented_call": lambda: self._invented("invented_call"),
            "absent": self._absent,
            "answer": lambda: self._answers("answer", self._single_request()),
            "two_answers": lambda: self._answers("two_answers", self._request_pair()),
            "plan_answer": lambda: self._answers("plan_answer", [ask_plan(self.values)]),
            "invented_answer": lambda: self._invented("invented_answer"),
            "follow_up": self._follow_up,
        }

    def make(self, kind: str | None = None) -> Dialogue:
        """Return a dialogue of a category, or of a random one."""
        if kind is None:
            weights = list(CATEGORY_WEIGHTS.values())
            kind = self.values.rng.choices(list(CATEGORY_WEIGHTS), weights)[0]
        return without_stray_thoughts(self._makers[kind]())

    def stream(self) -> Iterator[Dialogue]:
        """Yield dialogues of random categories without end."""
        while True:
            yield self.make()

    def make_call(self, tool: str) -> Dialogue:
        """Return a dialogue that ends with a call of the tool."""
        return without_stray_thoughts(self._calls("call", [ASK[tool](self.values)]))

    def _opening(self, tools: list[ToolDefinition]) -> list[Message]:
        """Return a system message and up to four earlier turns."""
        text = system_prompt(self.values)
        messages = [{"role": "system", "content": text}] if text else []
        turns = self.values.pick((0,) * 18 + (1, 1, 1, 2, 3, 4))
        return [*messages, *chain.from_iterable(self._past_turn(tools) for _ in range(turns))]

    def _past_turn(self, tools: list[ToolDefinition]) -> list[Message]:
        known = [tool_name(tool) for tool in tools if tool_name(tool) in ASK]
        if known and self.values.chance(0.5):
            return self._past_call(ASK[self.values.pick(known)](self.values))
        exchange = self.values.pick((small_talk, small_talk, knowledge, introduction))(self.values)
        return [user(styled(self.values, exchange.question)), assistant(exchange.answer)]

    def _past_call(self, request: Request) -> list[Message]:
        outcome = outcome_of(self.values, request)
        return [
            user(styled(self.values, request.question)),
            calling([request]),
            {"role": "tool", "content": outcome.content},
            assistant(outcome.answer),
        ]

    def _thinking(self) -> bool:
        return self.values.chance(0.55)

    def _any_tools(self) -> list[ToolDefinition]:
        return toolset(self.values) if self.values.chance(0.6) else []

    def _plain(self, kind: str, make: Callable[[Values], Exchange]) -> Dialogue:
        tools = self._any_tools()
        messages = self._opening(tools)
        exchange = make(self.values)
        free = kind in ("repeat", "unclear")
        question = exchange.question if free else styled(self.values, exchange.question)
        messages += [user(question), assistant(exchange.answer, exchange.thought)]
        return Dialogue(kind, messages, tools, self._thinking(), exchange.carried)

    def _name(self) -> Dialogue:
        tools = self._any_tools()
        messages = self._opening(tools)
        told = introduction(self.values)
        messages += [user(styled(self.values, told.question)), assistant(told.answer, told.thought)]
        if self.values.chance(0.5):
            question = styled(self.values, self.values.pick(NAME_QUESTIONS))
            messages += [user(question), assistant(f"You are {told.carried[0]}.", told.thought)]
        return Dialogue("name", messages, tools, self._thinking(), told.carried)

    def _single_request(self) -> list[Request]:
        tool = self.values.rng.choices(list(CALL_WEIGHTS), list(CALL_WEIGHTS.values()))[0]
        return [ASK[tool](self.values)]

    def _request_pair(self) -> list[Request]:
        form = self.values.rng.random()
        if form < 0.2:
            return self._same_city_pair()
        if form < 0.6:
            tool = self.values.pick(PAIRABLE)
            return [ASK[tool](self.values), ASK[tool](self.values)]
        first = self.values.pick(JOINABLE)
        second = self.values.pick([name for name in JOINABLE if name != first])
        return [ASK[first](self.values), ASK[second](self.values)]

    def _same_city_pair(self) -> list[Request]:
        city = self.values.city()
        words = [("get_weather", "location", "weather"), ("get_time", "timezone", "time")]
        self.values.rng.shuffle(words)
        start = self.values.pick(("what is the {} and the {} in", "{} and {} in", "tell me the {} and {} in"))
        question = f"{start.format(words[0][2], words[1][2])} {city}"
        return [
            Request(tool, question, {key: city}, f"The user wants the {word} in {city}.", "")
            for tool, key, word in words
        ]

    def _question(self, requests: list[Request]) -> str:
        """Return one question that asks for everything."""
        first = requests[0]
        if len(requests) == 1 or first.question == requests[1].question:
            return styled(self.values, first.question)
        second = requests[1]
        link = self.values.pick((" and ", " and ", " and also ", ", and "))
        if second.tool != first.tool:
            return styled(self.values, f"{first.question}{link}{second.question}")
        return styled(self.values, f"{self._stem(first)}{link}{second.short}")

    def _stem(self, request: Request) -> str:
        """Return a question that ends with its value, so that a second value can follow."""
        stems = {
            "get_weather": ("weather in", "what is the weather in", "how is the weather in"),
            "get_time": ("time in", "what time is it in", "what is the time in"),
            "calculate": ("what is", "calculate", "compute", "how much is"),
        }
        return f"{self.values.pick(stems[request.tool])} {request.short}"

    def _calls(self, kind: str, requests: list[Request]) -> Dialogue:
        needed = tuple({request.tool: None for request in requests if request.tool in ASK})
        tools = toolset(self.values, needed)
        messages = [*self._opening(tools), user(self._question(requests))]
        messages.append(calling(requests, call_thought(requests)))
        return Dialogue(kind, messages, tools, self._thinking())

    def _answers(self, kind: str, requests: list[Request]) -> Dialogue:
        dialogue = self._calls(kind, requests)
        if self.values.chance(0.2):
            dialogue.messages[-1]["reasoning_content"] = ""
        outcomes = [outcome_of(self.values, request) for request in requests]
        dialogue.messages += [{"role": "tool", "content": item.content} for item in outcomes]
        thought = "I have the result." if len(outcomes) == 1 else "I have the results."
        dialogue.messages.append(assistant(joined_answers(outcomes), thought))
        dialogue.carried = tuple(chain.from_iterable(item.carried for item in outcomes))
        return dialogue

    def _invented(self, kind: str) -> Dialogue:
        tool = invented_tool(self.values)
        request = invented_request(self.values, tool)
        is_call = kind == "invented_call"
        dialogue = self._calls(kind, [request]) if is_call else self._answers(kind, [request])
        others = [other for other in dialogue.tools if tool_name(other) != tool_name(tool)]
        dialogue.tools = [tool, *others] if self.values.chance(0.5) else [*others, tool]
        return dialogue

    def _absent(self) -> Dialogue:
        name = self.values.pick(tuple(ASK))
        tools = toolset(self.values, absent=name) if self.values.chance(0.75) else []
        subject = SUBJECTS[name]
        answer = f"Sorry, I was given no tool for {subject}, so I cannot help with that."
        question = styled(self.values, ASK[name](self.values).question)
        messages = [*self._opening(tools), user(question)]
        messages.append(assistant(answer, f"The user wants {subject}, but no tool here does that."))
        return Dialogue("absent", messages, tools, self._thinking(), (subject,))

    def _follow_up(self) -> Dialogue:
        tool = self.values.pick((*PAIRABLE, "get_weather", "change_background"))
        tools = toolset(self.values, (tool,))
        first, second = ASK[tool](self.values), ASK[tool](self.values)
        messages = [*self._opening(tools), *self._past_call(first)]
        forms = FOLLOW_UPS if tool in ("get_weather", "get_time") else FOLLOW_UPS[1:]
        messages.append(user(styled(self.values, self.values.pick(forms).format(second.short))))
        messages.append(calling([second], call_thought([second])))
        return Dialogue("follow_up", messages, tools, self._thinking())


def demo_toolset() -> list[ToolDefinition]:
    """Return every tool of the demo."""
    return [demo_tool(name) for name in ASK]
