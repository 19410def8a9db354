"""MCP elicitation: the questions that a server asks a person while one of its tools runs (form and URL mode).

A question becomes an AG-UI interrupt. Servers of the protocol 2026-07-28 end the request with their questions, and the
client repeats it with the answers (multi round-trip requests). All that this needs is stored with the interrupt, so
another gateway can continue. Servers of earlier protocols ask while the request is open; `OpenCall` keeps it open in
this process until the answer arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping

import msgspec
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from pydantic import TypeAdapter

from agent_server.agents.tool_context import InputRequired

DECLINE = "decline"
"""The payload that declines a form. It cannot be a form's content, which is an object."""
OPEN_CALL_SECONDS = 3600.0
"""How long a request of an earlier protocol stays open for an answer."""
REASON = "mcp_elicitation"
_PARAMS: TypeAdapter[ElicitRequestParams] = TypeAdapter(ElicitRequestParams)
Result = CallToolResult | InputRequiredResult
CheckedResult = tuple[Result, list[str]]
"""A result or the questions before it, and the problems that repairs found in it."""
Ask = Callable[[ElicitRequestParams], Awaitable[ElicitResult]]


class AnsweredQuestion(msgspec.Struct):
    """A question in wire form, and the result that its server received."""

    params: dict[str, object]
    result: dict[str, object]


class UnsupportedInput(Exception):
    """A server requires input other than a person's: a model's answer (sampling) or folders (roots)."""


