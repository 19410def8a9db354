"""A LlamaIndex workflow that speaks AG-UI (`AGUIChatWorkflow`, or one like it) as a guest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from ag_ui.core import BaseEvent, MessagesSnapshotEvent, ReasoningMessage, ToolMessage
from workflows import Workflow
from workflows.events import HumanResponseEvent, InputRequiredEvent
from workflows.handler import WorkflowHandler

from agent_server.agents.guests.guest import GuestError, GuestInput
from agent_server.agents.guests.host import Held
from events.vocabulary import Interrupt, InterruptOutcome, RunFinished, ToolCallResult

OTHERWISE = (
    "A workflow is served that begins with `input_data`, a RunAgentInput, and writes AG-UI's events: "
    "make an AGUIChatWorkflow (llama-index-protocols-ag-ui) of the same model and tools."
)


class Working(msgspec.Struct):
    """A workflow that is under way, and its events, which can be read once."""

    handler: WorkflowHandler
    events: AsyncGenerator[object, None]

    async def end(self) -> None:
        await self.events.aclose()
        if not self.handler.is_done():
            await self.handler.cancel_run()


class LlamaIndexGuest:
    """Serves one workflow. Every run has the whole conversation. A workflow that waits for a person
    (`InputRequiredEvent`) is held in this process until the answer comes, as a `HumanResponseEvent`."""

    kind = "llama-index"
    careful = False
    partial_snapshots = False

    def __init__(self, workflow: Workflow) -> None:
        """Raises GuestError for a workflow that does not begin with AG-UI's input."""
        begins = workflow.start_event_class
        if begins.model_fields and "input_data" not in begins.model_fields:
            raise GuestError(f"{type(workflow).__name__} begins with {begins.__name__}. {OTHERWISE}")
        self._workflow = workflow
        self._held: Held[Working] = Held(Working.end)

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        working = await self._working(input)
        question: Interrupt | None = None
        try:
            async for event in working.events:
                if isinstance(event, InputRequiredEvent):
                    number = len(input.messages)
                    dumped = event.model_dump(mode="json")
                    fields = {
                        **dumped.pop("_data", {}),
                        **dumped,
                    }  # what its class declares, and what it was given besides
                    said = fields.pop("prefix", None) or fields.get("message")
                    question = Interrupt(
                        id=f"input-{number}",
                        reason="input_required",
                        message=said if isinstance(said, str) else None,
                        metadata={"value": fields} if fields else None,
                    )
                    outcome = InterruptOutcome(interrupts=[question])
                    asking = RunFinished(thread_id=input.thread_id, run_id=input.run_id, outcome=outcome)
                    yield asking
                    return
                if isinstance(event, MessagesSnapshotEvent):
                    # The results of tools, which the workflow tells in its snapshots alone.
                    known = {each.tool_call_id for each in input.messages if isinstance(each, ToolMessage)}
                    results = [
                        ToolCallResult(message_id=each.id, tool_call_id=each.tool_call_id, content=_text(each.content))
                        for each in event.messages
                        if isinstance(each, ToolMessage) and each.tool_call_id not in known
                    ]
                    for result in results:
                        yield result
                elif isinstance(event, BaseEvent):
                    yield event
            await working.handler
        finally:
            if question is not None and input.kept:
                await self._held.keep(input.thread_id, working)
            else:
                await working.end()

    async def close(self) -> None:
        await self._held.close()

    async def _working(self, input: GuestInput) -> Working:
        if input.resume:
            working = self._held.take(input.thread_id)
            # An object's fields are the event's, so that a workflow that waits for certain ones finds them; whatever
            # was answered is its `response`.
            entry = input.resume[0]
            payload = entry.payload if entry.status == "resolved" else None
            answer = HumanResponseEvent(**{**(payload if isinstance(payload, dict) else {}), "response": payload})
            working.handler.ctx.send_event(answer)
            return working
        await self._held.drop(input.thread_id)
        handler = self._workflow.run(input_data=_plain(input))
        return Working(handler, handler.stream_events())


def _plain(input: GuestInput) -> Any:
    """The input as the workflow takes it: it knows no reasoning, and reads no state as "use your own"."""
    plain = input.plain()
    messages = [each for each in plain.messages if not isinstance(each, ReasoningMessage)]
    return plain.model_copy(update={"messages": messages, "state": plain.state or None})


def _text(content: object) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content, enc_hook=vars).decode()
