"""The agents behind the A2A SDK; imported only if the extra `a2a` is installed.

Tasks are stored with their tenant's responses, so they survive a restart and are erased with them. A question to a
person ends the request in the state input-required: a text part has the question, and a data part the whole interrupt.
An answer is a data part with `answers` by question id, or the answer itself if there is one question. A text answers a
question whose form has a single text field; it never grants an approval.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from a2a.auth.user import User as A2aUser
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.tasks import (
    InMemoryTaskStore,
    PushNotificationConfigStore,
    PushNotificationEvent,
    PushNotificationSender,
    TaskStore,
    TaskUpdater,
)
from a2a.server.tasks.push_notification_config_store import normalize_push_notification_config
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
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from ag_ui.core import ResumeEntry
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.requests import Request
from starlette.responses import Response

from adapters.errors import RequestError
from agent_server.bounded import BoundedCache
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.http import agent_calls
from agent_server.http.auth.principal import principal_of
from agent_server.http.server import Server
from agent_server.ids import new_id
from agent_server.observability.library_logs import log_without_contents
from agent_server.version import version
from events.nesting import measure
from events.vocabulary import Interrupt

logger = logging.getLogger("agent_server.a2a")
log_without_contents("a2a")
TASK_PREFIX, PUSH_PREFIX = "a2a_", "a2apush_"
"""Prefixes of the store's ids for tasks and for push notification configurations, which are stored as responses."""
MAX_LISTED_TASKS, MAX_LISTED_BYTES = 1000, 2 * 2**20
"""Limits on the most recently changed tasks of a tenant that a list searches, and on their size together (`measure`),
since the SDK converts a page of them on the event loop."""
TASK_BYTES = 256 * 2**10
"""Size of a task above which its oldest messages are dropped, for the same reason. The conversation has all of them."""
PUSH_CONFIGS = 8
"""Limit per task."""
PUSH_ATTEMPTS = (0.0, 1.0, 10.0)
"""Seconds before each attempt to deliver a notification."""
INTERRUPTED_SECONDS = 300.0
"""How long the SDK keeps the two background tasks of an A2A task that waits for an answer. A later answer starts new
ones from the stored task."""
PUSH_SECONDS, PUSH_BACKLOG, PUSH_TASKS = 15.0, 20, 4096
"""Timeout of one attempt; waiting notifications per task, above which progress is skipped; tasks whose tenants are
remembered."""
TEXT = ["text/plain"]
FORMS = ["text/plain", "application/json"]


class A2aAgents:
    """A card and a request handler for each agent, created on first use."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._calls: dict[str, Any] = {}
        self._handlers: list[DefaultRequestHandler] = []
        server.on_close.append(self._close)
        self._pushes = PushNotifications(server)

    async def card(self, agent: str, request: Request) -> Response:
        (route,) = create_agent_card_routes(self._card(agent, str(request.base_url).rstrip("/")))
        response: Response = await route.endpoint(request)
        return response

    async def call(self, agent: str, request: Request) -> Response:
        if agent not in self._calls:
            handler = DefaultRequestHandler(
                Executor(self._server, agent),
                StoredTasks(self._server, agent, self._pushes),
                self._card(agent, ""),
                push_config_store=self._pushes,
                push_sender=self._pushes,
                interrupted_task_timeout=INTERRUPTED_SECONDS,
            )
            self._handlers.append(handler)
            (route,) = create_jsonrpc_routes(handler, "/", CallContextBuilder(), enable_v0_3_compat=True)
            self._calls[agent] = route.endpoint
        response: Response = await self._calls[agent](request)
        return response

    async def _close(self) -> None:
        """End the SDK's background tasks.

        A task that waits for an answer has two. If the garbage collector finalizes them after the event loop is gone,
        it may do so in any thread, where the SDK's queue then waits for a lock that the same thread holds.
        """
        for handler in self._handlers:
            await handler.aclose()

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
            capabilities=AgentCapabilities(streaming=True, push_notifications=self._pushes.sends),
            default_input_modes=FORMS,
            default_output_modes=TEXT,
            skills=[AgentSkill(id=agent, name=agent, description=description, tags=["chat"])],
            security_schemes={"key": BEARER} if keyed else {},
            security_requirements=[SecurityRequirement(schemes={"key": StringList()})] if keyed else [],
        )


BEARER = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))


class Caller(A2aUser):
    """The SDK's user of a request: tasks are looked up within it."""

    def __init__(self, tenant: str, name: str) -> None:
        self._name = json.dumps([tenant, name])

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


