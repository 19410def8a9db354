"""Tool results in the forms that servers and browsers send them, with the answers to them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.demo_model.data_requests import Request
from training.demo_model.data_values import Values, side_of

CONDITIONS = (
    "sunny",
    "cloudy",
    "partly cloudy",
    "rainy",
    "windy",
    "clear",
    "clear sky",
    "snow",
    "light snow",
    "fog",
    "mist",
    "light rain",
    "heavy rain",
    "drizzle",
    "thunderstorm",
    "overcast",
    "hail",
    "hot",
)
ERRORS = (
    "timeout",
    "not found",
    "no connection",
    "permission denied",
    "service unavailable",
    "rate limit reached",
    "unknown location",
    "invalid arguments",
)
DENIALS: tuple[object, ...] = (
    {"approved": False},
    {"approved": False},
    {"approved": False, "reason": "not now"},
    {"status": "denied"},
    {"error": "denied by the user"},
    "The user denied this call.",
    "denied",
    {"status": "cancelled"},
    {"status": "cancelled"},
    {"approved": False, "status": "denied"},
)
# What the agent loop tells of a call that a person refused, agent_server/agents/interrupts.py.
REFUSED = "The user did not approve this call; it was not made."
LATE = "No answer came in time; the call was not made."
UNKNOWN = "The call was begun, but the server stopped before its outcome was known. It was not repeated."
REASONS = (
    "not now|wrong address|please do not|too early|I changed my mind|not this one|no|never do that|ask me later"
    "|I will do it myself|that is private|use another name"
)
DENIAL_PHRASES = (
    "The user rejected this call.|Rejected by the user.|The call was refused.|The person said no.|Not approved."
    "|The user declined.|Permission was not granted by the user.|The request was declined by a person."
    "|The user cancelled this call.|Cancelled by the user.|The call was cancelled.|Aborted by the user."
    "|User denied the action|Tool call rejected|Denied: the user does not want this.|The user said no to this call."
    "|This call was blocked by the user.|The action was not allowed.|The user has not allowed this.|declined|rejected"
    "|cancelled|The operation was cancelled before it ran.|The human refused the tool call.|refused"
    "|The user stopped this call; nothing was done.|No: the user does not agree.|The call was not approved."
)
# Training also puts denials together from words, so that what was done counts and not the sentence.
DENIERS = ("The user", "A person", "The human", "The operator", "The reviewer", "User", "They", "Someone", "Anna")
DENYING = (
    "rejected|refused|declined|denied|cancelled|canceled|blocked|stopped|dismissed|disapproved|vetoed|aborted"
    "|turned down|said no to|did not approve|did not allow|did not permit|did not accept|did not confirm"
    "|did not agree to|does not want|has not approved|has not permitted|would not allow|chose not to run"
)
DENIED_THINGS = ("this call", "the call", "the tool call", "this request", "the action", "this step", "the tool", "it")
BEING_DENIED = (
    "rejected|refused|declined|denied|cancelled|blocked|aborted|dismissed|not approved|not allowed|not permitted"
    "|not accepted|not granted|not confirmed|disallowed|turned down|stopped"
)
DENIED_SUBJECTS = ("The call", "Call", "This tool call", "Request", "The request", "Action", "Permission", "")
SUCCESSES: tuple[object, ...] = (
    "ok",
    "done",
    "success",
    {"ok": True},
    {"status": "success"},
    {"status": "ok"},
    {"success": True},
    {"approved": True},
    {"approved": True, "status": "success"},
)
DENIED_ACTIONS = {
    "get_weather": "look up the weather",
    "calculate": "calculate that",
    "get_time": "look up the time",
    "change_background": "change the background",
    "generate_task_steps": "make the plan",
    "search": "search for that",
    "send_email": "send the email",
    "write_document": "write the document",
    "generate_haiku": "write the haiku",
}
STATUS_NAMES = {True: "enabled", False: "disabled"}


@dataclass(frozen=True)
class Outcome:
    """A tool's result, the answer to it, and the values that the answer has to carry and those it must not carry."""

    content: str
    answer: str
    carried: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


