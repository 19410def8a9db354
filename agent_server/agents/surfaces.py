"""A2UI surfaces within a run: from `render_a2ui` calls of the model and from tools' results, shown as activities.

Every event of the run passes through `Surfaces.emit` on its way out, so that a surface is rendered between the deltas
of the call that writes it. An activity is stored with the thread when its call has a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import msgspec
from ag_ui.core import ActivityMessage, Context, RunAgentInput

from agent_server.agents.a2ui_settings import A2ui
from agent_server.agents.conversation import Conversation
from agent_server.agents.generative_ui import open_generative_ui
from agent_server.agents.generative_ui.catalog import BASIC, RENDER, Catalog, catalog_in, is_catalog
from agent_server.agents.generative_ui.open_generative_ui import SANDBOX, Mirror
from agent_server.agents.generative_ui.operations import (
    ACTIVITY,
    NEWER,
    NEWER_BASIC,
    OPERATIONS,
    Version,
    in_version,
    operations_in,
    renderer_catalog,
)
from agent_server.agents.generative_ui.streamed_surface import Content, StreamedSurface
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_context import ToolContext
from agent_server.models.prompting.validation import validate
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Event,
    ReasoningMessageContent,
    TextMessageContent,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

SHOWN_FAULTS = 8
RENDERED = '{"status":"rendered"}'
UNFINISHED = "The surface was not finished."
CATALOG_AVAILABLE = "a2uiCatalogAvailable"


def page_catalog(input: RunAgentInput, settings: A2ui) -> Catalog | None:
    """The catalog of the requesting page; None if it cannot show surfaces."""
    props = input.forwarded_props
    catalog = catalog_in(input.context or ()) or renderer_catalog(props)
    if catalog is None:
        if not (isinstance(props, dict) and props.get(CATALOG_AVAILABLE) is True):
            return None
        catalog = Catalog()
    return msgspec.structs.replace(catalog, id=settings.catalog_id) if settings.catalog_id else catalog


class _SurfaceActivity(msgspec.Struct, kw_only=True):
    """One activity: its id, its content, and how many calls were made for it."""

    id: str
    content: Content
    attempts: int = 1


class Surfaces:
    """One run's surfaces.

    emit: sends an event. catalog: the page's; None if the model is not offered `render_a2ui`, and surfaces of tools
    then use the basic catalog. attempts: how many calls the model has for one surface. mirrored: the page declares a
    sandbox of its own. version: the A2UI version that the page supports.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        conversation: Conversation,
        catalog: Catalog | None,
        attempts: int,
        *,
        mirrored: bool = False,
        version: Version = "v0.9",
    ) -> None:
        self.catalog = catalog
        self._version = version
        self._emit = emit
        self._conversation = conversation
        self._attempts = attempts
        self._mirrored = mirrored
        self._mirrors: dict[str, Mirror] = {}
        self._paintings: dict[str, StreamedSurface] = {}
        self._active: dict[str, _SurfaceActivity] = {}
        """By the id of the call that is being answered."""
        self._failed: dict[str, _SurfaceActivity] = {}
        """Surfaces that the model may retry, by the id of the failed call."""

    def emit(self, event: Event) -> None:
        """Send an event, followed by the updates of surfaces that it causes."""
        # One per token, and without effect on surfaces.
        if isinstance(event, TextMessageContent | ReasoningMessageContent):
            self._emit(event)
            return
        if isinstance(event, ToolCallStart) and event.tool_call_name == SANDBOX and self._mirrored:
            # A call of the page's own sandbox starts.
            mirror = self._mirrors[event.tool_call_id] = Mirror()
            self._emit(
                ActivitySnapshot(
                    message_id=f"{event.tool_call_id}-activity",
                    activity_type=open_generative_ui.ACTIVITY,
                    content=dict(mirror.content),
                )
            )
        self._emit(event)
        if self._mirrors and isinstance(event, ToolCallArgs | ToolCallEnd) and event.tool_call_id in self._mirrors:
            mirror = self._mirrors[event.tool_call_id]
            patch = mirror.feed(event.delta) if isinstance(event, ToolCallArgs) else mirror.finish()
            if patch:
                id = f"{event.tool_call_id}-activity"
                self._emit(ActivityDelta(message_id=id, activity_type=open_generative_ui.ACTIVITY, patch=patch))
        if isinstance(event, ToolCallArgs):
            if (painting := self._paintings.get(event.tool_call_id)) is not None:
                self._show(event.tool_call_id, painting.feed(event.delta))
        elif isinstance(event, ToolCallStart):
            if event.tool_call_name == RENDER and self.catalog is not None and (event.subagent_run_id is None):
                # A new surface, or the next attempt at one whose last call was invalid.
                call_id = event.tool_call_id
                self._paintings[call_id] = StreamedSurface(self.catalog)
                if self._failed:
                    surface = self._failed.pop(next(iter(self._failed)))
                    surface.attempts += 1
                    self._active[call_id] = surface
                else:
                    self._active[call_id] = _SurfaceActivity(id=f"{ACTIVITY}-{call_id}", content={})
                    self._show(call_id, {"status": "building"})
        elif isinstance(event, ToolCallResult):
            self._handle_result(event)

    def prompt_context(self, context: Sequence[Context]) -> Sequence[Context]:
        """The entries of the client's context for the prompt: without the catalog, if a tool declares it."""
        return context if self.catalog is None else [each for each in context if not is_catalog(each)]

    def callee(self) -> RenderCallee:
        assert self.catalog is not None
        return RenderCallee(self)

    async def render(self, call_id: str, arguments: Mapping[str, object], catalog: Catalog) -> CallResult:
        """Show the surface of a complete call. Returns the call's result: success, or the errors in its arguments."""
        faults = await faults_of(arguments, catalog)
        surface = self._active.get(call_id)
        if not faults:
            painting = StreamedSurface(catalog)
            self._show(call_id, painting.feed(json.dumps(arguments)))
            return CallResult(content=RENDERED)
        attempt = surface.attempts if surface is not None else 1
        self._report_faults(call_id, faults)
        error_list = "; ".join(f"{each['path']}: {each['message']}" for each in faults[:SHOWN_FAULTS])
        if attempt >= self._attempts:
            return failure(f"The surface is invalid: {error_list}. Do not try again; answer with text.")
        return failure(
            f"The surface is invalid and was not shown: {error_list}. "
            f"Call {RENDER} again with the complete, corrected surface."
        )

    def close(self) -> None:
        """Mark unfinished surfaces as failed at the end of the run, and store all activities."""
        for call_id in list(self._active):
            surface = self._active.pop(call_id)
            if "status" in surface.content:
                self._emit_activity(surface, {"status": "failed", "error": UNFINISHED, "attempts": surface.attempts})
            self._store_activity(call_id, surface)
        for call_id, surface in self._failed.items():
            self._emit_activity(surface, {"status": "failed", "error": UNFINISHED, "attempts": surface.attempts})
            self._store_activity(call_id, surface)
        self._failed.clear()
        for call_id, mirror in self._mirrors.items():
            activity = ActivityMessage(
                id=f"{call_id}-activity",
                activity_type=open_generative_ui.ACTIVITY,
                content={**mirror.content, "generating": False},
            )
            self._conversation.add_activity(call_id, activity)
        self._mirrors.clear()

    def _show(self, call_id: str, content: Content | None) -> None:
        surface = self._active.get(call_id)
        # Convert the operations to the page's A2UI version.
        operations = None if content is None else content.get(OPERATIONS)
        content = content if not isinstance(operations, list) else {OPERATIONS: in_version(operations, self._version)}
        if surface is None or content is None or content == surface.content:
            return
        if content.get("status") != "building" or surface.attempts == 1:
            self._emit_activity(surface, content)

    def _report_faults(self, call_id: str, faults: list[dict[str, str]]) -> None:
        surface = self._active.get(call_id)
        if surface is None:
            return
        reported = faults[:SHOWN_FAULTS]
        if surface.attempts >= self._attempts:
            error = reported[0]["message"]
            self._emit_activity(
                surface, {"status": "failed", "error": error, "errors": reported, "attempts": surface.attempts}
            )
            return
        self._emit_activity(
            surface,
            {"status": "retrying", "attempt": surface.attempts + 1, "maxAttempts": self._attempts, "errors": reported},
        )

    def _emit_activity(self, surface: _SurfaceActivity, content: Content) -> None:
        surface.content = content
        self._emit(ActivitySnapshot(message_id=surface.id, activity_type=ACTIVITY, content=content, replace=True))

    def _handle_result(self, event: ToolCallResult) -> None:
        call_id = event.tool_call_id
        self._paintings.pop(call_id, None)
        surface = self._active.pop(call_id, None)
        if surface is None:
            # Another tool's result, which may contain surfaces.
            basic = NEWER_BASIC if self._version == NEWER else BASIC
            surfaces = operations_in(event.content, self.catalog.id if self.catalog is not None else basic)
            for surface_id, operations in surfaces.items():
                name = call_id if len(surfaces) == 1 else f"{surface_id}-{call_id}"
                surface = _SurfaceActivity(id=f"{ACTIVITY}-{name}", content={})
                self._emit_activity(surface, {OPERATIONS: in_version(operations, self._version)})
                self._store_activity(call_id, surface)
            return
        if "status" in surface.content and surface.content["status"] == "building":  # the arguments are not JSON
            message = event.content if isinstance(event.content, str) else "The arguments are invalid."
            fault = {"code": "invalid_arguments", "path": "arguments", "message": message[:300]}
            self._active[call_id] = surface
            self._report_faults(call_id, [fault])
            del self._active[call_id]
        if surface.content.get("status") == "retrying":
            self._failed[call_id] = surface
        self._store_activity(call_id, surface)

    def _store_activity(self, call_id: str, surface: _SurfaceActivity) -> None:
        activity = ActivityMessage(id=surface.id, activity_type=ACTIVITY, content=surface.content)
        self._conversation.add_activity(call_id, activity)


