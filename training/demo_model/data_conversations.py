"""Conversations whose turns lean on earlier ones: comparisons, "and tomorrow?", "the other one", a place on its own."""

from collections.abc import Callable
from typing import NamedTuple

from training.demo_model.data_chat import (
    UNCLEAR_ANSWER,
    Exchange,
    introduction,
    knowledge,
    small_talk,
    unclear,
)
from training.demo_model.data_comparisons import Weather, compared, comparing_thought, comparing_word
from training.demo_model.data_facts import declined, fact, world
from training.demo_model.data_languages import foreign
from training.demo_model.data_messages import asked, assistant, call_thought, calling, joined_answers, styled, user
from training.demo_model.data_phrases import Section, draw, read_sections
from training.demo_model.data_requests import ASK, Request
from training.demo_model.data_results import Outcome, outcome_of
from training.demo_model.data_tools import ToolDefinition, tool_name
from training.demo_model.data_values import Values
from training.demo_model.render import Message

SURE_ANSWER = "That is what the tool said; I only passed it on."
UNSURE_ANSWER = "Please do not rely on me: I only show how the server works, and I can be wrong."
TALK = (small_talk, small_talk, fact, fact, declined, declined, knowledge, world, foreign, unclear)
TURNS = {section.name: section for section in read_sections("turns")}
# Requests that lack the value: the sections of `turns.txt` that bear a tool's name.
MISSING = tuple(name for name in ASK if name in TURNS)
NAME_QUESTIONS = ("what is my name", "who am i", "what's my name", "do you remember my name")
BARE = ("{}", "{}", "{} please", "in {}", "for {}", "{}, please", "i mean {}", "say {}")
MATH_MORE = {"math_plus": "+", "math_minus": "-", "math_times": "*", "math_divided": "/"}
PLACES = ("get_weather", "get_time")
REPEATED = (*PLACES, "calculate", "change_background")
LONGEST_PASTE = 260
FAILURES = ("Sorry", "Okay, I did not", "No answer", "I do not know")


def is_failure(outcome: Outcome) -> bool:
    """Tell whether an outcome is one of a call that was refused or failed."""
    return outcome.answer.startswith(FAILURES)


class Turn(NamedTuple):
    """A user's message, the answer with its calls and results, and what the answer has to and must not contain."""

    kind: str
    messages: list[Message]
    carried: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