def as_text(values: Values, result: object) -> str:
    """Render a result as Python or as a browser would; text stays text."""
    if isinstance(result, str):
        return result
    compact = values.chance(0.5)
    return json.dumps(result, ensure_ascii=False, separators=(",", ":") if compact else None)


def _outcome(values: Values, result: object, answer: str, *carried: object) -> Outcome:
    return Outcome(as_text(values, result), answer, tuple(str(value) for value in carried))


def a_temperature(values: Values) -> int | float:
    """Return degrees, mostly whole ones."""
    whole = values.between(-20, 42)
    return whole + values.between(1, 9) / 10 if values.chance(0.2) and whole >= 0 else whole


def weather_outcome(values: Values, request: Request) -> Outcome:
    """Answer from a weather report with a varying set of fields."""
    place = request.arguments["location"]
    temperature, conditions = a_temperature(values), values.pick(CONDITIONS)
    report: dict[str, Any] = {"temperature": temperature, "conditions": conditions}
    if values.chance(0.6):
        place = place.title() if place.islower() and values.chance(0.7) else place
        report = {values.pick(("city", "city", "location")): place, **report}
    answer = f"In {place} it is {temperature} degrees and {conditions}."
    carried: list[object] = [place, temperature, conditions]
    details: tuple[tuple[str, object, str], ...] = (
        ("humidity", values.between(5, 100), "The humidity is {} percent."),
        ("wind_speed", values.between(0, 60), "The wind speed is {}."),
        ("feels_like", a_temperature(values), "It feels like {}."),
    )
    for key, value, sentence in details:
        if values.chance(0.6):
            report[key] = value
            answer += " " + sentence.format(value)
            carried.append(value)
    return _outcome(values, report, answer, *carried)


def time_outcome(values: Values, request: Request) -> Outcome:
    """Answer from a clock time."""
    zone = request.arguments["timezone"]
    clock = f"{values.between(0, 23):02d}:{values.between(0, 59):02d}"
    if values.chance(0.2):
        clock += f":{values.between(0, 59):02d}"
    if values.chance(0.1):
        year, month, day = values.between(24, 29), values.between(10, 12), values.between(10, 28)
        clock = f"20{year}-{month}-{day} {clock}"
    results: tuple[object, ...] = (
        clock,
        {"time": clock},
        {"time": clock, "timezone": zone},
        {"timezone": zone, "time": clock},
    )
    return _outcome(values, values.pick(results), f"It is {clock} in {zone}.", clock, zone)


def arithmetic_outcome(values: Values, request: Request) -> Outcome:
    """Answer from the number that the calculator returned."""
    expression = request.arguments["expression"]
    text = f"{'-' if values.chance(0.2) else ''}{values.number()}"
    number = float(text) if "." in text else int(text)
    result: object = values.pick((text, {"result": text}))
    if values.chance(0.5):
        text, result = str(number), {"result": number}
    return _outcome(values, result, f"{expression} = {text}", expression, text)


def background_outcome(values: Values, request: Request) -> Outcome:
    """Confirm the new background, which the user may have edited."""
    background = request.arguments["background"]
    result: object = values.pick((*SUCCESSES, f"Background changed to {background}"))
    if values.chance(0.12):
        background = values.color()
        result = {"approved": True, "arguments": {"background": background}}
    return _outcome(values, result, f"The background is now {background}.", background)


def email_outcome(values: Values, request: Request) -> Outcome:
    """Confirm the email, whose recipient the user may have edited."""
    to = request.arguments["to"]
    result: object = values.pick((*SUCCESSES, "Email sent.", {"status": "sent"}))
    if values.chance(0.25):
        to = values.person() if values.chance(0.5) else to
        edited = {**request.arguments, "to": to}
        forms = ({"status": "sent", "to": to}, {"approved": True, "arguments": edited})
        result = values.pick(forms)
    return _outcome(values, result, f"The email to {to} is on its way.", to)


