"""OpenAI's transcription: the form's fields besides its file, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from adapters.body import notes_of_request, wrong
from adapters.request_fields import NUMBER, STRING, Field, accepted, honoured, one_of, refused
from adapters.sse import json_bytes

LONGEST_PROMPT = 2000
"""Characters; a model of Whisper's kind reads the last 224 tokens."""
FIELDS: dict[str, Field] = {
    "file": honoured("the recording: WAV, MP3, FLAC, Ogg, WebM, MP4 or AAC", STRING),
    "model": honoured("the transcriber's name", STRING),
    "language": honoured("ISO 639-1; the model detects it if absent", STRING),
    "prompt": honoured("words that the model may expect", STRING),
    "temperature": honoured("0 to 1; 0 takes the likeliest tokens", NUMBER),
    "response_format": honoured("`json` or `text`", one_of("json", "text")),
    "stream": refused("the text is sent when it is complete", neutral=(False,)),
    "include": refused("there are no log probabilities of transcripts"),
    "timestamp_granularities": refused("there are no timestamps of words and segments"),
    "chunking_strategy": accepted("long recordings are read in windows of 30 seconds"),
    "keywords": refused("the prompt may have them"),
    "languages": refused("language names one"),
    "known_speaker_names": refused("speakers are not distinguished"),
    "known_speaker_references": refused("speakers are not distinguished"),
    "user": accepted("recordings are not kept"),
}


class TranscriptionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """language: an ISO 639-1 code, "" to let the model detect it. prompt: words that the model may expect. temperature:
    0 for the likeliest tokens."""

    model: str | None = None
    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    response_format: Literal["json", "text"] = "json"


def read_form(fields: Mapping[str, str]) -> TranscriptionQuery:
    """Read the form's fields besides the file. Raises RequestError."""
    for name, value in fields.items():
        name = name.removesuffix("[]")
        field = FIELDS.get(name)
        if field is None or name == "file":
            notes_of_request().ignore(name)
        elif field.status == "refused" and value.lower() != "false":
            raise wrong(name, f"is not supported: {field.note}")
    if fields.get("response_format", "json") not in ("json", "text"):
        raise wrong("response_format", "must be json or text")
    if len(fields.get("prompt", "")) > LONGEST_PROMPT:
        raise wrong("prompt", f"must have at most {LONGEST_PROMPT} characters")
    try:
        temperature = float(fields.get("temperature", "0"))
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= 1:
        raise wrong("temperature", "must be a number from 0 to 1")
    return TranscriptionQuery(
        model=fields.get("model") or None,
        language=fields.get("language", "").lower(),
        prompt=fields.get("prompt", ""),
        temperature=temperature,
        response_format="text" if fields.get("response_format") == "text" else "json",
    )


def transcript_body(text: str, seconds: float, query: TranscriptionQuery) -> bytes:
    if query.response_format == "text":
        return f"{text}\n".encode()
    return json_bytes({"text": text, "usage": {"type": "duration", "seconds": round(seconds, 3)}})
