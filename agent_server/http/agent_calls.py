"""Calls of agents by other programs' agents, over MCP or A2A: one message in, one answer or questions out.

Other wires stream a run's events. A caller of this kind waits for the answer, receives progress reports, and passes the
agent's questions on to its own user, who can answer only forms with primitive fields.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from ag_ui.core import ResumeEntry, RunAgentInput, UserMessage
from starlette.types import Scope

from agent_server.http.auth.principal import asking, principal_of
from agent_server.ids import new_id
from agent_server.observability.audit import use_audit
from agent_server.observability.telemetry import note_ids
from agent_server.user import current_user
from events.options import GenerationOptions
from events.vocabulary import (
    ActivitySnapshot,
    CancelledOutcome,
    Interrupt,
    InterruptOutcome,
    RunError,
    RunFinished,
    TextMessageContent,
    TextMessageStart,
    ToolCallStart,
)

if TYPE_CHECKING:
    from agent_server.http.server import ServableAgent, Server
    from agent_server.runs import Run

CANNOT_ASK = "The caller of this agent cannot ask a person."
FREE_ANSWER: Mapping[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}}
"""The schema of a question that has none of its own."""
PRIMITIVE = frozenset({"string", "number", "integer", "boolean"})
PROGRESS_LENGTH = 500


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    text: the answer, partial if cancelled; if failed, the reason. interrupts: questions to a person.
    """

    text: str = ""
    failed: bool = False
    cancelled: bool = False
    interrupts: Sequence[Interrupt] = ()


def callable_agents(server: Server) -> Mapping[str, ServableAgent]:
    """The agents by the names that callers use. "default" is included only if its agent has no other name."""
    default = server.agents["default"]
    named = {name: agent for name, agent in server.agents.items() if name != "default"}
    return named if any(agent is default or agent.name == default.name for agent in named.values()) else {
        "default": default, **named
    }  # fmt: skip


def enter_caller(server: Server, scope: Scope) -> str:
    """Set the context variables of a request's principal and return its tenant. An SDK's task may lack them."""
    principal = principal_of(scope)
    asking.set(principal)
    current_user.set(scope["state"]["user"])
    use_audit(server.audit)
    note_ids(tenant=principal.tenant, key=principal.name)
    return principal.tenant


async def start(
    server: Server, agent: str, tenant: str, *, thread: str, message: str = "", resume: Sequence[ResumeEntry] = (),
    grace: float = 0.0,
) -> Run:  # fmt: skip
    """Start a run with a message or with answers to interrupts. Raises RequestError."""
    messages = [UserMessage(id=new_id("msg"), content=message)] if message else []
    input = RunAgentInput(
        thread_id=thread, run_id=new_id("run"), messages=messages, resume=list(resume) or None, state=None, tools=[],
        context=[], forwarded_props=None,
    )  # fmt: skip
    return await server.runs.start(input, GenerationOptions(store=True), agent=agent, tenant=tenant, grace=grace)


async def follow(run: Run) -> AsyncIterator[str | RunResult]:
    """Yield short progress reports, and finally the result. The answer is the text of the last message."""
    text = message = ""
    async with contextlib.aclosing(run.events()) as events:
        async for _, event in events:
            match event:
                case TextMessageStart():
                    message = ""
                case TextMessageContent(delta=delta):
                    text = message = message + delta
                case ToolCallStart(tool_call_name=name):
                    yield f"Calls {name}."
                case ActivitySnapshot(content=content) if isinstance(content, dict):
                    if isinstance(progress := content.get("message"), str):
                        yield progress[:PROGRESS_LENGTH]
                case RunFinished(outcome=InterruptOutcome(interrupts=interrupts)):
                    yield RunResult(text=text, interrupts=interrupts)
                case RunFinished(outcome=outcome):
                    yield RunResult(text=text, cancelled=isinstance(outcome, CancelledOutcome))
                case RunError(message=reason):
                    yield RunResult(text=reason, failed=True)


def question_of(interrupt: Interrupt) -> str:
    """The question to the person; includes the arguments if it is about a tool call."""
    metadata = interrupt.metadata or {}
    message = interrupt.message or "The agent asks for an answer."
    if "arguments" in metadata and "toolName" in metadata:
        message += f"\n{metadata['toolName']} {json.dumps(metadata['arguments'], ensure_ascii=False)}"
    return message


def link_of(interrupt: Interrupt) -> str | None:
    """The URL that the person has to visit; None for a form."""
    metadata = interrupt.metadata or {}
    url = metadata.get("url")
    return url if metadata.get("mode") == "url" and isinstance(url, str) else None


def form_of(interrupt: Interrupt) -> dict[str, Any] | None:
    """The answer's schema with its primitive fields; None if a required field is not primitive."""
    schema: Mapping[str, Any] = interrupt.response_schema or FREE_ANSWER
    properties = {name: each for name, each in _fields(interrupt).items() if _is_primitive(each)}
    required = [name for name in schema.get("required", ()) if isinstance(name, str)]
    if any(name not in properties for name in required) or not properties:
        return None
    return {"type": "object", "properties": properties, "required": required}


def _fields(interrupt: Interrupt) -> Mapping[str, object]:
    schema: Mapping[str, Any] = interrupt.response_schema or FREE_ANSWER
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _is_primitive(schema: object) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array":
        return isinstance(schema.get("items"), dict) and bool({"enum", "anyOf"} & schema["items"].keys())
    return schema.get("type") in PRIMITIVE


def answer_to(interrupt: Interrupt, action: str, content: Mapping[str, Any] | None) -> ResumeEntry:
    """Convert a person's answer to a resume entry. action: accept, decline or cancel, as in MCP's elicitation."""
    metadata = interrupt.metadata or {}
    if action == "accept":
        payload: Any = {"approved": True} if link_of(interrupt) is not None else dict(content or {})
        if interrupt.response_schema is None:
            payload = payload.get("answer", "")
    elif action == "decline" and metadata.get("declinePayload") is not None:
        payload = metadata["declinePayload"]
    elif "approved" in _fields(interrupt):
        payload = {"approved": False}
    else:
        return ResumeEntry(interrupt_id=interrupt.id, status="cancelled")
    return ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload=payload)


def unanswered(interrupt: Interrupt) -> ResumeEntry:
    """The resume entry for a question that no person can be asked."""
    if "approved" in _fields(interrupt):
        payload = {"approved": False, "reason": CANNOT_ASK}
        return ResumeEntry(interrupt_id=interrupt.id, status="resolved", payload=payload)
    return ResumeEntry(interrupt_id=interrupt.id, status="cancelled")
