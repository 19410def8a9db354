"""The agents as the A2A SDK serves them; imported where the extra `a2a` is installed.

Tasks are kept in the store, each with its tenant's responses, so they outlive a restart and are erased with them. What
the agent asks a person ends the request with the state input-required: the question is a text part, and a data part has
it in full. An answer is a data part with `answers` by the questions' ids, or the answer itself where there is one
question; a text answers a question whose form has one field of text. No text is a consent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from a2a.auth.user import User as A2aUser
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.tasks import TaskStore, TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    ListTasksRequest,
    ListTasksResponse,
    Part,
    SecurityRequirement,
    SecurityScheme,
    StringList,
    Task,
    TaskState,
)
from a2a.utils.errors import UnsupportedOperationError
from ag_ui.core import ResumeEntry
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.requests import Request
from starlette.responses import Response

from adapters.errors import RequestError
from agent_server.http import agent_calls
from agent_server.http.auth.principal import principal_of
from agent_server.http.server import Server
from agent_server.version import version
from events.vocabulary import Interrupt

TASK_PREFIX = "a2a_"
"""Before the ids of tasks in the store, where responses have their own."""
TEXT = ["text/plain"]
FORMS = ["text/plain", "application/json"]


class A2aAgents:
    """A card and a request handler for each agent, made when it is first asked for."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._calls: dict[str, Any] = {}

    async def card(self, agent: str, request: Request) -> Response:
        (route,) = create_agent_card_routes(self._card(agent, str(request.base_url).rstrip("/")))
        response: Response = await route.endpoint(request)
        return response

    async def call(self, agent: str, request: Request) -> Response:
        if agent not in self._calls:
            handler = DefaultRequestHandler(
                Executor(self._server, agent), Tasks(self._server, agent), self._card(agent, "")
            )
            (route,) = create_jsonrpc_routes(handler, "/", Callers(), enable_v0_3_compat=True)
            self._calls[agent] = route.endpoint
        response: Response = await self._calls[agent](request)
        return response

    def _card(self, agent: str, base: str) -> AgentCard:
        served = self._server.agents[agent]
        description = served.description or f"The agent {agent}."
        access = self._server.settings.access
        keyed = bool(access.api_keys or access.keys_file or self._server.settings.issuer.issuer)
        url = f"{self._server.settings.listening.public_url or base}/a2a/{agent}"
        return AgentCard(
            name=agent,
            description=description,
            version=version(),
            supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
            capabilities=AgentCapabilities(streaming=True, push_notifications=False),
            default_input_modes=FORMS,
            default_output_modes=TEXT,
            skills=[AgentSkill(id=agent, name=agent, description=description, tags=["chat"])],
            security_schemes={"key": BEARER} if keyed else {},
            security_requirements=[SecurityRequirement(schemes={"key": StringList()})] if keyed else [],
        )


BEARER = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))


class Caller(A2aUser):
    """Who sent a request: tasks are looked up within that."""

    def __init__(self, tenant: str, name: str) -> None:
        self._name = json.dumps([tenant, name])

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class Callers(DefaultServerCallContextBuilder):
    """Hands the request's scope on to the executor and the store."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["scope"] = request.scope
        return context

    def build_user(self, request: Request) -> A2aUser:
        who = principal_of(request.scope)
        return Caller(who.tenant, who.name)


class Tasks(TaskStore):
    """The tasks of one agent, each its user's."""

    def __init__(self, server: Server, agent: str) -> None:
        self._store = server.store
        self._agent = agent

    async def save(self, task: Task, context: ServerCallContext) -> None:
        body = {"agent": self._agent, "user": context.user.user_name, "task": MessageToDict(task)}
        await self._store.save_response(_tenant(context), TASK_PREFIX + task.id, body)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        body = await self._store.response(_tenant(context), TASK_PREFIX + task_id)
        if body is None or body["agent"] != self._agent or body["user"] != context.user.user_name:
            return None
        task: Task = ParseDict(body["task"], Task())
        return task

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        if await self.get(task_id, context) is not None:
            await self._store.delete_response(_tenant(context), TASK_PREFIX + task_id)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        raise UnsupportedOperationError(message="Tasks are not listed here; ask for one by its id.")


