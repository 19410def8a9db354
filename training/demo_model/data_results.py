"""Tool results in the forms that servers and browsers send them, with the answers to them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.demo_model.data_requests import Request
from training.demo_model.data_values import Values

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
)
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
    """A tool's result, the answer to it, and the values that the answer has to carry."""

    content: str
    answer: str
    carried: tuple[str, ...] = ()


def as_text(values: Values, result: object) -> str:
    """Render a result as Python or as a browser would; text stays text."""
    if isinstance(result, str):
        return result
    compact = values.chance(0.5)
    return json.dumps(result, ensure_ascii=False, separators=(",", ":") if compact else None)


def _outcome(values: Values, result: object, answer: str, *carried: object) -> Outcome:
    return Outcome(as_text(values, result), answer, tuple(str(value) for value in carried))


def _temperature(values: Values) -> int | float:
    whole = values.between(-20, 42)
    return whole + values.between(1, 9) / 10 if values.chance(0.2) and whole >= 0 else whole


def weather_outcome(values: Values, request: Request) -> Outcome:
    """Answer from a weather report with a varying set of fields."""
    place = request.arguments["location"]
    temperature, conditions = _temperature(values), values.pick(CONDITIONS)
    report: dict[str, Any] = {"temperature": temperature, "conditions": conditions}
    if values.chance(0.6):
        place = place.title() if place.islower() and values.chance(0.7) else place
        report = {values.pick(("city", "city", "location")): place, **report}
    answer = f"In {place} it is {temperature} degrees and {conditions}."
    carried: list[object] = [place, temperature, conditions]
    details: tuple[tuple[str, object, str], ...] = (
        ("humidity", values.between(5, 100), "The humidity is {} percent."),
        ("wind_speed", values.between(0, 60), "The wind speed is {}."),
        ("feels_like", _temperature(values), "It feels like {}."),
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


def _kept_steps(values: Values, request: Request) -> list[dict[str, str]]:
    steps: list[dict[str, str]] = list(request.arguments["steps"])
    keep = values.pick((1.0, 0.8, 0.5))
    kept = [{"description": step["description"], "status": STATUS_NAMES[values.chance(keep)]} for step in steps]
    if values.chance(0.35):
        kept = [step for step in kept if step["status"] == "enabled"]
    return kept


def plan_outcome(values: Values, request: Request) -> Outcome:
    """Answer to a plan that was accepted, changed or rejected."""
    form = values.rng.random()
    if form < 0.3:
        result = values.pick((*SUCCESSES, {"accepted": True}, "Steps generated."))
        return _outcome(values, result, "Great, the plan is ready.")
    steps = _kept_steps(values, request)
    enabled = [step["description"] for step in steps if step["status"] == "enabled"]
    if form < 0.5 or not enabled:
        results = ({"accepted": False}, {"accepted": False, "steps": steps})
        answer = "Okay, I will not follow this plan. Tell me what to change."
        return _outcome(values, values.pick(results), answer)
    listed = ", ".join(f"{number}. {step}" for number, step in enumerate(enabled, 1))
    total = f"That makes {len(enabled)} {'step' if len(enabled) == 1 else 'steps'}."
    answer = f"Great, we go on with: {listed}. {total}"
    return _outcome(values, {"accepted": True, "steps": steps}, answer, total)


def _title(values: Values) -> str:
    titles = (
        f"All about {values.topic()}",
        f"{values.topic()} for beginners",
        f"{values.topic()} in {values.city()}",
        f"{values.words(1, 3)} explained",
        values.words(2, 4),
    )
    return values.pick(titles)


def search_outcome(values: Values, _request: Request) -> Outcome:
    """Answer with the first result."""
    titles = [_title(values) for _ in range(values.between(1, 3))]
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


def failure_outcome(values: Values, _request: Request) -> Outcome:
    """Report what went wrong."""
    errors = (values.pick(ERRORS), values.pick(ERRORS), f"{values.word()} not found", values.words(1, 3))
    error = values.pick(errors)
    results: tuple[object, ...] = ({"error": error}, {"error": error}, f"Error: {error}")
    answer = f"Sorry, the tool failed: {error}."
    return _outcome(values, values.pick(results), answer, error)


def denial_outcome(values: Values, request: Request) -> Outcome:
    """Accept that the user did not allow the call."""
    action = DENIED_ACTIONS.get(request.tool, "do that")
    return _outcome(values, values.pick(DENIALS), f"Okay, I did not {action}.")


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
    if form < 0.07:
        return failure_outcome(values, request)
    if form < 0.13 or (request.tool == "send_email" and form < 0.3):
        return denial_outcome(values, request)
    return OUTCOMES.get(request.tool, invented_outcome)(values, request)
