"""Resources and prompts of MCP servers.

A model reads resources with the tool `read_resource_NAME`, which is offered for each server that has resources. People
attach resources and use prompts over HTTP, which returns them as AG-UI content and messages for a run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec
from ag_ui.core import Tool as ToolDeclaration
from mcp import MCPError
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    Prompt,
    PromptReference,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from adapters.errors import RequestError
from agent_server.agents.mcp.consent import ConsentRequired
from agent_server.agents.mcp.elicitation import Elicitation, consent_to, result_for
from agent_server.agents.mcp.errors import McpUnavailable, reason_of
from agent_server.agents.mcp.listing import Listing
from agent_server.agents.mcp.sessions import McpConnection
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool, capped, result_content
from agent_server.agents.tool_context import ToolContext
from agent_server.ids import new_id
from agent_server.settings import ToolLimits

T = TypeVar("T")
NAMED_RESOURCES, NAMED_CHARACTERS = 10, 200
"""How many resources the reading tool's description names, and the characters of each."""
LISTED_CHARACTERS = 500
"""Characters of one resource in a list for a model."""
CONTENT_BYTES = 4 * 2**20
"""The largest resource or prompt that is sent to a client."""
COMPLETION_SECONDS = 5.0
"""The most time for suggested values: a person types on meanwhile."""
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


# ---- content --------------------------------------------------------------------------------------------------------


def content_of(result: CallToolResult) -> str | list[object]:
    """Return a result as the content of TOOL_CALL_RESULT: text if it is all text, and otherwise parts."""
    if not result.content and result.structured_content is not None:
        return result_content(result.structured_content)
    return joined([part_of(block) for block in result.content])


def joined(parts: Sequence[dict[str, object]]) -> str | list[object]:
    """Return content as text if it is all text, and otherwise its parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return list(parts)


def part_of(block: ContentBlock) -> dict[str, object]:
    """Convert a block of MCP content to a part of AG-UI content."""
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageContent | AudioContent):
        return _media(block.type, block.data, block.mime_type)
    if isinstance(block, EmbeddedResource):
        return resource_part(block.resource)
    return {"type": "text", "text": f"[resource {block.uri}]"}


def resource_part(contents: TextResourceContents | BlobResourceContents) -> dict[str, object]:
    """Convert a resource's contents to a part of AG-UI content. Other binary types become a sentence."""
    if isinstance(contents, TextResourceContents):
        return {"type": "text", "text": contents.text}
    kind = (contents.mime_type or "").partition("/")[0]
    if kind in ("image", "audio"):
        return _media(kind, contents.blob, contents.mime_type or "")
    size = len(contents.blob) * 3 // 4
    return {
        "type": "text",
        "text": f"[resource {contents.uri}: {size} bytes of {contents.mime_type or 'unknown type'}]",
    }


def _media(kind: str, data: str, mime_type: str) -> dict[str, object]:
    return {"type": kind, "source": {"type": "data", "value": data, "mimeType": mime_type}}


# ---- for the model --------------------------------------------------------------------------------------------------


def reader_name(server: str) -> str:
    """Return the name of a server's reading tool in its settings, without the prefix."""
    return f"read_resource_{NOT_IN_A_NAME.sub('_', server)}"