STEP_VERB_LIST = (
    "book find pack choose ask buy pay call write read check send order clean paint build test plan meet visit invite "
    "cook collect draw print sort open close start finish review share move rent borrow learn watch measure mix count"
)
STEP_VERBS = STEP_VERB_LIST.split()
STEP_LINKS = ("a", "the", "", "", "for the", "with", "all", "two", "my", "to the")


def _step(values: Values, others: list[str]) -> str:
    """Return a step as a person writes it, which may begin with the word of another one."""
    verb = values.pick(STEP_VERBS)
    if others and values.chance(0.4):
        verb = values.pick(others).split(" ")[0]
    text = f"{verb} {values.pick(STEP_LINKS)} {values.words(1, 3)}".replace("  ", " ")
    return text[:1].upper() + text[1:] if values.chance(0.85) else text


def _proposed(values: Values, request: Request) -> list[str]:
    """Return the proposed steps as a person left them: as they were, some edited, added or dropped, or all others."""
    steps = [str(step["description"]) for step in request.arguments["steps"]]
    form = values.rng.random()
    if form < 0.3:
        return steps
    if form < 0.5:
        steps = []
        for _ in range(values.between(1, 7)):
            steps.append(_step(values, steps))
        return list(dict.fromkeys(steps))
    for _ in range(values.pick((1, 1, 2))):
        steps[values.pick((0, values.between(0, len(steps) - 1)))] = _step(values, steps)
    if values.chance(0.2):
        steps.insert(values.between(0, len(steps)), _step(values, steps))
    return list(dict.fromkeys(steps))


def _decided_steps(values: Values, request: Request) -> list[dict[str, str]]:
    """Return the steps with those that a person unticked: any of them, or some that stand together."""
    steps = _proposed(values, request)
    keep = values.pick((1.0, 1.0, 0.8, 0.6, 0.5))
    ticked = [values.chance(keep) for _ in steps]
    if values.chance(0.3):
        first, last = sorted(values.between(0, len(steps) - 1) for _ in range(2))
        ticked = [not first <= at <= last for at in range(len(steps))]
    kept = [{"description": step, "status": STATUS_NAMES[on]} for step, on in zip(steps, ticked, strict=True)]
    if values.chance(0.12):
        kept = [step for step in kept if step["status"] == "enabled"]
    return kept


def plan_outcome(values: Values, request: Request) -> Outcome:
    """Answer to a plan that was accepted, changed or rejected."""
    form = values.rng.random()
    if form < 0.08:
        result = values.pick((*SUCCESSES, {"accepted": True}, "Steps generated."))
        return _outcome(values, result, "Great, the plan is ready.")
    steps = _decided_steps(values, request)
    enabled = [step["description"] for step in steps if step["status"] == "enabled"]
    if form < 0.16 or not enabled:
        results = ({"accepted": False}, {"accepted": False, "steps": steps})
        answer = "Okay, I will not follow this plan. Tell me what to change."
        return _outcome(values, values.pick(results), answer, "will not follow")
    listed = ", ".join(f"{number}. {step}" for number, step in enumerate(enabled, 1))
    total = f"That makes {len(enabled)} {'step' if len(enabled) == 1 else 'steps'}."
    answer = f"Great, we go on with: {listed}. {total}"
    content = as_text(values, {"accepted": True, "steps": steps})
    proposed = [step["description"] for step in (*steps, *request.arguments["steps"])]
    dropped = tuple(step for step in dict.fromkeys(proposed) if step not in enabled and step not in answer)
    return Outcome(content, answer, (*enabled, total), dropped)


def _title(values: Values) -> str:
    titles = (
        f"All about {values.topic()}",
        f"{values.topic()} for beginners",
        f"{values.topic()} in {values.city()}",
        f"{values.words(1, 3)} explained",
        values.words(2, 4),
    )
    return values.pick(titles)