class CallContextBuilder(DefaultServerCallContextBuilder):
    """Passes the request's scope to the executor and the task store."""

    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state["scope"] = request.scope
        return context

    def build_user(self, request: Request) -> A2aUser:
        principal = principal_of(request.scope)
        return Caller(principal.tenant, principal.name)


class StoredTasks(TaskStore):
    """The stored tasks of one agent, separate for each user."""

    def __init__(self, server: Server, agent: str, pushes: PushNotifications) -> None:
        self._store = server.store
        self._agent = agent
        self._pushes = pushes

    async def save(self, task: Task, context: ServerCallContext) -> None:
        tenant = _tenant(context)
        self._pushes.note(task.id, tenant)
        while len(task.history) > 1 and task.ByteSize() > TASK_BYTES:
            del task.history[0]
        if task.status.state == TaskState.TASK_STATE_CANCELED:
            # Needed here, since the cancellation may reach another gateway than the question, or follow a restart.
            stored_task = await self.get(task.id, context)
            interrupt_ids = [each.id for each in _questions_in(stored_task)] if stored_task is not None else []
            if interrupt_ids:
                await self._store.expire_interrupts(tenant, task.context_id, interrupt_ids)
        body = {"agent": self._agent, "user": context.user.user_name, "task": MessageToDict(task)}
        await self._store.save_response(tenant, TASK_PREFIX + task.id, body)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        tenant = _tenant(context)
        body = await self._store.response(tenant, TASK_PREFIX + task_id)
        if body is None or not self._is_of(body, context):
            return None
        self._pushes.note(task_id, tenant)
        task: Task = ParseDict(body["task"], Task())
        return task

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        if await self.get(task_id, context) is not None:
            await self._store.delete_response(_tenant(context), TASK_PREFIX + task_id)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """The user's tasks, filtered and paged by the SDK's own store."""
        bodies = await self._store.newest_responses(
            _tenant(context), TASK_PREFIX, MAX_LISTED_TASKS, most_bytes=MAX_LISTED_BYTES
        )
        own = [body["task"] for body in bodies if self._is_of(body, context)]
        matching_tasks = InMemoryTaskStore()
        for task in await REQUEST_THREADS.run(_first_tasks, own):
            await matching_tasks.save(task, context)
        page: ListTasksResponse = await matching_tasks.list(params, context)
        return page

    def _is_of(self, body: Mapping[str, Any], context: ServerCallContext) -> bool:
        return bool(body["agent"] == self._agent and body["user"] == context.user.user_name)


def _first_tasks(wire: Sequence[dict[str, Any]]) -> list[Task]:
    """Convert tasks from JSON: the first one, and those after it that have MAX_LISTED_BYTES together."""
    tasks: list[Task] = []
    size = 0
    for each in wire:
        size += measure(each)
        if tasks and size > MAX_LISTED_BYTES:
            break
        tasks.append(ParseDict(each, Task()))
    return tasks