class ResourceReader:
    """The tool with which the model reads and lists a server's resources."""

    checks = False
    early = True
    at_once: int | None = None
    repeatable = True
    retry_approval: Tool | None = None

    def __init__(self, connection: McpConnection, listing: Listing, limits: ToolLimits) -> None:
        self._connection = connection
        server = connection.server
        self._seconds = server.time_limit or limits.seconds
        self._characters = limits.characters
        self.concurrency_key = f"{server.name} resources"
        named = [
            f"{each.uri} ({_short_description(each, NAMED_CHARACTERS)})" for each in listing.resources[:NAMED_RESOURCES]
        ]
        named += [f"{each.uri_template} (template)" for each in listing.templates[:NAMED_RESOURCES]]
        self.declaration = ToolDeclaration(
            name=server.prefix + reader_name(server.name),
            description=(
                f"Read a resource of {server.name} by its URI; without one, list its resources. There are: "
                f"{'; '.join(named)}{'; more' if len(listing.resources) > NAMED_RESOURCES else ''}."
            ),
            parameters={
                "type": "object",
                "properties": {"uri": {"type": "string", "description": "The URI of the resource."}},
            },
        )

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        server, uri = self._connection.server, arguments.get("uri") or ""
        if not isinstance(uri, str):
            return failure(f"Invalid arguments: uri: {uri!r} is not a URI.")
        if context.continuation is not None and not signed_in(context):
            return failure(f"The user did not sign in to {server.name}.")
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                if not uri:
                    return CallResult(
                        content=capped(resource_list_text(await self._connection.tools()), self._characters)
                    )
                contents = (await self._connection.read(uri)).contents
        except TimeoutError:
            late = f"Reading {uri} took longer than {self._seconds:g} s."
            return failure(late if deadline.expired() else f"The MCP server {server.name} did not answer: timeout.")
        except ConsentRequired as consent:
            return CallResult(question=consent_to(server.name, consent.url).question(server.name))
        except MCPError as error:
            return failure(f"{uri} was refused: {error.error.message[:500]}")
        except McpUnavailable as error:
            return failure(f"The MCP server {server.name} {error}.")
        except Exception as error:
            return failure(f"The MCP server {server.name} did not answer: {reason_of(error)}.")
        return CallResult(content=capped(joined([resource_part(each) for each in contents]), self._characters))


def signed_in(context: ToolContext) -> bool:
    """Whether the person who was asked to sign in did so."""
    elicitation = msgspec.convert(context.continuation, Elicitation)
    key = elicitation.open_key
    assert key is not None
    elicitation.answer(key, result_for(context.answers[-1], elicitation.params(key)))
    return not elicitation.refused


def resource_list_text(listing: Listing) -> str:
    """Return a server's resources, one per line."""
    lines = [f"{each.uri}: {_short_description(each, LISTED_CHARACTERS)}" for each in listing.resources]
    lines += [
        f"{each.uri_template} (template): {_short_description(each, LISTED_CHARACTERS)}" for each in listing.templates
    ]
    return "\n".join(lines) or "There are no resources."


def _short_description(each: Resource | ResourceTemplate, most: int) -> str:
    name, description = each.title or each.name, " ".join((each.description or "").split())
    return f"{name}: {description}"[:most] if description else name[:most]


# ---- for people -----------------------------------------------------------------------------------------------------


def prompt_object(prompt: Prompt) -> dict[str, object]:
    """Return a prompt in the form for clients, with its arguments."""
    arguments = [
        {"name": each.name, "title": each.title, "description": each.description, "required": each.required is True}
        for each in prompt.arguments or ()
    ]
    return {"name": prompt.name, "title": prompt.title, "description": prompt.description, "arguments": arguments}


def resource_object(resource: Resource) -> dict[str, object]:
    """Return a resource in the form for clients."""
    return {
        "uri": resource.uri, "name": resource.name, "title": resource.title, "description": resource.description,
        "mimeType": resource.mime_type, "size": resource.size,
    }  # fmt: skip


def template_object(template: ResourceTemplate) -> dict[str, object]:
    """Return a template of resources (RFC 6570) in the form for clients, without variables if it is unreadable."""
    try:
        parsed = UriTemplate.parse(template.uri_template)
        names, optional = parsed.variable_names, parsed.query_variable_names
    except InvalidUriTemplate:
        names, optional = [], frozenset()
    return {
        "uriTemplate": template.uri_template, "name": template.name, "title": template.title,
        "description": template.description, "mimeType": template.mime_type,
        "variables": [{"name": each, "required": each not in optional} for each in names],
    }  # fmt: skip


async def messages_of_prompt(
    connection: McpConnection, name: str, arguments: dict[str, str], seconds: float
) -> dict[str, object]:
    """Fill in a prompt and return it as AG-UI messages. Raises RequestError."""
    seconds = connection.server.time_limit or seconds
    prompt = _prompt_named(name, connection, await _within(connection, connection.tools(), seconds))
    missing = [each.name for each in prompt.arguments or () if each.required and not arguments.get(each.name)]
    if missing:
        raise RequestError("invalid_request", f"The prompt {name} needs {', '.join(missing)}.", "arguments")
    result: GetPromptResult = await _within(connection, connection.prompt(name, arguments), seconds)
    messages: list[dict[str, object]] = []
    for each in result.messages:
        content = joined([part_of(each.content)])
        if each.role == "assistant" and not isinstance(content, str):
            content = f"[{each.content.type}]"  # an assistant's content is text in AG-UI
        last = messages[-1] if messages else None
        # Join consecutive messages of one role, since chat templates expect the roles to alternate.
        if (
            last is not None
            and last["role"] == each.role
            and isinstance(last["content"], str)
            and isinstance(content, str)
        ):
            last["content"] = f"{last['content']}\n\n{content}"
        else:
            messages.append({"id": new_id("msg"), "role": each.role, "content": content})
    return _check_size({"description": result.description, "messages": messages})