# Results that look like the demonstration's notes: a heading, then a sentence with names, signs and repetitions in it.
NOTES = (
    "Threads: Conversations are kept in SQLite or PostgreSQL and replayed after a reload",
    "AG-UI: One event stream for text, reasoning, tool calls and state: POST /agui",
    "OpenAI: The same runs as chat completions and responses: /v1/chat/completions",
    "CopilotKit: Point runtimeUrl at /copilotkit; no Node is needed",
    "Approval: A tool with requires_approval waits for a person, who may edit its arguments",
    "Models: agent-server serve FOLDER loads any chat model with safetensors and a chat template",
    "Pause: A generation can be paused, resumed and cooled while it runs",
)
NOTE_WORD_LIST = (
    "the a one any or and in of with for to at is are be by that which from it this not no than after before while "
    "SQL SQLite PostgreSQL JSON HTTP API URL POST GET /agui /v1 @tool Python Node server model tool run page person "
    "event stream thread state message call result token text file folder"
)
NOTE_WORDS = NOTE_WORD_LIST.split()


def _note(values: Values) -> str:
    """Return a heading and a sentence in which words come back."""
    if not values.held_out and values.chance(0.15):
        return values.pick(NOTES)
    words = [values.pick(NOTE_WORDS) if values.chance(0.5) else values.word() for _ in range(values.between(4, 16))]
    for _ in range(values.pick((0, 0, 1, 1, 2))):
        words[values.between(0, len(words) - 1)] = words[0] + values.pick(("", ",", "s"))
    if values.chance(0.3):
        words[values.between(0, len(words) - 1)] += values.pick((";", ":", ","))
    sentence = " ".join(words).rstrip(";:,")
    return f"{values.word().title()}: {sentence[:1].upper()}{sentence[1:]}"


def search_outcome(values: Values, _request: Request) -> Outcome:
    """Answer with the first result."""
    make = _note if values.chance(0.5) else _title
    titles = [make(values) for _ in range(values.between(1, 3))]
    link = f"https://{values.word()}.com/{values.word()}"
    results: tuple[object, ...] = (
        {"results": titles},
        titles,
        {"results": [{"title": title} for title in titles]},
        {"results": [{"title": title, "url": link} for title in titles]},
        titles[0],
    )
    return _outcome(values, values.pick(results), f"I found: {titles[0]}.", titles[0])


def document_outcome(values: Values, _request: Request) -> Outcome:
    """Answer to a document that was kept or rejected."""
    if values.chance(0.25):
        return _outcome(values, {"accepted": False}, "Okay, I dropped the document.")
    result = values.pick((*SUCCESSES, {"accepted": True}, "Document written."))
    return _outcome(values, result, "The document is ready.")


def haiku_outcome(values: Values, _request: Request) -> Outcome:
    """Confirm the haiku."""
    result = values.pick((*SUCCESSES, "Haiku generated!"))
    return _outcome(values, result, "There is your haiku. Enjoy it!")


def invented_outcome(values: Values, _request: Request) -> Outcome:
    """Answer from the result of an unknown tool."""
    if values.chance(0.3):
        text = values.words(1, 4)
        return _outcome(values, text, f"The result is {text}.", text)
    pairs = {values.word(): _plain_value(values) for _ in range(values.between(1, 3))}
    sentence = " and ".join(f"{key} is {value}" for key, value in pairs.items())
    return _outcome(values, pairs, f"The {sentence}.", *pairs.values())


def _plain_value(values: Values) -> str | int:
    return values.words(1, 2) if values.chance(0.6) else values.between(0, 999)


def _failure_text(values: Values, request: Request) -> str:
    """Return what the agent loop says of a call that failed (agent_server/agents/running.py), or any other error."""
    word = values.word
    texts: tuple[Callable[[], str], ...] = (
        lambda: values.pick(ERRORS),
        lambda: f"{word()} not found",
        lambda: values.words(1, 4),
        lambda: f"{request.tool} took longer than {values.pick((5, 10, 30, 60, 60))} s.",
        lambda: f"{request.tool} failed: {word().title()}Error: {values.words(1, 4)}",
        lambda: f"{request.tool} failed: {values.pick(('ValueError', 'TimeoutError', 'KeyError', 'RuntimeError'))}",
        lambda: f"Invalid arguments: {word()}: Field required",
        lambda: f"There is no tool called {request.tool}.",
        lambda: "That is not a CSS background.",
        lambda: f"{request.tool} was refused: {values.words(1, 4)}",
        lambda: f"The MCP server {word()} did not answer: {values.words(1, 2)}.",
        lambda: f"HTTP {values.pick((400, 401, 403, 404, 429, 500, 502, 503))} {values.words(1, 2)}",
    )
    return values.pick(texts)()


