"""What users ask of the demo's tools, with the call that answers it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.demo_model.data_arithmetic import problem
from training.demo_model.data_phrases import choose, read_sections
from training.demo_model.data_values import Values

GRADIENTS = ("a gradient from {} to {}", "a gradient of {} and {}", "a {} to {} gradient")
PLAN_STEPS = {
    "trip": (
        "Choose the dates for {}",
        "Set a budget",
        "Book the tickets",
        "Reserve a room",
        "Pack the bags",
    ),
    "event": (
        "Pick a date for {}",
        "Write the guest list",
        "Send the invitations",
        "Order the food",
        "Prepare the room",
    ),
    "task": (
        "Define the goal of {}",
        "Collect the material",
        "Split the work",
        "Start with the first part",
        "Review the result",
    ),
}
DOCUMENTS = {
    "story": (
        "Once there was a story about {0}. Nobody in the town believed it at first. "
        "Then one morning {0} changed everything. In the end everyone was glad."
    ),
    "letter": (
        "Dear reader, I am writing to you about {0}. It has been on my mind for a while. "
        "I hope that we can talk about {0} soon. With kind regards."
    ),
    "report": (
        "This report covers {0}. First it describes the present state. "
        "Then it lists what could be better. Last it recommends more work on {0}."
    ),
    "article": (
        "This text is about {0}. Many people find {0} interesting, and for good reasons. "
        "There is a lot to learn, from the basics to the details. "
        "A closer look at {0} is worth the time."
    ),
}
DOCUMENT_NAMES = {
    "story": ("a story", "a short story", "a tale"),
    "letter": ("a letter", "a short letter"),
    "report": ("a report", "a short report"),
    "article": ("an article", "a document", "a text", "an essay", "a paragraph", "a blog post"),
}
HAIKU_JAPANESE = ("静かな日", "言葉ひとつに", "風が吹く")
HAIKU_ENGLISH = ("I think of {}", "one small word upon the page", "and the wind goes by")
HAIKU_CLASSIC_JAPANESE = ("朝の庭", "露に光れる", "草の声")
HAIKU_CLASSIC_ENGLISH = (
    "In the morning yard",
    "the grass is bright with dewdrops",
    "and seems to whisper",
)


@dataclass(frozen=True)
class Request:
    """A question, the call that it asks for, and the thought that leads to the call.

    `short` is the value alone, for a second question that leaves the rest out.
    """

    tool: str
    question: str
    arguments: dict[str, Any]
    thought: str
    short: str = ""


def asked(values: Values, kind: str) -> str:
    """Return one of the sentences of a section of `requests.txt`, which occur on both sides of the split."""
    return values.pick(next(section.whole for section in read_sections("requests") if section.name == kind))


def ask_weather(values: Values) -> Request:
    """Ask for the weather in a city."""
    city = values.city()
    return Request(
        "get_weather",
        asked(values, "weather").format(city),
        {"location": city},
        f"The user wants the weather in {city}.",
        city,
    )


def ask_time(values: Values) -> Request:
    """Ask for the time in a city or a zone."""
    zone = values.timezone()
    return Request(
        "get_time",
        asked(values, "time").format(zone),
        {"timezone": zone},
        f"The user wants the time in {zone}.",
        zone,
    )


def ask_arithmetic(values: Values) -> Request:
    """Ask for the result of an arithmetic expression."""
    spoken, expression, whole = problem(values)
    return Request(
        "calculate",
        spoken if whole else asked(values, "arithmetic").format(spoken),
        {"expression": expression},
        f"The user wants the result of {expression}.",
        expression if whole else spoken,
    )


def ask_background(values: Values) -> Request:
    """Ask for a background colour or gradient."""
    if values.chance(0.65):
        spoken = background = values.color()
    else:
        first, second = values.color(), values.color()
        spoken = values.pick(GRADIENTS).format(first, second)
        background = f"linear-gradient({first}, {second})"
    return Request(
        "change_background",
        asked(values, "background").format(spoken),
        {"background": background},
        f"The user wants the background {background}.",
        spoken,
    )


def _search_query(values: Values) -> str:
    queries: tuple[Callable[[], str], ...] = (
        values.topic,
        values.topic,
        lambda: values.words(1, 3),
        lambda: f"hotels in {values.city()}",
        lambda: f"best {values.word()} in {values.city()}",
        lambda: f"how to {values.word()} a {values.word()}",
    )
    return values.pick(queries)()


def ask_search(values: Values) -> Request:
    """Ask for a search."""
    query = _search_query(values)
    return Request(
        "search",
        asked(values, "search").format(query),
        {"query": query},
        f"The user wants a search for {query}.",
    )


TRIPS = ("my trip", "a journey", "a visit", "a vacation", "our trip")
STAYS = ("a holiday", "a week", "a vacation", "two days", "my holiday")
EVENTS = ("a party", "a surprise party", "a farewell party", "a dinner", "a wedding", "a picnic")


def _plan_subject(values: Values) -> tuple[str, str]:
    subjects: tuple[Callable[[], tuple[str, str]], ...] = (
        lambda: ("trip", f"a trip to {values.city()}"),
        lambda: ("trip", f"a weekend in {values.city()}"),
        lambda: ("trip", f"{values.pick(TRIPS)} to {values.city()}"),
        lambda: ("trip", f"{values.pick(STAYS)} in {values.city()}"),
        lambda: ("event", f"{values.pick(EVENTS)} for {values.person()}"),
        lambda: ("event", f"a birthday party for {values.person()}"),
        lambda: ("event", f"a dinner with {values.person()}"),
        lambda: ("task", values.topic()),
        lambda: ("task", f"a {values.words(1, 2)} project"),
    )
    return values.pick(subjects)()


def ask_plan(values: Values) -> Request:
    """Ask for a plan, which has five steps whatever number the user names."""
    kind, subject = _plan_subject(values)
    question = asked(values, "plan").format(subject)
    if values.chance(0.25):
        question = f"{question} in {values.pick((3, 4, 5, 5, 6, 8, 10))} steps"
    steps = [{"description": step.format(subject), "status": "enabled"} for step in PLAN_STEPS[kind]]
    thought = f"The user wants a plan for {subject}."
    return Request("generate_task_steps", question, {"steps": steps}, thought, subject)


def ask_document(values: Values) -> Request:
    """Ask for a short text about a topic."""
    kind = values.pick(("story", "letter", "report", "article", "article"))
    name = values.pick(DOCUMENT_NAMES[kind])
    topic = values.city() if values.chance(0.15) else values.topic()
    verb = "write {}" if values.chance(0.3) else asked(values, "document")
    question = f"{verb.format(name)} {values.pick(('about', 'about', 'about', 'on'))} {topic}"
    return Request(
        "write_document",
        question,
        {"document": DOCUMENTS[kind].format(topic)},
        f"The user wants {name} about {topic}.",
        topic,
    )


def ask_haiku(values: Values) -> Request:
    """Ask for a haiku, with or without a topic."""
    verb = values.pick(("write", "write me", "make", "give me", "compose", "can you write", "generate"))
    if values.chance(0.25):
        arguments = {
            "japanese": list(HAIKU_CLASSIC_JAPANESE),
            "english": list(HAIKU_CLASSIC_ENGLISH),
        }
        return Request("generate_haiku", f"{verb} a haiku", arguments, "The user wants a haiku.")
    topic = values.topic()
    english = [line.format(topic) for line in HAIKU_ENGLISH]
    return Request(
        "generate_haiku",
        f"{verb} a haiku about {topic}",
        {"japanese": list(HAIKU_JAPANESE), "english": english},
        f"The user wants a haiku about {topic}.",
        topic,
    )


def _recipient(values: Values) -> str:
    name = values.person()
    if values.chance(0.35):
        return name
    domain = values.pick(("example", "mail", values.word()))
    return f"{name.lower()}@{domain}{values.pick(('.com', '.org', '.net'))}"


def _email_body(values: Values) -> str:
    bodies: tuple[Callable[[], str], ...] = (
        lambda: values.words(2, 4),
        lambda: f"see you in {values.city()}",
        lambda: f"hello {values.person()}",
        lambda: f"see you at {values.between(1, 12)}",
        lambda: f"the meeting is at {values.between(1, 12)}",
        lambda: f"i have a question about {values.topic()}",
        lambda: f"happy birthday {values.person()}",
        lambda: f"i will be late, {values.person()} knows why",
        lambda: choose(values, asked(values, "message")),
        lambda: f"{choose(values, asked(values, 'message'))} {values.word()}",
        lambda: f"the {values.words(1, 2)} is {values.word()}",
    )
    return values.pick(bodies)()


def ask_email(values: Values) -> Request:
    """Ask for an email with a subject, a body or both."""
    to, form = _recipient(values), values.rng.random()
    subject = values.topic() if values.chance(0.7) else values.words(1, 2)
    body = _email_body(values)
    kind = "email"
    if form > 0.72:
        kind, body = "email_subject", f"This is a message about {subject}."
    elif form > 0.45:
        kind, subject = "email_body", "Hello"
    question = asked(values, kind).format(to=to, subject=subject, body=body)
    arguments = {"to": to, "subject": subject, "body": body}
    return Request("send_email", question, arguments, f"The user wants an email to {to}.", to)


ASK: dict[str, Callable[[Values], Request]] = {
    "get_weather": ask_weather,
    "calculate": ask_arithmetic,
    "get_time": ask_time,
    "change_background": ask_background,
    "generate_task_steps": ask_plan,
    "search": ask_search,
    "send_email": ask_email,
    "write_document": ask_document,
    "generate_haiku": ask_haiku,
}