def _tenant(context: ServerCallContext) -> str:
    return principal_of(context.state["scope"]).tenant


class Executor(AgentExecutor):
    """Runs one agent for a task. The run ends with this, and with the SDK's cancellation."""

    def __init__(self, server: Server, agent: str) -> None:
        self._server = server
        self._agent = agent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        tenant = agent_calls.enter_caller(self._server, context.call_context.state["scope"])
        assert context.task_id is not None and context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        resume: list[ResumeEntry] = []
        task = context.current_task
        if task is None:
            await event_queue.enqueue_event(
                Task(id=context.task_id, context_id=context.context_id, history=[context.message])
            )
            await updater.submit()
        elif task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            asked = _questions_in(task)
            answers = _answers_in(context, asked)
            if answers is None:
                wanted = 'Answer with a data part: {"answers": {question id: answer that fits its schema}}.'
                await updater.requires_input(updater.new_agent_message([Part(text=wanted), *_questions(asked)]))
                return
            resume = answers
        message = "" if resume else context.get_user_input()
        if not resume and not message.strip():
            await updater.reject(updater.new_agent_message([Part(text="The message has no text.")]))
            return
        try:
            run = await agent_calls.start(
                self._server, self._agent, tenant, thread=context.context_id, message=message, resume=resume
            )
        except RequestError as error:
            await updater.failed(updater.new_agent_message([Part(text=error.message)]))
            return
        await updater.start_work()
        async for said in agent_calls.follow(run):
            if isinstance(said, str):
                await updater.start_work(updater.new_agent_message([Part(text=said)]))
            elif said.interrupts:
                questions = [Part(text=agent_calls.question_of(each)) for each in said.interrupts]
                await updater.requires_input(updater.new_agent_message([*questions, *_questions(said.interrupts)]))
            elif said.failed:
                await updater.failed(updater.new_agent_message([Part(text=said.text)]))
            elif said.cancelled:
                await updater.cancel()
            else:
                await updater.add_artifact([Part(text=said.text)], name="answer")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """The run has ended with `execute`, which the SDK cancels; questions that were open stay unanswered."""
        assert context.task_id is not None and context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _questions(interrupts: Any) -> list[Part]:
    """The questions in full, as a data part."""
    wire = {"questions": msgspec.to_builtins(list(interrupts))}
    return [Part(data=ParseDict(wire, Value()), media_type="application/json")]


def _data_in(parts: Any) -> list[dict[str, Any]]:
    found = [_with_integers(MessageToDict(part.data)) for part in parts if part.HasField("data")]
    return [each for each in found if isinstance(each, dict)]


def _with_integers(value: Any) -> Any:
    """JSON as it was before protobuf, whose numbers are all floats."""
    if isinstance(value, dict):
        return {key: _with_integers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _questions_in(task: Task) -> list[Interrupt]:
    for data in _data_in(task.status.message.parts):
        if "questions" in data:
            return msgspec.convert(data["questions"], list[Interrupt])
    return []


def _answers_in(context: RequestContext, asked: list[Interrupt]) -> list[ResumeEntry] | None:
    """The answers that a message brings; None where one is missing."""
    assert context.message is not None
    answers: Mapping[str, Any] = {}
    data = _data_in(context.message.parts)
    if data and isinstance(data[0].get("answers"), dict):
        answers = data[0]["answers"]
    elif data and len(asked) == 1:
        answers = {asked[0].id: data[0]}
    elif len(asked) == 1 and (text := context.get_user_input().strip()):
        form = agent_calls.form_of(asked[0])
        fields = {} if form is None or agent_calls.link_of(asked[0]) is not None else form["properties"]
        (name, schema), *others = fields.items() or [("", {})]
        if not others and schema.get("type") == "string":
            answers = {asked[0].id: text if asked[0].response_schema is None else {name: text}}
    if not asked or any(each.id not in answers for each in asked):
        return None
    return [
        ResumeEntry(interrupt_id=each.id, status="cancelled")
        if answers[each.id] is None
        else ResumeEntry(interrupt_id=each.id, status="resolved", payload=answers[each.id])
        for each in asked
    ]