async def content_of_resource(
    connection: McpConnection, uri: str, seconds: float, arguments: dict[str, str] | None = None
) -> dict[str, object]:
    """Return a resource as parts of a message's content. arguments: the variables of a `uri` that is a template. Raises
    RequestError."""
    _check_readable(connection)
    if arguments:
        try:
            template = UriTemplate.parse(uri)
        except InvalidUriTemplate as error:
            raise RequestError("invalid_request", f"This template cannot be filled in: {error}", "uri") from None
        missing = [
            each
            for each in template.variable_names
            if each not in template.query_variable_names and not arguments.get(each)
        ]
        if missing:
            raise RequestError("invalid_request", f"The template needs {', '.join(missing)}.", "arguments")
        uri = template.expand(arguments)
    result = await _within(connection, connection.read(uri), connection.server.time_limit or seconds)
    return _check_size({"uri": uri, "content": [resource_part(each) for each in result.contents]})


async def completions_for(
    connection: McpConnection,
    ref: PromptReference | ResourceTemplateReference,
    argument: str,
    value: str,
    arguments: dict[str, str],
    seconds: float,
) -> dict[str, object]:
    """Return the values that a server suggests for an argument of a prompt, or for a variable of a resource template.

    value: what was typed so far. arguments: the other arguments that have a value. Raises RequestError.
    """
    name, seconds = connection.server.name, min(connection.server.time_limit or seconds, COMPLETION_SECONDS)
    listing = await _within(connection, connection.tools(), seconds)
    if not listing.completes:
        raise RequestError("not_found", f"The MCP server {name} does not suggest values for arguments.", "server")
    if isinstance(ref, PromptReference):
        if all(each.name != argument for each in _prompt_named(ref.name, connection, listing).arguments or ()):
            raise RequestError("not_found", f"The prompt {ref.name} has no argument {argument!r}.", "argument")
    else:
        _check_readable(connection)
        if all(each.uri_template != ref.uri for each in listing.templates):
            raise RequestError("not_found", f"The MCP server {name} has no template {ref.uri!r}.", "uriTemplate")
    others = {key: each for key, each in arguments.items() if each and key != argument}
    completion = await _within(connection, connection.complete(ref, argument, value, others), seconds)
    return _check_size({"values": completion.values, "total": completion.total, "hasMore": completion.has_more is True})


def _prompt_named(name: str, connection: McpConnection, listing: Listing) -> Prompt:
    prompt = next((each for each in listing.prompts if each.name == name), None)
    if prompt is None:
        raise RequestError("not_found", f"The MCP server {connection.server.name} has no prompt {name!r}.", "name")
    return prompt


def _check_readable(connection: McpConnection) -> None:
    name = connection.server.name
    if not connection.server.offers(reader_name(name)):
        raise RequestError(
            "forbidden", f"The settings of the MCP server {name} do not allow reading its resources.", "uri"
        )


def _check_size(answer: dict[str, object]) -> dict[str, object]:
    if (size := len(msgspec.json.encode(answer))) > CONTENT_BYTES:
        raise RequestError("payload_too_large", f"The content has {size} bytes; the limit is {CONTENT_BYTES}.")
    return answer


async def _within(connection: McpConnection, work: Awaitable[T], seconds: float) -> T:
    """Await a server's answer for so many seconds. Raises RequestError if it refuses or does not answer."""
    name = connection.server.name
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise RequestError("timeout", f"The MCP server {name} did not answer within {seconds:g} s.") from None
    except ConsentRequired:
        raise RequestError("forbidden", f"Sign in to {name} in the conversation first.") from None
    except MCPError as error:
        raise RequestError("invalid_request", f"The MCP server {name} refused: {error.error.message[:500]}") from error
    except McpUnavailable as error:
        raise RequestError("unavailable", f"The MCP server {name} {error}.") from error
    except Exception as error:
        raise RequestError("unavailable", f"The MCP server {name} failed: {reason_of(error)}.") from error
