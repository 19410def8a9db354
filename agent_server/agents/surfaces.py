"""A2UI surfaces within a run: `render_a2ui` for the model, and what any tool returns, shown as activities.

Every event of the run passes through `Surfaces.emit` on its way out, so that a surface is painted between the pieces of
the call that writes it. An activity is kept with the thread when its call has a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
from agent_server.agents.generative_ui.streamed_surface import Content, Painting
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_context import ToolContext
from agent_server.models.prompting.schemas import problems_of
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
    """The catalog of the page that asks; None if it shows no surfaces."""
    props = input.forwarded_props
    found = catalog_in(input.context or ()) or renderer_catalog(props)
    if found is None:
        if not (isinstance(props, dict) and props.get(CATALOG_AVAILABLE) is True):
            return None
        found = Catalog()
    return msgspec.structs.replace(found, id=settings.catalog_id) if settings.catalog_id else found


class _ShownSurface(msgspec.Struct, kw_only=True):
    """One activity: its id, what it holds, and how many calls were made for it."""

    id: str
    content: Content
    attempts: int = 1


class Surfaces:
    """One run's surfaces. emit: where its events go. catalog: the page's; None where the model is offered no
    `render_a2ui`, and surfaces of tools name the basic catalog. mirrored: the page declares a sandbox of its own.
    version: of A2UI, that the page takes."""

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
        self._paintings: dict[str, Painting] = {}
        self._shown: dict[str, _ShownSurface] = {}
        """By the calls that are being answered."""
        self._failed: dict[str, _ShownSurface] = {}
        """What the model may try again, by the call that failed."""

    def emit(self, event: Event) -> None:
        """Send an event on, and what it paints behind it."""
        if isinstance(event, TextMessageContent | ReasoningMessageContent):  # one a token, and nothing to paint
            self._emit(event)
            return
        if isinstance(event, ToolCallStart) and event.tool_call_name == SANDBOX and self._mirrored:
            # A call of the page's own sandbox begins.
            mirror = self._mirrors[event.tool_call_id] = Mirror()
            self._emit(
                ActivitySnapshot(
                    message_id=f"{event.tool_call_id}-activity",
                    activity_type=open_generative_ui.ACTIVITY,
                    content=dict(mirror.content),
                )
            )
        self._emit(event)
        if self._mirrors and isinstance(event, ToolCallArgs | ToolCallEnd):
            self._follow_mirror(event)
        if isinstance(event, ToolCallArgs):
            if (painting := self._paintings.get(event.tool_call_id)) is not None:
                self._show(event.tool_call_id, painting.feed(event.delta))
        elif isinstance(event, ToolCallStart):
            if event.tool_call_name == RENDER and self.catalog is not None and (event.subagent_run_id is None):
                self._begin(event.tool_call_id, self.catalog)
        elif isinstance(event, ToolCallResult):
            self._answered(event)

    def _follow_mirror(self, event: ToolCallArgs | ToolCallEnd) -> None:
        mirror = self._mirrors.get(event.tool_call_id)
        if mirror is None:
            return
        patch = mirror.feed(event.delta) if isinstance(event, ToolCallArgs) else mirror.finish()
        if patch:
            id = f"{event.tool_call_id}-activity"
            self._emit(ActivityDelta(message_id=id, activity_type=open_generative_ui.ACTIVITY, patch=patch))

    def told(self, context: Sequence[Context]) -> Sequence[Context]:
        """What of the client's context the model is told: not the catalog, if a tool declares it."""
        return context if self.catalog is None else [each for each in context if not is_catalog(each)]

    def callee(self) -> RenderCallee:
        assert self.catalog is not None
        return RenderCallee(self)

    def rendered(self, call_id: str, arguments: Mapping[str, object], catalog: Catalog) -> CallResult:
        """The answer to a whole call: that it is shown, or what is wrong with it."""
        faults = faults_of(arguments, catalog)
        shown = self._shown.get(call_id)
        if not faults:
            painting = Painting(catalog)
            self._show(call_id, painting.feed(json.dumps(arguments)))
            return CallResult(content=RENDERED)
        attempt = shown.attempts if shown is not None else 1
        self._refuse(call_id, faults)
        listed = "; ".join(f"{each['path']}: {each['message']}" for each in faults[:SHOWN_FAULTS])
        if attempt >= self._attempts:
            return failure(f"The surface is invalid: {listed}. Do not try again; answer in words.")
        return failure(
            f"The surface is invalid and was not shown: {listed}. Call {RENDER} again with all of it, mended."
        )

    def close(self) -> None:
        """The run ends: what is still being made has failed."""
        for call_id in list(self._shown):
            shown = self._shown.pop(call_id)
            if "status" in shown.content:
                self._tell(shown, {"status": "failed", "error": UNFINISHED, "attempts": shown.attempts})
            self._keep(call_id, shown)
        for call_id, shown in self._failed.items():
            self._tell(shown, {"status": "failed", "error": UNFINISHED, "attempts": shown.attempts})
            self._keep(call_id, shown)
        self._failed.clear()
        for call_id, mirror in self._mirrors.items():
            kept = ActivityMessage(
                id=f"{call_id}-activity",
                activity_type=open_generative_ui.ACTIVITY,
                content={**mirror.content, "generating": False},
            )
            self._conversation.add_activity(call_id, kept)
        self._mirrors.clear()

    def _begin(self, call_id: str, catalog: Catalog) -> None:
        """A call for a new surface, or the next one for a surface whose last call was invalid."""
        self._paintings[call_id] = Painting(catalog)
        if self._failed:
            shown = self._failed.pop(next(iter(self._failed)))
            shown.attempts += 1
            self._shown[call_id] = shown
            return
        self._shown[call_id] = _ShownSurface(id=f"{ACTIVITY}-{call_id}", content={})
        self._show(call_id, {"status": "building"})

    def _show(self, call_id: str, content: Content | None) -> None:
        shown = self._shown.get(call_id)
        # What an activity holds, as the page's version has it.
        operations = None if content is None else content.get(OPERATIONS)
        content = content if not isinstance(operations, list) else {OPERATIONS: in_version(operations, self._version)}
        if shown is None or content is None or content == shown.content:
            return
        if content.get("status") != "building" or shown.attempts == 1:
            self._tell(shown, content)

    def _refuse(self, call_id: str, faults: list[dict[str, str]]) -> None:
        shown = self._shown.get(call_id)
        if shown is None:
            return
        told = faults[:SHOWN_FAULTS]
        if shown.attempts >= self._attempts:
            error = told[0]["message"]
            self._tell(shown, {"status": "failed", "error": error, "errors": told, "attempts": shown.attempts})
            return
        self._tell(
            shown,
            {"status": "retrying", "attempt": shown.attempts + 1, "maxAttempts": self._attempts, "errors": told},
        )

    def _tell(self, shown: _ShownSurface, content: Content) -> None:
        shown.content = content
        self._emit(ActivitySnapshot(message_id=shown.id, activity_type=ACTIVITY, content=content, replace=True))

    def _answered(self, event: ToolCallResult) -> None:
        call_id = event.tool_call_id
        self._paintings.pop(call_id, None)
        shown = self._shown.pop(call_id, None)
        if shown is None:
            self._show_operations(event)
            return
        if "status" in shown.content and shown.content["status"] == "building":  # arguments that are no JSON
            fault = {"code": "invalid_arguments", "path": "arguments", "message": _text(event)[:300]}
            self._shown[call_id] = shown
            self._refuse(call_id, [fault])
            del self._shown[call_id]
        if shown.content.get("status") == "retrying":
            self._failed[call_id] = shown
        self._keep(call_id, shown)

    def _show_operations(self, event: ToolCallResult) -> None:
        """Surfaces that a tool returned."""
        basic = NEWER_BASIC if self._version == NEWER else BASIC
        surfaces = operations_in(event.content, self.catalog.id if self.catalog is not None else basic)
        for surface, operations in surfaces.items():
            name = event.tool_call_id if len(surfaces) == 1 else f"{surface}-{event.tool_call_id}"
            shown = _ShownSurface(id=f"{ACTIVITY}-{name}", content={})
            self._tell(shown, {OPERATIONS: in_version(operations, self._version)})
            self._keep(event.tool_call_id, shown)

    def _keep(self, call_id: str, shown: _ShownSurface) -> None:
        kept = ActivityMessage(id=shown.id, activity_type=ACTIVITY, content=shown.content)
        self._conversation.add_activity(call_id, kept)


