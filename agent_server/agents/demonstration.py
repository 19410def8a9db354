"""The agents of a server that was started without any: the bare model, and one that shows what an agent can do.

Their tools contact no other machine: the weather is computed from the name of the place, emails are not sent, and the
search only covers a few notes about this server.
"""

from __future__ import annotations

import ast
import hashlib
import operator
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

from agent_server.agents import Agent, Compaction, PredictState, ToolContext, ToolFault, tool

CONDITIONS = ("sunny", "cloudy", "partly cloudy", "light rain", "clear", "windy", "light snow", "fog")
MAX_DIGITS = 40
MAX_EXPONENT = 64

NOTES = (
    ("AG-UI", "One event stream for text, reasoning, tool calls and state: POST /agui"),
    ("OpenAI", "The same runs as chat completions and responses: /v1/chat/completions"),
    ("Anthropic", "The same runs as messages: /v1/messages"),
    ("CopilotKit", "Point runtimeUrl at /copilotkit; no Node is needed"),
    ("Tools", "A Python function with @tool runs on the server; the page may bring its own"),
    ("Approval", "A tool with requires_approval waits for a person, who may edit its arguments"),
    ("Interrupts", "A run that waits ends, and the next run resumes it with the answer"),
    ("Shared state", "The agent and the page change one JSON object; deltas travel as JSON patches"),
    ("Models", "agent-server serve FOLDER loads any chat model with safetensors and a chat template"),
    ("Threads", "Conversations are kept in SQLite or PostgreSQL and replayed after a reload"),
    ("Pause", "A generation can be paused, resumed and cooled while it runs"),
    ("Replay", "A saved event log opens in the page with ?replay="),
)


def demonstration_agents(*, summarises: bool = False) -> tuple[Agent, ...]:
    """The agents `default` and `demo`. `default` is the bare model, so that clients of any wire get answers without the
    demonstration's tools.

    summarises: the model can summarise a conversation that is too long for it; the bundled model cannot.
    """
    return (
        Agent(name="default", description="The model alone, with the tools that this page brings."),
        Agent(
            name="demo",
            description="Looks things up, calculates, writes documents, asks before it sends. Its world is invented.",
            tools=[get_weather, calculate, get_time, search, send_email, write_document],
            predict_state=[PredictState("document", "write_document", "document")],
            compaction=Compaction(mode="summarise" if summarises else "drop"),
        ),
    )


@tool(idempotent=True)
def get_weather(location: str) -> dict[str, object]:
    """Look up the weather (invented, but the same for a place all day)."""
    draw = hashlib.sha256(f"{location.strip().lower()} {datetime.now():%Y-%m-%d}".encode()).digest()
    return {
        "city": location,
        "temperature": draw[0] % 36 - 6,
        "conditions": CONDITIONS[draw[1] % len(CONDITIONS)],
        "humidity": 30 + draw[2] % 65,
        "wind_speed": draw[3] % 15,
    }


@tool(idempotent=True)
def get_time(timezone: str) -> dict[str, str]:
    """Look up the time of a city or a time zone."""
    name_part = timezone.strip().replace(" ", "_").lower()
    zone = next(
        (name for name in sorted(available_timezones()) if name_part in (name.lower(), name.lower().split("/")[-1])),
        None,
    )
    if zone is None:
        raise ToolFault("unknown location")
    return {"time": f"{datetime.now(ZoneInfo(zone)):%H:%M}", "timezone": timezone}


@tool(idempotent=True)
def calculate(expression: str) -> dict[str, str]:
    """Calculate an arithmetic expression."""
    try:
        value = _value(ast.parse(expression.replace("^", "**").replace("×", "*"), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError) as error:
        raise ToolFault("invalid arguments") from error
    return {"result": (str(int(value)) if value == int(value) else f"{value:.10g}")}


@tool(idempotent=True)
def search(query: str) -> dict[str, object]:
    """Search the notes about this server."""
    words = [word for word in query.lower().split() if len(word) > 2]
    hits = [
        f"{title}: {text}"
        for title, text in NOTES
        if any(word.rstrip("s") in f"{title} {text}".lower() for word in words)
    ]
    if not hits:
        raise ToolFault("not found")
    return {"results": hits[:3]}


@tool(requires_approval=True, approval_message="Send this email? (This demonstration sends nothing.)")
def send_email(to: str, subject: str, body: str) -> dict[str, str]:
    """Send an email. A person is asked first."""
    return {"status": "sent", "to": to}


@tool
def write_document(document: str, context: ToolContext) -> str:
    """Write a document, which the page shows while it is being written."""
    context.state["document"] = document
    return "Document written."


_OPERATIONS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _value(node: ast.expr) -> int | float:
    """The value of an expression of numbers and arithmetic operations. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) < 1e15:
            return number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
            return _bounded(_OPERATIONS[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _value(left), _value(right)
            if abs(exponent) > MAX_EXPONENT:
                raise ValueError("too large")
            return _bounded(base**exponent)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _bounded(_OPERATIONS[type(op)](_value(left), _value(right)))
    raise ValueError("not arithmetic")


def _bounded(value: object) -> int | float:
    if not isinstance(value, int | float) or abs(value) >= 10**MAX_DIGITS:
        raise ValueError("too large")
    return value
