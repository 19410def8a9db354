"""`/v1/audio/transcriptions` and CopilotKit's microphone: recordings to text, where the server has a model for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import copilotkit, openai_transcriptions
from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError, SpeechOptions
from agent_server.http.routes.answering import chosen_beside
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_body
from agent_server.media.fetching import from_base64

if TYPE_CHECKING:
    from agent_server.engines.transcription import Transcriber
    from agent_server.http.server import Server

NO_MODEL = "This server has no model that transcribes; start it with --transcriber FOLDER."
MAX_FIELDS = 32
FIELD_BYTES = 64 * 1024
"""Of a field that is no file, and of all that stands around the file."""


def routes(server: Server) -> list[BaseRoute]:
    limit = server.settings.media.bytes + FIELD_BYTES

    async def transcribe(request: Request) -> Response:
        async with read_form(request, limit) as form:
            fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
            query = openai_transcriptions.read_form(fields)
            found = _chosen(server, query.model)
            data = await _file(form, "file")
        options = SpeechOptions(language=query.language, prompt=query.prompt, temperature=query.temperature)
        made = await found.transcribe(data, options)
        kind = "text/plain" if query.response_format == "text" else "application/json"
        return Response(openai_transcriptions.transcript_body(made.text, made.seconds, query), media_type=kind)

    async def speak(request: Request) -> Response:
        async def recording() -> bytes:
            async with read_form(request, limit) as form:
                return await _file(form, "audio")

        return await _written_down(server, recording)

    return [
        Route("/v1/audio/transcriptions", guarded(transcribe), methods=["POST"]),
        Route("/copilotkit/transcribe", guarded(speak), methods=["POST"]),
    ]


async def spoken(server: Server, wire: object) -> Response:
    """The same for the single endpoint, whose body has the recording in base64."""

    async def recording() -> bytes:
        return from_base64(copilotkit.recording_of(wire), server.settings.media)

    return await _written_down(server, recording)


async def _written_down(server: Server, recording: Callable[[], Awaitable[bytes]]) -> Response:
    """CopilotKit's own form of refusals: its page shows what it knows of them."""
    try:
        found = _chosen(server, None)
        made = await found.transcribe(await recording(), SpeechOptions())
    except (RequestError, EngineError) as error:
        configured = server.transcriber is not None
        status, body = copilotkit.transcription_refused(error.kind, error.message, configured=configured)
        return json_response(body, status)
    return json_response({"text": made.text})


@contextlib.asynccontextmanager
async def read_form(request: Request, limit: int) -> AsyncIterator[FormData]:
    """A form with one file, of at most `limit` bytes. Raises RequestError."""
    body = await read_body(request, limit)

    async def stream() -> AsyncIterator[bytes]:
        yield body

    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise RequestError("unsupported_media_type", "Send the recording as multipart/form-data.")
    parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=MAX_FIELDS, max_part_size=FIELD_BYTES)  # type: ignore[arg-type, unused-ignore]
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestError("invalid_request", f"The form cannot be read: {error.message}") from None
    except (KeyError, UnicodeDecodeError, ValueError):  # a head of a part, or the boundary, of a wrong form
        raise RequestError("invalid_request", "The form cannot be read.") from None
    try:
        yield form
    finally:
        await form.close()


async def _file(form: FormData, name: str) -> bytes:
    """A form's file. Raises RequestError."""
    found = form.get(name)
    data = await found.read() if isinstance(found, UploadFile) else b""
    if not data:
        raise RequestError("invalid_request", f"{name} is required, and is a file that is not empty.", param=name)
    return data


def _chosen(server: Server, model: str | None) -> Transcriber:
    return chosen_beside(server, server.transcriber, model, NO_MODEL, "does not transcribe")