class Conversation:
    """Makes turns one after the other and remembers what later ones can ask about."""

    def __init__(self, values: Values, tools: list[ToolDefinition]) -> None:
        self.values = values
        self.known = [name for tool in tools if (name := tool_name(tool)) in ASK]
        self.weather: list[Weather] = []
        self.last: Request | None = None
        self.failed = False
        self.number: str | None = None
        self.loser: Weather | None = None
        self.missing: str | None = None
        self.name: str | None = None
        self.answer = ""

    def turn(self, kind: str | None = None) -> Turn:
        """Return the next turn, of one kind or of one that fits what was said."""
        makers = self._makers()
        chosen = kind if kind is not None else self.values.pick(self._fitting())
        turn = makers[chosen]()
        if chosen not in ("compare", "other"):
            self.loser = None
        if chosen != "ask_back":
            self.missing = None
        self.answer = str(turn.messages[-1].get("content") or "")
        return turn

    def _makers(self) -> dict[str, Callable[[], Turn]]:
        return {
            "ask": self._ask,
            "talk": self._talk,
            "name": self._named,
            "recall": self._recall,
            "tomorrow": lambda: self._fixed("tomorrow", TURNS["tomorrow"]),
            "compare": self._compare,
            "other": self._other,
            "again": self._again,
            "sure": self._sure,
            "thanks": lambda: self._fixed("thanks", TURNS["thanks"]),
            "ask_back": self._ask_back,
            "supply": self._supply,
            "math_more": self._math_more,
            "value_more": self._value_more,
            "email_more": self._email_more,
            "paste": self._paste,
        }

    def follow_ups(self) -> list[str]:
        """Return the kinds of turns that lean on what was said before."""
        kinds = ["thanks"] if self.last else []
        if self.answer and len(self.answer) < LONGEST_PASTE:
            kinds += ["again", "sure"]
        if self.last and self.last.tool == "get_weather":
            kinds += ["tomorrow", "tomorrow"]
        if len(self.weather) > 1 and self.last and self.last.tool == "get_weather":
            kinds += ["compare"] * 4
        if self.loser:
            kinds += ["other"] * 8
        if self.missing:
            kinds += ["supply"] * 10
        if self.number is not None and self.last and self.last.tool == "calculate":
            kinds += ["math_more"] * 3
        if self.last and not self.failed and self.last.tool in REPEATED:
            kinds += ["value_more"] * 3
        if self.last and self.last.tool == "send_email":
            kinds += ["email_more"] * 3
        return kinds + (["recall"] if self.name else [])

    def _fitting(self) -> list[str]:
        kinds = [*self.follow_ups(), "talk", "talk", "talk", "name"]
        if self.values.chance(0.05):
            kinds.append("paste")
        if self.known:
            kinds += ["ask"] * 5
            if any(name in MISSING for name in self.known):
                kinds += ["ask_back"]
        return kinds

    def _tools_before(self, kind: str) -> tuple[str, ...]:
        """Return the tools that were called before a follow-up of this kind."""
        if kind in ("again", "sure", "thanks"):
            return (self.values.pick(self.known),)
        if kind == "value_more":
            return (self.values.pick([name for name in self.known if name in REPEATED]),)
        needed = {"tomorrow": ("get_weather",), "compare": ("get_weather",) * 2, "other": ("get_weather",) * 2}
        return {**needed, "math_more": ("calculate",), "email_more": ("send_email",)}.get(kind, ())

    def prepare(self, kind: str) -> list[Message]:
        """Return the turns that a kind of follow-up needs before it."""
        tools = self._tools_before(kind)
        messages: list[Message] = []
        if tools:
            for tool in tools:
                messages += self._ask(tool, certain=True).messages
            while kind in ("compare", "other") and not self._comparable(kind == "other"):
                messages += self._ask("get_weather", certain=True).messages
            self.answer = str(messages[-1]["content"])
        if kind == "other":
            messages += self.turn("compare").messages
        if kind == "supply":
            messages += self.turn("ask_back").messages
        if kind == "recall":
            messages += self.turn("name").messages
        return messages

    def _comparable(self, strictly: bool) -> bool:
        """Tell whether two places are known, and whether their temperatures differ where that is needed."""
        if len(self.weather) < 2:
            return False
        first, second = self.weather[-2:]
        return not strictly or first.temperature != second.temperature

    def _styled(self, question: str, *keep: str) -> str:
        return styled(self.values, question, keep)

    def _said(self, name: str) -> str:
        """Return one way to say what a section of `turns.txt` stands for."""
        return self._styled(self._drawn(name))

    def _drawn(self, name: str) -> str:
        return draw(self.values, "turns", TURNS[name])[0]

    def _fixed(self, kind: str, section: Section) -> Turn:
        told = assistant(section.answer, section.thought)
        return Turn(kind, [user(self._said(section.name)), told], (section.answer,))

    def _exchange(self, kind: str, exchange: Exchange, free: bool = False) -> Turn:
        question = exchange.question if free else asked(self.values, exchange)
        return Turn(kind, [user(question), assistant(exchange.answer, exchange.thought)], exchange.carried)

    def _talk(self) -> Turn:
        make = self.values.pick(
            (small_talk, small_talk, fact, fact, declined, declined, knowledge, world, foreign, unclear)
        )
        self.last = None
        return self._exchange("talk", make(self.values), free=make is unclear)

    def _named(self) -> Turn:
        told = introduction(self.values)
        self.name, self.last = told.carried[0], None
        return self._exchange("name", told)

    def _recall(self) -> Turn:
        question = self._styled(
            self.values.pick(("what is my name", "who am i", "what's my name", "do you know my name"))
        )
        answer = f"You are {self.name}."
        return Turn("recall", [user(question), assistant(answer, f"The user is {self.name}.")], (answer,))

    def _ask(self, tool: str | None = None, certain: bool = False) -> Turn:
        return self._called("ask", ASK[tool or self.values.pick(self.known)](self.values), certain)

    def _called(self, kind: str, request: Request, certain: bool = False) -> Turn:
        """Return a turn that makes the call; certain: it succeeds."""
        outcome = self._success(request) if certain else outcome_of(self.values, request)
        self._remember(request, outcome)
        question = self._styled(request.question, *(str(value) for value in request.arguments.values()))
        thought = call_thought([request])
        messages = [user(question), calling([request], thought), {"role": "tool", "content": outcome.content}]
        messages.append(assistant(joined_answers([outcome]), "I have the result."))
        return Turn(kind, messages, outcome.carried, outcome.forbidden)

    def _remember(self, request: Request, outcome: Outcome) -> None:
        self.last, self.number = request, None
        self.failed = is_failure(outcome)
        if self.failed:
            return
        if request.tool == "get_weather":
            place, shown, conditions = outcome.carried[:3]
            seen = Weather(place, float(shown), shown, conditions)
            self.weather = [*(old for old in self.weather if old.place.lower() != place.lower()), seen]
        if request.tool == "calculate":
            self.number = outcome.carried[1]

    def _compare(self) -> Turn:
        colder = self.values.chance(0.35)
        question = self._said("colder" if colder else "warmer")
        answer, carried = self._comparison(colder)
        thought = comparing_thought(*self.weather[-2:])
        return Turn("compare", [user(question), assistant(answer, thought)], carried)

    def _comparison(self, colder: bool) -> tuple[str, tuple[str, ...]]:
        """Return the answer that compares the last two places, with what it has to carry."""
        first, second = self.weather[-2:]
        result = compared(first, second, colder)
        self.loser = result.loser or self.loser
        return result.answer, result.carried

    def compared(self, first: Request, second: Request) -> Turn:
        """Return a turn that asks in one question which of two places is warmer or colder."""
        places = [str(request.arguments["location"]) for request in (first, second)]
        outcomes = [self._success(request) for request in (first, second)]
        self.weather = []
        for request, outcome in zip((first, second), outcomes, strict=True):
            self._remember(request, outcome)
        if len(self.weather) < 2:
            return self.compared(first, ASK["get_weather"](self.values))
        colder = self.values.chance(0.35)
        word = comparing_word(self.values, colder)
        question = draw(self.values, "turns", TURNS["compared"])[0].format(word, *places)
        answer, carried = self._comparison(colder)
        thought = call_thought([first, second])
        results: list[Message] = [{"role": "tool", "content": outcome.content} for outcome in outcomes]
        told = assistant(answer, "I compare the two.")
        return Turn(
            "compared",
            [user(self._styled(question, *places)), calling([first, second], thought), *results, told],
            carried,
        )

    def _success(self, request: Request) -> Outcome:
        outcome = outcome_of(self.values, request)
        while is_failure(outcome):
            outcome = outcome_of(self.values, request)
        return outcome

    def _other(self) -> Turn:
        seen = self.loser or self.weather[-1]
        answer = f"In {seen.place} it is {seen.shown} degrees and {seen.conditions}."
        question = self._said("other")
        thought = f"The other one is {seen.place}."
        return Turn("other", [user(question), assistant(answer, thought)], (seen.place, seen.shown))

    def _again(self) -> Turn:
        question = self._said("again")
        return Turn("again", [user(question), assistant(self.answer, "I say it again.")], (self.answer,))

    def _sure(self) -> Turn:
        tool = self.last is not None and not self.failed
        answer = SURE_ANSWER if tool else UNSURE_ANSWER
        thought = "The tool said so." if tool else "I can be wrong."
        return self._fixed("sure", TURNS["sure"]._replace(answer=answer, thought=thought))

    def _ask_back(self) -> Turn:
        self.missing = self.values.pick([name for name in self.known if name in MISSING])
        return self._fixed("ask_back", TURNS[self.missing])

    def _supply(self) -> Turn:
        """The value alone, after the model asked for it."""
        tool = self.missing if self.missing in (*PLACES, "search", "change_background") else None
        if tool is None:
            tool = "calculate" if self.missing == "calculate" else None
        if tool is None:
            return self._ask(self.missing)
        request = ASK[tool](self.values)
        value = request.short or str(request.arguments["query"])
        form = self.values.pick(BARE[:5] if tool in PLACES else BARE[:3])
        return self._called(
            "supply", Request(tool, form.format(value), request.arguments, request.thought, request.short)
        )

    def _math_more(self) -> Turn:
        operation = self.values.pick(tuple(MATH_MORE))
        number = self.values.number()
        expression = f"{self.number} {MATH_MORE[operation]} {number}"
        thought = f"The user wants the result of {expression}."
        question = self._drawn(operation).format(number)
        return self._called("math_more", Request("calculate", question, {"expression": expression}, thought))

    def _value_more(self) -> Turn:
        assert self.last is not None
        request = ASK[self.last.tool](self.values)
        form = self._drawn("place_more" if self.last.tool in PLACES and self.values.chance(0.4) else "value_more")
        question = form.format(request.short)
        return self._called(
            "value_more", Request(request.tool, question, request.arguments, request.thought, request.short)
        )

    def _email_more(self) -> Turn:
        assert self.last is not None
        to = str(ASK["send_email"](self.values).arguments["to"])
        question = self._drawn("email_more").format(to)
        arguments = {**self.last.arguments, "to": to}
        return self._called(
            "email_more", Request("send_email", question, arguments, f"The user wants an email to {to}.")
        )

    def _paste(self) -> Turn:
        """A long text without a request in it."""
        text = self.values.words(20, LONGEST_PASTE)
        return Turn("paste", [user(text), assistant(UNCLEAR_ANSWER, "This makes no sense to me.")], (UNCLEAR_ANSWER,))


def follow_up_kinds(tools: list[ToolDefinition]) -> list[str]:
    """Return the kinds of follow-ups that these tools allow."""
    names = {tool_name(tool) for tool in tools}
    kinds = ["recall"]
    if names & set(ASK):
        kinds += ["again", "sure", "thanks"]
    if "get_weather" in names:
        kinds += ["tomorrow", "compare", "compare", "compare", "other", "other"]
    if names & set(REPEATED):
        kinds += ["value_more", "value_more"]
    for tool, more in (("calculate", "math_more"), ("send_email", "email_more")):
        kinds += [more] * (tool in names)
    return kinds + ["supply", "ask_back"] * bool(names & set(MISSING))
