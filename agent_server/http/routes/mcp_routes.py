"""MCP in both roles: the agents' servers at `/agui/mcp` and their sign-in, and the agents as tools at `/mcp`."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from adapters.body import Limits, read_json
from adapters.errors import RequestError
from agent_server.http import agent_calls
from agent_server.http.auth import principal_of
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import RETRY_AFTER, guarded, parse_off_loop, read_body, read_struct
from agent_server.ids import new_id
from agent_server.user import current_user
from agent_server.version import version
from events.vocabulary import Interrupt

if TYPE_CHECKING:
    import mcp_types
    from ag_ui.core import ResumeEntry
    from mcp.server.context import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from agent_server.agents.mcp.sessions import McpConnection
    from agent_server.http.server import Server
    from agent_server.runs import Run

CALLBACK = "/oauth/callback"
PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}}
</style><h1>{title}</h1><p>{text}</p>{link}</html>"""


PROMPT_HINT = 'The body must be {"server": name, "name": prompt name, "arguments": {name: text}}'
RESOURCE_HINT = 'The body must be {"server": name, "uri": resource URI}, with "arguments" if that is a template'
COMPLETION_HINT = (
    'The body must be {"server": name, "argument": name, "value": text} with either "prompt": name or "uriTemplate": '
    'template, and may have "arguments": {name: text}'
)


class PromptRequest(msgspec.Struct, frozen=True):
    """A prompt of an MCP server, and its arguments."""

    server: str
    name: str
    arguments: dict[str, str] = {}


class ResourceRequest(msgspec.Struct, frozen=True):
    """A resource of an MCP server. arguments: the values of the variables, if `uri` is a template."""

    server: str
    uri: str
    arguments: dict[str, str] = {}


class CompletionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """An argument of a prompt or a variable of a resource template, with what was typed so far.

    arguments: the other ones that have a value, on which a server's suggestions may depend.
    """

    server: str
    argument: str
    value: str
    prompt: str = ""
    uri_template: str = ""
    arguments: dict[str, str] = {}


def page(title: str, text: str, link: str = "", status: int = 200) -> Response:
    return HTMLResponse(
        PAGE.format(title=escape(title), text=escape(text), link=link), status_code=status, headers=PAGE_HEADERS
    )


