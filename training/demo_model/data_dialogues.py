"""Whole dialogues of every category, from the values, requests and results."""

import random
from collections.abc import Callable, Iterator
from itertools import chain

from training.demo_model.data_chat import (
    Exchange,
    introduction,
    knowledge,
    more_talk,
    repetition,
    small_talk,
    unclear,
)
from training.demo_model.data_conversations import NAME_QUESTIONS, Conversation, Turn, follow_up_kinds
from training.demo_model.data_everyday import everyday_request
from training.demo_model.data_facts import declined, fact, world
from training.demo_model.data_languages import foreign
from training.demo_model.data_messages import (
    SUBJECTS,
    absence,
    asked,
    assistant,
    call_thought,
    calling,
    joined_answers,
    styled,
    thinking_at_times,
    user,
    words_of,
)
from training.demo_model.data_packed import packed_comparisons, packed_talk, packed_tools, packed_turns
from training.demo_model.data_requests import ASK, Request, ask_plan, ask_search
from training.demo_model.data_results import Outcome, denial_outcome, failure_outcome, outcome_of, plan_outcome
from training.demo_model.data_system import system_message
from training.demo_model.data_tools import (
    ToolDefinition,
    argument_types,
    demo_tool,
    invented_tool,
    some_tools,
    tool_name,
    toolset,
)
from training.demo_model.data_unseen import unseen_request
from training.demo_model.data_values import Values
from training.demo_model.render import Dialogue, Message