class PushNotifications(PushNotificationConfigStore, PushNotificationSender):
    """Stores push notification configurations, and sends the notifications."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tenants: BoundedCache[str, str] = BoundedCache(PUSH_TASKS)
        self._last: dict[str, tuple[asyncio.Task[None], int]] = {}

    @property
    def sends(self) -> bool:
        return self._server.webhooks is not None and self._server.webhooks.sends

    def note(self, task_id: str, tenant: str) -> None:
        """Remember a task's tenant: the SDK does not pass it to the sender."""
        self._tenants.put(task_id, tenant)

    async def set_info(
        self, task_id: str, notification_config: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig | None:
        webhooks = self._server.webhooks
        try:
            if webhooks is None or not webhooks.sends:
                raise InvalidParamsError(message="This server sends no push notifications.")
            webhooks.check(notification_config.url)
        except RequestError as error:
            raise InvalidParamsError(message=error.message) from None
        config: TaskPushNotificationConfig = normalize_push_notification_config(task_id, notification_config)
        self.note(task_id, _tenant(context))
        other_configs = [each for each in await self._load(_tenant(context), task_id) if each[1].id != config.id]
        if len(other_configs) >= PUSH_CONFIGS:
            raise InvalidParamsError(
                message=f"A task may have at most {PUSH_CONFIGS} push notification configurations."
            )
        await self._save(_tenant(context), task_id, [*other_configs, (context.user.user_name, config)])
        return config

    async def get_info(self, task_id: str, context: ServerCallContext) -> list[TaskPushNotificationConfig]:
        configs = await self._load(_tenant(context), task_id)
        return [config for user, config in configs if user == context.user.user_name]

    async def get_info_for_dispatch(self, task_id: str) -> list[TaskPushNotificationConfig]:
        """The configurations of the task's own user."""
        tenant = self._tenants.get(task_id)
        task = None if tenant is None else await self._server.store.response(tenant, TASK_PREFIX + task_id)
        if tenant is None or task is None:
            return []
        return [config for user, config in await self._load(tenant, task_id) if user == task["user"]]

    async def delete_info(self, task_id: str, context: ServerCallContext, config_id: str | None = None) -> None:
        tenant, user = _tenant(context), context.user.user_name
        configs = await self._load(tenant, task_id)
        remaining = [each for each in configs if each[0] != user or each[1].id != (config_id or task_id)]
        if len(remaining) < len(configs):
            await self._save(tenant, task_id, remaining)

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        """Send an event to every configured URL. Notifications of one task are sent in order."""
        if not self.sends:
            return
        before, waiting = self._last.get(task_id, (None, 0))
        working = isinstance(event, TaskStatusUpdateEvent) and event.status.state == TaskState.TASK_STATE_WORKING
        if working and waiting >= PUSH_BACKLOG:
            return
        body = msgspec.json.encode(MessageToDict(to_stream_response(event)))
        task = self._server.spawn(self._notify(task_id, body, before))
        self._last[task_id] = task, waiting + 1

    async def _notify(self, task_id: str, body: bytes, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            for config in await self.get_info_for_dispatch(task_id):
                await self._post(config, body)
        except Exception:
            logger.exception("The push notifications of an A2A task were not sent.")
        finally:
            last, waiting = self._last[task_id]
            if last is asyncio.current_task():
                del self._last[task_id]
            else:
                self._last[task_id] = last, waiting - 1

    async def _post(self, config: TaskPushNotificationConfig, body: bytes) -> None:
        assert self._server.webhooks is not None
        headers = {"x-a2a-notification-token": config.token} if config.token else {}
        if config.authentication.scheme and config.authentication.credentials:
            headers["authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
        id, failure = new_id("msg"), ""
        for seconds in PUSH_ATTEMPTS:
            await asyncio.sleep(seconds)
            try:
                async with asyncio.timeout(PUSH_SECONDS):
                    status = await self._server.webhooks.post(config.url, id, body, headers)
            except Exception as error:
                failure = type(error).__name__
                continue
            if 200 <= status < 300:
                return
            failure = f"HTTP status {status}"
        logger.warning("A push notification of an A2A task was not delivered (%s).", failure)

    async def _load(self, tenant: str, task_id: str) -> list[tuple[str, TaskPushNotificationConfig]]:
        body = await self._server.store.response(tenant, PUSH_PREFIX + task_id)
        if body is None:
            return []
        text = self._server.sealer.open(body["sealed"], tenant=tenant, thread_id=PUSH_PREFIX, message_id=task_id)
        if text is None:
            logger.warning(
                "The push notification configurations of an A2A task cannot be decrypted: the key has changed."
            )
            return []
        return [(user, ParseDict(each, TaskPushNotificationConfig())) for user, each in msgspec.json.decode(text)]

    async def _save(self, tenant: str, task_id: str, configs: list[tuple[str, TaskPushNotificationConfig]]) -> None:
        text = msgspec.json.encode([(user, MessageToDict(each)) for user, each in configs]).decode()
        sealed = self._server.sealer.seal(text, tenant=tenant, thread_id=PUSH_PREFIX, message_id=task_id)
        await self._server.store.save_response(tenant, PUSH_PREFIX + task_id, {"sealed": sealed})


def _tenant(context: ServerCallContext) -> str:
    return principal_of(context.state["scope"]).tenant


class Executor(AgentExecutor):
    """Runs one agent for a task. The SDK's cancellation ends the run."""

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
            interrupts = _questions_in(task)
            answers = _answers_in(context, interrupts)
            if answers is None:
                instructions = 'Answer with a data part: {"answers": {question id: answer that fits its schema}}.'
                parts = [Part(text=instructions), *_questions(interrupts)]
                await updater.requires_input(updater.new_agent_message(parts))
                return
            resume = answers
        message = "" if resume else context.get_user_input()
        if not resume and not message.strip():
            await updater.reject(updater.new_agent_message([Part(text="The message has no text. Send a text part.")]))
            return
        try:
            run = await agent_calls.start(
                self._server, self._agent, tenant, thread=context.context_id, message=message, resume=resume
            )
        except RequestError as error:
            await updater.failed(updater.new_agent_message([Part(text=error.message)]))
            return
        await updater.start_work()
        async for update in agent_calls.follow(run):
            if isinstance(update, str):
                await updater.start_work(updater.new_agent_message([Part(text=update)]))
            elif update.interrupts:
                questions = [Part(text=agent_calls.question_of(each)) for each in update.interrupts]
                await updater.requires_input(updater.new_agent_message([*questions, *_questions(update.interrupts)]))
            elif update.failed:
                await updater.failed(updater.new_agent_message([Part(text=update.text)]))
            elif update.cancelled:
                await updater.cancel()
            else:
                await updater.add_artifact([Part(text=update.text)], name="answer")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Report the cancellation.

        The SDK has cancelled `execute` and so the run; `StoredTasks.save` closes open questions.
        """
        assert context.task_id is not None and context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _questions(interrupts: Any) -> list[Part]:
    """The complete interrupts, as a data part."""
    wire = {"questions": msgspec.to_builtins(list(interrupts))}
    return [Part(data=ParseDict(wire, Value()), media_type="application/json")]


def _data_in(parts: Any) -> list[dict[str, Any]]:
    values = [_with_integers(MessageToDict(part.data)) for part in parts if part.HasField("data")]
    return [each for each in values if isinstance(each, dict)]


def _with_integers(value: Any) -> Any:
    """Restore the integers in JSON from protobuf, whose numbers are all floats."""
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


def _answers_in(context: RequestContext, interrupts: list[Interrupt]) -> list[ResumeEntry] | None:
    """The answers in a message; None if one is missing."""
    assert context.message is not None
    answers: Mapping[str, Any] = {}
    data = _data_in(context.message.parts)
    if data and isinstance(data[0].get("answers"), dict):
        answers = data[0]["answers"]
    elif data and len(interrupts) == 1:
        answers = {interrupts[0].id: data[0]}
    elif len(interrupts) == 1 and (text := context.get_user_input().strip()):
        form = agent_calls.form_of(interrupts[0])
        fields = {} if form is None or agent_calls.link_of(interrupts[0]) is not None else form["properties"]
        (name, schema), *others = fields.items() or [("", {})]
        if not others and schema.get("type") == "string":
            answers = {interrupts[0].id: text if interrupts[0].response_schema is None else {name: text}}
    if not interrupts or any(each.id not in answers for each in interrupts):
        return None
    return [
        ResumeEntry(interrupt_id=each.id, status="cancelled")
        if answers[each.id] is None
        else ResumeEntry(interrupt_id=each.id, status="resolved", payload=answers[each.id])
        for each in interrupts
    ]