class RenderCallee:
    """Answers calls of `render_a2ui`. It checks the arguments itself, since the model is told more of a surface's
    faults than a schema's."""

    checks = True
    early = False
    place = ""
    at_once: int | None = None
    repeats = True  # it changes nothing but what it shows
    asks: Tool | None = None

    def __init__(self, surfaces: Surfaces) -> None:
        self._surfaces = surfaces

    async def answer(self, arguments: dict[str, Any], context: ToolContext) -> CallResult:
        assert self._surfaces.catalog is not None
        return self._surfaces.rendered(context.tool_call_id, arguments, self._surfaces.catalog)


def faults_of(arguments: Mapping[str, object], catalog: Catalog) -> list[dict[str, str]]:
    """What is wrong with a whole call; [] if nothing is."""
    surface, data = arguments.get("surfaceId"), arguments.get("data", {})
    if not isinstance(surface, str) or not surface:
        return [{"code": "no_surface", "path": "surfaceId", "message": "surfaceId must be a name"}]
    if not isinstance(data, dict):
        return [{"code": "no_data", "path": "data", "message": "data must be an object"}]
    components = arguments.get("components")
    if faults := catalog.faults(components, data, whole=True):
        return faults
    return [] if not isinstance(components, list) else _misfits(components, catalog)


def _misfits(components: list[dict[str, Any]], catalog: Catalog) -> list[dict[str, str]]:
    """Properties that are not what their component's schema says."""
    faults: list[dict[str, str]] = []
    for index, component in enumerate(components):
        schema = catalog.components.get(component["component"])
        if schema is None:
            continue
        invalid = problems_of(json.dumps(component), json.dumps({**schema, "$defs": catalog.shared}))
        for path, message in () if invalid is None else invalid.problems[:2]:
            where = f"components[{index}]{path.replace('/', '.')}"
            faults.append({"code": "invalid_property", "path": where, "message": message})
    return faults


def _text(event: ToolCallResult) -> str:
    return event.content if isinstance(event.content, str) else "The arguments are invalid."