def routes(server: Server) -> list[BaseRoute]:
    async def servers(request: Request) -> Response:
        return json_response({"servers": [] if server.mcp is None else server.mcp.describe(current_user.get())})

    def connection_of(name: str) -> McpConnection:
        connection = None if server.mcp is None else server.mcp.connection_named(name, current_user.get())
        if connection is None:
            raise RequestError("not_found", f"There is no MCP server {name!r}. GET /agui/mcp lists the available ones.")
        return connection

    async def prompt(request: Request) -> Response:
        from agent_server.agents.mcp.resources import messages_of_prompt

        body = await read_struct(request, PromptRequest, server.settings.http.max_body, PROMPT_HINT)
        connection, seconds = connection_of(body.server), server.settings.tools.seconds
        return json_response(await messages_of_prompt(connection, body.name, body.arguments, seconds))

    async def resource(request: Request) -> Response:
        from agent_server.agents.mcp.resources import content_of_resource

        body = await read_struct(request, ResourceRequest, server.settings.http.max_body, RESOURCE_HINT)
        connection, seconds = connection_of(body.server), server.settings.tools.seconds
        return json_response(await content_of_resource(connection, body.uri, seconds, body.arguments))

    async def complete(request: Request) -> Response:
        from mcp_types import PromptReference, ResourceTemplateReference

        from agent_server.agents.mcp.resources import completions_for

        body = await read_struct(request, CompletionRequest, server.settings.http.max_body, COMPLETION_HINT)
        if bool(body.prompt) == bool(body.uri_template):
            raise RequestError("invalid_request", f"{COMPLETION_HINT}.", "prompt")
        ref: PromptReference | ResourceTemplateReference = ResourceTemplateReference(uri=body.uri_template)
        if body.prompt:
            ref = PromptReference(name=body.prompt)
        connection, seconds = connection_of(body.server), server.settings.tools.seconds
        return json_response(await completions_for(connection, ref, body.argument, body.value, body.arguments, seconds))

    async def callback(request: Request) -> Response:
        """Finish a sign-in: an authorization server redirects the user's browser here.

        The request has no key: `state` identifies the sign-in. A user with a name must confirm it: otherwise a link
        from someone else's sign-in, opened by this person, would grant that user this person's access.
        """
        consents = None if server.mcp is None else server.mcp.consents
        query = request.query_params
        state = query.get("state", "")
        if consents is None or not state:
            return page("Nothing to sign in to", "No sign-in is waiting for this link.", status=404)
        from agent_server.agents.mcp.consent import ConsentRefused

        try:
            mcp, user = await consents.pending(state)
            account = " of ".join(filter(None, (user.name, user.tenant)))
            if account and "error" not in query and query.get("confirm") != "yes":
                again = urlencode([*query.multi_items(), ("confirm", "yes")])
                return page(
                    f"Connect {mcp.name}?",
                    f"The agents that work for {account} will be able to use {mcp.name} in your name. Continue only if "
                    "that is you, and you asked for it.",
                    f'<p><a href="?{escape(again)}">Connect {escape(mcp.name)} to {escape(account)}</a></p>',
                )
            await consents.finish(state, query.get("code", ""), query.get("iss"), query.get("error"))
        except ConsentRefused as refused:
            return page("Not signed in", str(refused), status=400)
        return page(f"Signed in to {mcp.name}", "Close this page, and confirm in the conversation.")

    return [
        Route("/agui/mcp", guarded(servers)),
        Route("/agui/mcp/prompt", guarded(prompt), methods=["POST"]),
        Route("/agui/mcp/resource", guarded(resource), methods=["POST"]),
        Route("/agui/mcp/complete", guarded(complete), methods=["POST"]),
        Route(CALLBACK, guarded(callback)),
        *mcp_server_routes(server),
    ]


ROUNDS = 20
"""Limit on rounds of questions in one call, over protocols that ask while the request is open."""
SESSIONS, IDLE_SECONDS = 1000, 600.0
BODY_VALUES = 10_000
"""Limit on the JSON values of a request, which the SDK validates on the event loop."""
SESSION_HEADER, VERSION_HEADER = "mcp-session-id", "mcp-protocol-version"
SEALED_FOR = "mcp"
INPUT_SCHEMA = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The message to the agent."},
        "conversation": {"type": "string", "description": "To continue one: `conversation` of an earlier answer."},
    },
    "required": ["message"],
    "additionalProperties": False,
}
OUTPUT_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "conversation": {"type": "string"}},
    "required": ["answer", "conversation"],
}


class CallState(msgspec.Struct):
    """The state of a call that waits for answers; its client stores it encrypted and sends it back."""

    agent: str
    thread: str
    interrupts: list[Interrupt]