def failure_outcome(values: Values, request: Request) -> Outcome:
    """Report what went wrong."""
    error = _failure_text(values, request)
    results: tuple[object, ...] = (
        {"error": error},
        {"error": error},
        f"Error: {error}",
        f"Error: {error}",
        f"Error: {error}",
        {"error": {"message": error}},
        {"ok": False, "error": error},
    )
    told = error.rstrip(".")
    return _outcome(values, values.pick(results), f"Sorry, the tool failed: {told}.", "the tool failed", told)


def _composed_denial(values: Values) -> object:
    """Return a denial of training put together from words, as text or in an object, which evaluation never says."""
    done = values.pick(tuple(BEING_DENIED.split("|")))
    passive = f"{values.pick(DENIED_SUBJECTS)} {values.pick(('', 'was ', 'has been '))}{done}".strip()
    passive += values.pick(("", "", " by the user", " by a person", " by the operator"))
    active = f"{values.pick(DENIERS)} {values.pick(tuple(DENYING.split('|')))} {values.pick(DENIED_THINGS)}"
    said = values.pick((passive, active))
    said = said[:1].upper() + said[1:] if values.chance(0.7) else said
    if said.lower() in (phrase.rstrip(".").lower() for phrase in side_of(tuple(DENIAL_PHRASES.split("|")), True)):
        return _composed_denial(values)
    said += values.pick(("", ".", ".", "; it was not made.", "; nothing was done."))
    forms: tuple[object, ...] = (
        *(said,) * 6,
        {"status": done},
        {"error": said},
        {"approved": False, "message": said},
        {"decision": values.pick(("reject", "deny", "no", "decline"))},
    )
    return values.pick(forms)


def denial_outcome(values: Values, request: Request) -> Outcome:
    """Say that a call was not made, which a person refused or did not answer, or of which nothing is known."""
    action = DENIED_ACTIONS.get(request.tool, "do that")
    form = values.rng.random()
    if form < 0.1:
        return _outcome(values, LATE, f"No answer came in time, so I did not {action}.", "No answer", "did not")
    if form < 0.16:
        answer = "I do not know whether that worked: the server stopped in the middle of it."
        return _outcome(values, UNKNOWN, answer, "do not know whether")
    result = values.pick((REFUSED, values.pick(DENIALS), values.phrase(tuple(DENIAL_PHRASES.split("|")))))
    if not values.held_out and values.chance(0.5):
        result = _composed_denial(values)
    if result == REFUSED and values.chance(0.3):
        result = f"{REFUSED} They said: {values.phrase(tuple(REASONS.split('|')))}"
    return _outcome(values, result, f"Okay, I did not {action}.", f"I did not {action}")


OUTCOMES: dict[str, Callable[[Values, Request], Outcome]] = {
    "get_weather": weather_outcome,
    "calculate": arithmetic_outcome,
    "get_time": time_outcome,
    "change_background": background_outcome,
    "generate_task_steps": plan_outcome,
    "search": search_outcome,
    "send_email": email_outcome,
    "write_document": document_outcome,
    "generate_haiku": haiku_outcome,
}


def outcome_of(values: Values, request: Request) -> Outcome:
    """Return what a call may lead to: mostly a success, sometimes a failure or a denial."""
    form = values.rng.random()
    if form < 0.08:
        return failure_outcome(values, request)
    if form < 0.15 or (request.tool == "send_email" and form < 0.35):
        return denial_outcome(values, request)
    return OUTCOMES.get(request.tool, invented_outcome)(values, request)