class RenderCallee:
    """Answers calls of `render_a2ui`. It validates the arguments itself, because its errors are more detailed than
    those of a schema."""

    checks = True
    early = False
    concurrency_key = ""
    at_once: int | None = None
    repeatable = True  # it has no effect but what it shows
    retry_approval: Tool | None = None

    def __init__(self, surfaces: Surfaces) -> None:
        self._surfaces = surfaces

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        assert self._surfaces.catalog is not None
        return await self._surfaces.render(context.tool_call_id, arguments, self._surfaces.catalog)


async def faults_of(arguments: Mapping[str, object], catalog: Catalog) -> list[dict[str, str]]:
    """The errors in the arguments of a complete call; [] if there are none."""
    surface_id, data = arguments.get("surfaceId"), arguments.get("data", {})
    if not isinstance(surface_id, str) or not surface_id:
        return [{"code": "no_surface", "path": "surfaceId", "message": "surfaceId must be a name"}]
    if not isinstance(data, dict):
        return [{"code": "no_data", "path": "data", "message": "data must be an object"}]
    components = arguments.get("components")
    if faults := catalog.faults(components, data, whole=True):
        return faults
    # The components are known; check their properties against the components' schemas.
    for index, component in enumerate(components if isinstance(components, list) else ()):
        schema = catalog.components.get(component["component"])
        if schema is None:
            continue
        invalid = await validate(json.dumps(component), {**schema, "$defs": catalog.shared})
        for path, message in () if invalid is None else invalid.problems[:2]:
            where = f"components[{index}]{path.replace('/', '.')}"
            faults.append({"code": "invalid_property", "path": where, "message": message})
    return faults