CATEGORY_WEIGHTS = {
    "chat": 36,
    "fact": 56,
    "declined": 36,
    "foreign": 22,
    "talk": 5,
    "packed": 30,
    "packed_turns": 22,
    "packed_tools": 20,
    "packed_compared": 16,
    "world": 20,
    "knowledge": 18,
    "unclear": 6,
    "repeat": 20,
    "name": 6,
    "call": 32,
    "two_calls": 20,
    "invented_call": 2,
    "unseen_call": 38,
    "everyday_call": 24,
    "absent": 20,
    "unseen_absent": 2,
    "answer": 20,
    "two_answers": 22,
    "plan_answer": 11,
    "refusal": 18,
    "search_answer": 11,
    "invented_answer": 1,
    "unseen_answer": 2,
    "follow_up": 4,
    "follow": 38,
    "compare_pair": 17,
    "long": 4,
}
CALL_WEIGHTS = {
    "get_weather": 2,
    "calculate": 6,
    "get_time": 2,
    "change_background": 2,
    "generate_task_steps": 5,
    "search": 2,
    "send_email": 4,
    "write_document": 3,
    "generate_haiku": 2,
}
# Characters of a long conversation's messages, as Python prints them; the longest come to some 4,000 tokens.
LONG_CHARACTERS = (3000, 4000, 6000, 8000, 12000, 17000)
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
            "packed": lambda: packed_talk(self.values),
            "packed_turns": lambda: packed_turns(self.values),
            "packed_tools": lambda: packed_tools(self.values),
            "packed_compared": lambda: packed_comparisons(self.values),
            "talk": lambda: self._plain("talk", more_talk),
            "world": lambda: self._plain("world", world),
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
            "plan_answer": self._plan,
            "search_answer": lambda: self._answers("search_answer", [ask_search(self.values)]),
            "fact": lambda: self._plain("fact", fact),
            "declined": lambda: self._plain("declined", declined),
            "foreign": lambda: self._plain("foreign", foreign),
            "refusal": self._refusal,
            "unseen_call": lambda: self._unseen("unseen_call"),
            "unseen_answer": lambda: self._unseen("unseen_answer"),
            "everyday_call": lambda: self._unseen("everyday_call", everyday_request),
            "unseen_absent": self._unseen_absent,
            "compare_pair": self._compare_pair,
            "follow": self._follow,
            "long": self._long,
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
        messages = system_message(self.values)
        turns = self.values.pick((0,) * 15 + (1, 1, 1, 1, 1, 2, 2, 3, 4))
        past = Conversation(self.values, tools)
        return [*messages, *chain.from_iterable(past.turn().messages for _ in range(turns))]

    def _past_call(self, request: Request) -> list[Message]:
        outcome = outcome_of(self.values, request)
        return [
            user(styled(self.values, request.question, words_of(request))),
            calling([request]),
            {"role": "tool", "content": outcome.content},
            assistant(outcome.answer),
        ]

    def _plain(self, kind: str, make: Callable[[Values], Exchange]) -> Dialogue:
        tools = some_tools(self.values)
        messages = self._opening(tools)
        exchange = make(self.values)
        free = kind in ("repeat", "unclear")
        question = exchange.question if free else asked(self.values, exchange)
        messages += [user(question), assistant(exchange.answer, exchange.thought)]
        return Dialogue(kind, messages, tools, thinking_at_times(self.values), exchange.carried)

    def _name(self) -> Dialogue:
        tools = some_tools(self.values)
        messages = self._opening(tools)
        told = introduction(self.values)
        messages += [user(styled(self.values, told.question)), assistant(told.answer, told.thought)]
        if self.values.chance(0.5):
            question = styled(self.values, self.values.pick(NAME_QUESTIONS))
            messages += [user(question), assistant(f"You are {told.carried[0]}.", told.thought)]
        return Dialogue("name", messages, tools, thinking_at_times(self.values), told.carried)

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
            return styled(self.values, first.question, words_of(*requests))
        second = requests[1]
        link = self.values.pick((" and ", " and ", " and also ", ", and "))
        if second.tool != first.tool:
            return styled(self.values, f"{first.question}{link}{second.question}", words_of(*requests))
        return styled(self.values, f"{self._stem(first)}{link}{second.short}", words_of(*requests))

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
        return Dialogue(kind, messages, tools, thinking_at_times(self.values))

    def _answers(self, kind: str, requests: list[Request]) -> Dialogue:
        return self._answered(kind, requests, [outcome_of(self.values, request) for request in requests])

    def _answered(self, kind: str, requests: list[Request], outcomes: list[Outcome]) -> Dialogue:
        dialogue = self._calls(kind, requests)
        if self.values.chance(0.2):
            dialogue.messages[-1]["reasoning_content"] = ""
        dialogue.messages += [{"role": "tool", "content": item.content} for item in outcomes]
        thought = "I have the result." if len(outcomes) == 1 else "I have the results."
        dialogue.messages.append(assistant(joined_answers(outcomes), thought))
        dialogue.carried = tuple(chain.from_iterable(item.carried for item in outcomes))
        dialogue.forbidden = tuple(chain.from_iterable(item.forbidden for item in outcomes))
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
        request = ASK[name](self.values)
        question = styled(self.values, request.question, words_of(request))
        messages = [*self._opening(tools), user(question), absence(name)]
        return Dialogue("absent", messages, tools, thinking_at_times(self.values), (SUBJECTS[name],))

    def _follow_up(self) -> Dialogue:
        tool = self.values.pick((*PAIRABLE, "get_weather", "change_background"))
        tools = toolset(self.values, (tool,))
        first, second = ASK[tool](self.values), ASK[tool](self.values)
        messages = [*self._opening(tools), *self._past_call(first)]
        forms = FOLLOW_UPS if tool in ("get_weather", "get_time") else FOLLOW_UPS[1:]
        messages.append(user(styled(self.values, self.values.pick(forms).format(second.short))))
        messages.append(calling([second], call_thought([second])))
        return Dialogue("follow_up", messages, tools, thinking_at_times(self.values))

    def _plan(self) -> Dialogue:
        request = ask_plan(self.values)
        return self._answered("plan_answer", [request], [plan_outcome(self.values, request)])

    def _compare_pair(self) -> Dialogue:
        """A question that compares two places, which takes two calls; ends with the calls or with the comparison."""
        first, second = ASK["get_weather"](self.values), ASK["get_weather"](self.values)
        tools = toolset(self.values, ("get_weather",))
        turn = Conversation(self.values, tools).compared(first, second)
        return self._ending("compare_pair", self._opening(tools), turn, tools)

    def _refusal(self) -> Dialogue:
        """A call that a person refused, or that failed."""
        if self.values.chance(0.15):
            tool, request = unseen_request(self.values)
            return self._with_tool(self._refused(request), tool)
        return self._refused(self._single_request()[0])

    def _refused(self, request: Request) -> Dialogue:
        make = denial_outcome if self.values.chance(0.6) else failure_outcome
        return self._answered("refusal", [request], [make(self.values, request)])

    def _with_tool(self, dialogue: Dialogue, tool: ToolDefinition) -> Dialogue:
        """Declare a tool beside the others, in any place."""
        others = [other for other in dialogue.tools if tool_name(other) != tool_name(tool)]
        others.insert(self.values.between(0, len(others)), tool)
        dialogue.tools = others
        return dialogue

    def _unseen(self, kind: str, ask: Callable[[Values], tuple[ToolDefinition, Request]] = unseen_request) -> Dialogue:
        tool, request = ask(self.values)
        is_call = kind != "unseen_answer"
        dialogue = self._with_tool(self._calls(kind, [request]) if is_call else self._answers(kind, [request]), tool)
        for _ in range(self.values.pick((0, 0, 1, 2, 4))):
            other = self.values.pick((ask, unseen_request))(self.values)[0]
            if tool_name(other) != tool_name(tool):
                self._with_tool(dialogue, other)
        return dialogue

    def _unseen_absent(self) -> Dialogue:
        """A request for an unseen tool that is not declared."""
        _, request = unseen_request(self.values)
        tools = [tool for tool in some_tools(self.values) if tool_name(tool) != request.tool]
        thought = f"The user asks for {request.tool}, but no tool here does that."
        messages = [*self._opening(tools), user(styled(self.values, f"call {request.tool}", (request.tool,)))]
        messages.append(assistant(f"Sorry, I was given no tool called {request.tool}.", thought))
        return Dialogue("unseen_absent", messages, tools, thinking_at_times(self.values), ("no tool", request.tool))

    def _follow(self, kind: str | None = None) -> Dialogue:
        """A turn that leans on the ones before it."""
        tools = toolset(self.values, ("get_weather",) if self.values.chance(0.5) else ())
        chosen = kind or self.values.pick(follow_up_kinds(tools))
        talk = Conversation(self.values, tools)
        messages = system_message(self.values)
        for _ in range(self.values.pick((0, 0, 0, 1, 2, 3))):
            messages += talk.turn().messages
        messages += talk.prepare(chosen)
        return self._ending("follow", messages, talk.turn(chosen), tools)

    def _ending(self, kind: str, messages: list[Message], turn: Turn, tools: list[ToolDefinition]) -> Dialogue:
        """The turn's last answer is the expected one; of a turn with a call, now and then the call.

        A training row learns every answer of its last turn, so that few of them end with the call.
        """
        whole = turn.messages
        carried, forbidden = turn.carried, turn.forbidden
        if len(whole) > 2 and self.values.chance(0.6 if self.values.held_out else 0.15):
            whole, carried, forbidden = whole[:2], (), ()
        return Dialogue(kind, [*messages, *whole], tools, thinking_at_times(self.values), carried, forbidden)

    def _long(self) -> Dialogue:
        """A conversation of up to sixty turns, or up to `LONG_CHARACTERS`."""
        tools = toolset(self.values)
        turns = self.conversation(tools, self.values.between(6, 60))
        limit, size, shown = self.values.pick(LONG_CHARACTERS), 0, list[Turn]()
        for turn in turns:
            size += sum(len(str(message)) for message in turn.messages)
            if size > limit and shown:
                break
            shown.append(turn)
        messages = system_message(self.values)
        past = list(chain.from_iterable(turn.messages for turn in shown[:-1]))
        return self._ending("long", [*messages, *past], shown[-1], tools)

    def make_turns(self, count: int) -> Dialogue:
        """Return a conversation whose expected answer ends the turn of that number."""
        tools = toolset(self.values)
        turns = self.conversation(tools, count)
        past = list(chain.from_iterable(turn.messages for turn in turns[:-1]))
        return without_stray_thoughts(self._ending(f"turns_{count}", past, turns[-1], tools))

    def conversation(self, tools: list[ToolDefinition], count: int) -> list[Turn]:
        """Return the turns of a conversation."""
        talk = Conversation(self.values, tools)
        return [talk.turn() for _ in range(count)]


def demo_toolset() -> list[ToolDefinition]:
    """Return every tool of the demo."""
    return [demo_tool(name) for name in ASK]