class McpEndpoint:
    """The ASGI application at `/mcp`. The first request imports the SDK and starts its session manager."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: StreamableHTTPSessionManager | None = None
        self._ready = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sessions is None:  # in a thread, since it takes a second
            await asyncio.to_thread(importlib.import_module, "mcp.server.streamable_http_manager")
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken
        from mcp.server.lowlevel import Server as McpServer
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        headers = Headers(scope=scope)
        content_type = headers.get("content-type", "")
        if scope["method"] == "POST" and not content_type.startswith("application/json"):
            message = "Send the body as JSON, with Content-Type: application/json."
            raise RequestError("unsupported_media_type", message)
        if scope["method"] == "POST":
            receive = await self._within_limits(Request(scope, receive))
        if self._sessions is None:
            sdk = McpServer("agent-server", version=version(), on_list_tools=self._list, on_call_tool=self._call)
            self._sessions = StreamableHTTPSessionManager(
                sdk,
                session_idle_timeout=IDLE_SECONDS,
                max_request_body_size=self._server.settings.http.max_body,
                max_sessions=SESSIONS,
            )

            async def hold(sessions: StreamableHTTPSessionManager) -> None:
                async with sessions.run():
                    self._ready.set()
                    await asyncio.Event().wait()

            # A context of its own: a request starts the sessions, but they do not act for it.
            contextvars.Context().run(self._server.spawn, hold(self._sessions))
        await self._ready.wait()
        who = principal_of(scope)
        self._check_share(self._sessions, headers, who.tenant)
        # The SDK allows a session only to the user who opened it.
        scope["user"] = AuthenticatedUser(AccessToken(token="-", client_id=who.tenant, subject=who.name, scopes=[]))
        await self._sessions.handle_request(scope, receive, send)

    async def _within_limits(self, request: Request) -> Receive:
        """Read a body, check it, and return a `receive` that passes it on. What is not JSON the SDK answers. Raises
        RequestError for a body that is too large."""
        most = self._server.settings.http.max_body
        body = await read_body(request, most)
        try:
            await parse_off_loop(len(body), read_json, body, Limits(body=most, values=BODY_VALUES))
        except RequestError as error:
            if error.kind == "payload_too_large":
                raise
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await request.receive()

        return receive

    def _check_share(self, sessions: StreamableHTTPSessionManager, headers: Headers, tenant: str) -> None:
        """Raise RequestError for a request that opens a session if its tenant has as many as are free, as with
        connections: the SDK has one limit for all, so a tenant could leave none to the others."""
        from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

        opens = SESSION_HEADER not in headers and headers.get(VERSION_HEADER, HANDSHAKE_PROTOCOL_VERSIONS[0]) in (
            HANDSHAKE_PROTOCOL_VERSIONS
        )
        owners = sessions._session_owners.values()
        if opens and sum(owner["client_id"] == tenant for owner in owners) >= SESSIONS - len(owners):
            message = "You have too many open MCP sessions. Close some, or wait until they have been idle for a while."
            raise RequestError("overloaded", message, retry_after=RETRY_AFTER)

    async def _list(
        self, context: ServerRequestContext, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        from mcp_types import ListToolsResult, Tool

        tools = [
            Tool(
                name=name,
                description=agent.description or f"Ask the agent {name}.",
                input_schema=INPUT_SCHEMA,
                output_schema=OUTPUT_SCHEMA,
            )
            for name, agent in agent_calls.callable_agents(self._server).items()
        ]
        return ListToolsResult(tools=tools)

    async def _call(
        self, context: ServerRequestContext, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Call an agent.

        Its questions end the request, and the client repeats the request with the answers. Over protocols before
        2026-07-28 the client is asked while the request is open.
        """
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS, InputRequiredResult
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        assert context.request is not None
        tenant = agent_calls.enter_caller(self._server, context.request.scope)
        if params.name not in agent_calls.callable_agents(self._server):
            raise MCPError(INVALID_PARAMS, f"Unknown tool {params.name!r}. tools/list lists the available ones.")
        message, resume, arguments = "", [], params.arguments or {}
        if params.request_state is not None:
            state = self._server.sealer.open(
                params.request_state, tenant=tenant, thread_id=SEALED_FOR, message_id=params.name
            )
            if state is None:
                raise MCPError(INVALID_PARAMS, "The requestState was not issued by this server for this tool and user.")
            call_state = msgspec.json.decode(state, type=CallState)
            thread, resume = call_state.thread, [self._answer(each, params) for each in call_state.interrupts]
        else:
            text, thread = arguments.get("message"), arguments.get("conversation") or new_id("thread")
            if not isinstance(text, str) or not text.strip() or not isinstance(thread, str):
                # A tool error, not a protocol error: the calling model reads it and calls again (SEP-1303).
                sentence = "`message` must be a non-empty string; `conversation` is optional."
                return _result(thread if isinstance(thread, str) else "", sentence, failed=True)
            message = text
        for _ in range(ROUNDS):
            try:
                run = await agent_calls.start(
                    self._server, params.name, tenant, thread=thread, message=message, resume=resume
                )
            except RequestError as error:
                return _result(thread, error.message, failed=True)
            result = await self._follow(run, context)
            if not result.interrupts:
                reason = "The run was cancelled." if result.cancelled else result.text
                return _result(thread, reason, failed=result.failed or result.cancelled)
            if context.protocol_version in MODERN_PROTOCOL_VERSIONS and _can_ask(context, result.interrupts):
                state = msgspec.json.encode(CallState(params.name, thread, list(result.interrupts))).decode()
                sealed = self._server.sealer.seal(state, tenant=tenant, thread_id=SEALED_FOR, message_id=params.name)
                requests = {each.id: _request(each) for each in result.interrupts}
                return InputRequiredResult(input_requests=requests, request_state=sealed)
            message, resume = "", [await self._elicit(context, each) for each in result.interrupts]
        return _result(thread, f"The agent asked questions in more than {ROUNDS} rounds.", failed=True)

    def _answer(self, interrupt: Interrupt, params: mcp_types.CallToolRequestParams) -> ResumeEntry:
        from mcp_types import ElicitResult

        response = (params.input_responses or {}).get(interrupt.id)
        if not isinstance(response, ElicitResult):
            return agent_calls.unanswered(interrupt)
        return agent_calls.answer_to(interrupt, response.action, response.content)

    async def _follow(self, run: Run, context: ServerRequestContext) -> agent_calls.RunResult:
        count = 0
        async for update in agent_calls.follow(run):
            if isinstance(update, agent_calls.RunResult):
                return update
            count += 1
            await context.session.report_progress(count, message=update)
        return agent_calls.RunResult(text="The run ended without an answer.", failed=True)

    async def _elicit(self, context: ServerRequestContext, interrupt: Interrupt) -> ResumeEntry:
        from mcp_types import ElicitRequestURLParams

        if not context.session.can_send_request or not _can_ask(context, [interrupt]):
            return agent_calls.unanswered(interrupt)
        params = _request(interrupt).params
        if isinstance(params, ElicitRequestURLParams):
            assert params.elicitation_id is not None
            answer = await context.session.elicit_url(
                params.message, params.url, params.elicitation_id, context.request_id
            )
        else:
            answer = await context.session.elicit_form(params.message, params.requested_schema, context.request_id)
        return agent_calls.answer_to(interrupt, answer.action, answer.content)


def _can_ask(context: ServerRequestContext, interrupts: Sequence[Interrupt]) -> bool:
    """Whether the client can show all of these questions to its user."""
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None:
        return False
    links = [agent_calls.link_of(each) is not None for each in interrupts]
    if any(links) and elicitation.url is None:
        return False
    return all(link or agent_calls.form_of(each) is not None for link, each in zip(links, interrupts, strict=True))


def _request(interrupt: Interrupt) -> mcp_types.ElicitRequest:
    from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitRequestURLParams

    message, link = agent_calls.question_of(interrupt), agent_calls.link_of(interrupt)
    if link is not None:
        return ElicitRequest(params=ElicitRequestURLParams(message=message, url=link, elicitation_id=interrupt.id))
    schema = agent_calls.form_of(interrupt) or {}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _result(thread: str, answer: str, *, failed: bool) -> mcp_types.CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(
        content=[TextContent(type="text", text=answer)],
        structured_content={"answer": answer, "conversation": thread},
        is_error=failed,
    )


def mcp_server_routes(server: Server) -> list[BaseRoute]:
    return [Route("/mcp", McpEndpoint(server), methods=["GET", "POST", "DELETE"])]
