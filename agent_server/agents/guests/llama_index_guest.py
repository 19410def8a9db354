"""A LlamaIndex workflow that speaks AG-UI (`AGUIChatWorkflow`, or one like it) as a guest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from ag_ui.core import BaseEvent, MessagesSnapshotEvent, ReasoningMessage, ToolMessage
from workflows import Workflow
from workflows.events import HumanResponseEvent, InputRequiredEvent
from workflows.handler import WorkflowHandler

from agent_server.agents.guests.guest import GuestError, GuestInput
from agent_server.agents.guests.host import PausedRuns
from events.vocabulary import Interrupt, InterruptOutcome, RunFinished, ToolCallResult

REQUIREMENT = (
    "Only workflows that start with `input_data`, a RunAgentInput, and emit AG-UI events can be served: "
    "use an AGUIChatWorkflow (llama-index-protocols-ag-ui) with the same model and tools."
)


class ActiveWorkflow(msgspec.Struct):
    """A running workflow and its events, which can be read only once."""

    handler: WorkflowHandler
    events: AsyncGenerator[object, None]

    async def end(self) -> None:
        await self.events.aclose()
        if not self.handler.is_done():
            await self.handler.cancel_run()


class LlamaIndexGuest:
    """Serves one workflow. Every run gets the whole conversation. A workflow that waits for a person
    (`InputRequiredEvent`) stays in this process until it gets the answer as a `HumanResponseEvent`."""

    kind = "llama-index"
    errors_for_clients = False
    partial_snapshots = False

    def __init__(self, workflow: Workflow) -> None:
        """Raises GuestError for a workflow that does not start with AG-UI's input."""
        start_event = workflow.start_event_class
        if start_event.model_fields and "input_data" not in start_event.model_fields:
            raise GuestError(f"{type(workflow).__name__} starts with {start_event.__name__}. {REQUIREMENT}")
        self._workflow = workflow
        self._paused: PausedRuns[ActiveWorkflow] = PausedRuns(ActiveWorkflow.end)

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        if input.resume:
            active = self._paused.resume(input.thread_id)
            # An object's fields become the event's, for workflows that wait for certain fields; the whole answer is its
            # `response`.
            entry = input.resume[0]
            payload = entry.payload if entry.status == "resolved" else None
            answer = HumanResponseEvent(**{**(payload if isinstance(payload, dict) else {}), "response": payload})
            active.handler.ctx.send_event(answer)
        else:
            await self._paused.drop(input.thread_id)
            # Without reasoning; with no state, the workflow uses its own.
            plain = input.plain()
            messages = [each for each in plain.messages if not isinstance(each, ReasoningMessage)]
            plain = plain.model_copy(update={"messages": messages, "state": plain.state or None})
            handler = self._workflow.run(input_data=plain)
            active = ActiveWorkflow(handler, handler.stream_events())
        question: Interrupt | None = None
        try:
            async for event in active.events:
                if isinstance(event, InputRequiredEvent):
                    number = len(input.messages)
                    # The fields that its class declares, and further ones.
                    dumped = event.model_dump(mode="json")
                    fields = {**dumped.pop("_data", {}), **dumped}
                    message = fields.pop("prefix", None) or fields.get("message")
                    question = Interrupt(
                        id=f"input-{number}",
                        reason="input_required",
                        message=message if isinstance(message, str) else None,
                        metadata={"value": fields} if fields else None,
                    )
                    outcome = InterruptOutcome(interrupts=[question])
                    yield RunFinished(thread_id=input.thread_id, run_id=input.run_id, outcome=outcome)
                    return
                if isinstance(event, MessagesSnapshotEvent):
                    # The results of tools, which the workflow reports only in its snapshots.
                    answered = {each.tool_call_id for each in input.messages if isinstance(each, ToolMessage)}
                    results = [
                        ToolCallResult(
                            message_id=each.id,
                            tool_call_id=each.tool_call_id,
                            content=each.content
                            if isinstance(each.content, str)
                            else msgspec.json.encode(each.content, enc_hook=vars).decode(),
                        )
                        for each in event.messages
                        if isinstance(each, ToolMessage) and each.tool_call_id not in answered
                    ]
                    for result in results:
                        yield result
                elif isinstance(event, BaseEvent):
                    yield event
            await active.handler
        finally:
            if question is not None and input.stored:
                await self._paused.add(input.thread_id, active)
            else:
                await active.end()

    async def close(self) -> None:
        await self._paused.close()