class Elicitation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is stored with the interrupt of a question, to continue the call with its answer.

    requests: the questions of this round by the server's keys, in wire form. responses: the answers so far. state: the
    server's opaque state. task: the handle of the task that the call became, which receives the answers. sends: whether
    the repeated request includes the answers; after error -32042 it does not. open_call: the key of the request that is
    still open. answered: earlier questions of that request, with their answers.
    """

    requests: dict[str, dict[str, object]] = {}
    responses: dict[str, dict[str, object]] = {}
    state: str | None = None
    task: str | None = None
    sends: bool = True
    open_call: str | None = None
    answered: list[AnsweredQuestion] = []

    @property
    def open_key(self) -> str | None:
        """The key of the next question; None if all are answered."""
        return next((key for key in self.requests if key not in self.responses), None)

    def params(self, key: str) -> ElicitRequestParams:
        return _PARAMS.validate_python(self.requests[key])

    def answer(self, key: str, result: ElicitResult) -> None:
        self.responses[key] = result.model_dump(mode="json", by_alias=True, exclude_none=True)

    def input_responses(self) -> InputResponses:
        return {key: ElicitResult.model_validate(each) for key, each in self.responses.items()}

    @property
    def refused(self) -> bool:
        return any(each["action"] != "accept" for each in self.responses.values())

    def question(self, server: str) -> InputRequired:
        """Return the interrupt for the next question."""
        key = self.open_key
        assert key is not None
        params = self.params(key)
        if isinstance(params, ElicitRequestURLParams):
            schema: dict[str, object] = {
                "type": "object",
                "properties": {"approved": {"type": "boolean"}},
                "required": ["approved"],
            }
            message = f"{params.message}\n{params.url}"
            metadata: dict[str, object] = {"mcpServer": server, "mode": "url", "url": params.url}
        else:
            schema, message = dict(params.requested_schema), params.message
            schema.setdefault("type", "object")
            metadata = {"mcpServer": server, "mode": "form", "declinePayload": DECLINE}
        seconds = OPEN_CALL_SECONDS if self.open_call is not None else None
        return InputRequired(
            message, schema, REASON, seconds, metadata=metadata, continuation=msgspec.to_builtins(self)
        )


def round_of(result: InputRequiredResult, task: str | None = None) -> Elicitation:
    """Return the questions with which a request of the newest protocol ended, or those of a task. Raises
    UnsupportedInput."""
    requests: dict[str, dict[str, object]] = {}
    for key, request in (result.input_requests or {}).items():
        if not isinstance(request, ElicitRequest):
            raise UnsupportedInput(request.method)
        requests[key] = _wire(request.params)
    return Elicitation(requests=requests, state=result.request_state, task=task)


def required_urls(data: object) -> Elicitation | None:
    """Return the URLs that the user must visit before a server of the protocol 2025-11-25 accepts a request (error
    -32042)."""
    listed = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(listed, list) or not listed:
        return None
    requests = {str(at): _wire(ElicitRequestURLParams.model_validate(each)) for at, each in enumerate(listed)}
    return Elicitation(requests=requests, sends=False)


def consent_to(server: str, url: str) -> Elicitation:
    """Return the sign-in that a server requires of the user before it accepts a request."""
    params = ElicitRequestURLParams(message=f"Sign in to {server}, then confirm.", url=url, elicitation_id="consent")
    return Elicitation(requests={"0": _wire(params)}, sends=False)


def result_for(payload: object, params: ElicitRequestParams) -> ElicitResult:
    """Return the result of an elicitation for the answer to its interrupt.

    payload: None for an interrupt that was cancelled or has expired. A missing field gets its schema's default
    (SEP-1034).
    """
    if payload is None:
        return ElicitResult(action="cancel")
    if isinstance(params, ElicitRequestURLParams):
        agrees = isinstance(payload, dict) and payload.get("approved") is True
        return ElicitResult(action="accept" if agrees else "decline")
    if not isinstance(payload, dict):
        return ElicitResult(action="decline")
    properties = params.requested_schema.get("properties", {})
    defaults = {name: each["default"] for name, each in properties.items() if "default" in each}
    return ElicitResult(action="accept", content={**defaults, **payload})


class OpenCall:
    """A request during which its server may ask questions.

    answered: the earlier questions, if the request was lost with its process and is repeated. A question that is
    repeated word for word gets the same answer. may_ask: if False, questions are declined. progress: reports progress
    to the run that currently waits.
    """

    def __init__(
        self,
        start: Callable[[Ask, ProgressFnT], Coroutine[object, object, CheckedResult]],
        answered: list[AnsweredQuestion],
        *,
        may_ask: bool,
    ) -> None:
        self._earlier_answers = list(answered)
        self._may_ask = may_ask
        self.declined = False
        self.task_handle: str | None = None
        self.on_task: Callable[[str], Awaitable[None]] | None = None
        self.progress: ProgressFnT | None = None
        self.answered: list[AnsweredQuestion] = []
        self._questions: list[tuple[ElicitRequestParams, asyncio.Future[ElicitResult]]] = []
        self._question_event = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[CheckedResult] = asyncio.create_task(start(self._ask, self._report_progress))
        self.task.add_done_callback(self._cancel_questions)

    async def _ask(self, params: ElicitRequestParams) -> ElicitResult:
        repeated = next((each for each in self._earlier_answers if each.params == _wire(params)), None)
        if repeated is not None:
            self._earlier_answers.remove(repeated)
            self.answered.append(repeated)
            return ElicitResult.model_validate(repeated.result)
        if not self._may_ask:
            self.declined = True
            return ElicitResult(action="decline")
        answer: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()
        self._questions.append((params, answer))
        self._question_event.set()
        return await answer

    async def _report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self.progress is not None:
            await self.progress(progress, total, message)

    async def became_task(self, handle: str) -> None:
        """Note that the server executes the request as a task."""
        self.task_handle = handle
        if self.on_task is not None:
            await self.on_task(handle)

    async def wait(self) -> CheckedResult | ElicitRequestParams:
        """Wait for the result of the request, or its next question. Raises what the request raises."""
        question = asyncio.ensure_future(self._question_event.wait())
        try:
            await asyncio.wait({self.task, question}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            question.cancel()
        return await self.task if self.task.done() else self._questions[0][0]

    def answer(self, result: ElicitResult) -> None:
        """Answer the question that `wait` returned."""
        if self._expiry is not None:
            self._expiry.cancel()
        params, answer = self._questions.pop(0)
        if not self._questions:
            self._question_event.clear()
        self.answered.append(answered_question(params, result))
        if not answer.done():
            answer.set_result(result)

    def _cancel_questions(self, ended: asyncio.Task[CheckedResult]) -> None:
        """Cancel what was not answered before the request ended, so that nothing waits for it any longer."""
        for _, answer in self._questions:
            if not answer.done():
                answer.set_result(ElicitResult(action="cancel"))

    def keep(self, give_up: Callable[[], None]) -> None:
        """Keep the request open for an answer. give_up: called if none arrives in time."""
        self._expiry = asyncio.get_running_loop().call_later(OPEN_CALL_SECONDS, give_up)

    def cancel(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.task.cancel()


def elicitation_of(call: OpenCall, params: ElicitRequestParams, key: str) -> Elicitation:
    """Return the question of an open request. key: the request's key."""
    return Elicitation(requests={"0": _wire(params)}, task=call.task_handle, open_call=key, answered=call.answered)


def answered_question(params: ElicitRequestParams, result: ElicitResult) -> AnsweredQuestion:
    return AnsweredQuestion(_wire(params), result.model_dump(mode="json", by_alias=True, exclude_none=True))


def _wire(params: ElicitRequestParams) -> dict[str, object]:
    return params.model_dump(mode="json", by_alias=True, exclude_none=True)
