"""Transcription by a model of Whisper's kind in this process."""

from __future__ import annotations

import importlib.util
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent_server.engine_protocol.protocol import EngineError, SpeechOptions
from agent_server.engines.encoders import HUB_NAME, ThreadedModel
from agent_server.media.decoding import Decoder
from agent_server.model_files import source_name
from agent_server.user import current_user

if TYPE_CHECKING:
    from agent_server.generation.multimodal.transcribing import SpeechModel
    from agent_server.settings import Settings

logger = logging.getLogger("agent_server")
MAX_WAITING = 32
"""Recordings that may wait; more are refused. One tenant may have half of them."""
RATE = 16_000
SAMPLE_BYTES = 2


class Transcript(msgspec.Struct, frozen=True):
    """seconds: of the recording. tokens: of the text."""

    text: str
    seconds: float
    tokens: int


class Transcriber(ThreadedModel["SpeechModel"]):
    """A speech model, which takes one recording after the other."""

    def __init__(self, name: str, load: Callable[[], SpeechModel], decoder: Decoder, longest: int) -> None:
        """longest: seconds of a recording."""

        def load_checked() -> SpeechModel:
            model = load()
            if model.rate != RATE:  # recordings are decoded to that rate
                raise ValueError(f"it hears {model.rate} samples a second, and {RATE} are made here")
            return model

        super().__init__(name, load_checked)
        self._decoder = decoder
        self._longest = longest
        self._waiting: Counter[str] = Counter()

    async def transcribe(self, data: bytes, options: SpeechOptions) -> Transcript:
        """Transcribe a file. Raises EngineError."""
        model, tenant = self.loaded(), current_user.get().tenant
        if self._waiting[tenant] >= MAX_WAITING // 2 or self._waiting.total() >= MAX_WAITING:
            raise EngineError("overloaded", "Too many recordings wait to be transcribed.", retryable=True)
        self._waiting[tenant] += 1
        try:
            samples = await self._decoder.sound(data, self._longest)
            try:
                text, tokens = await self._thread.run(model.transcribe, samples, options)
            except EngineError:
                raise
            except Exception as error:  # a model's code may raise anything: that fails this request, not the server
                logger.exception("transcription failed")
                raise EngineError("internal", f"The transcription failed: {type(error).__name__}.") from error
            return Transcript(text, len(samples) / SAMPLE_BYTES / RATE, tokens)
        finally:
            self._waiting[tenant] -= 1
            self._waiting += Counter()  # without tenants that wait for none

    async def close(self) -> None:
        await self._decoder.close()
        await super().close()


def choose_transcriber(settings: Settings) -> Transcriber | None:
    """Create the backend of `/v1/audio/transcriptions` without loading it; None if the settings name none. Raises
    ValueError with one sentence."""
    source = settings.served.transcriber
    if not source:
        return None
    if not Path(source).is_dir() and not HUB_NAME.fullmatch(source):
        raise ValueError(f"There is no folder {source}. Give a folder with a model of Whisper's kind, or a hub name.")
    if missing := [name for name in ("torch", "transformers", "av") if importlib.util.find_spec(name) is None]:
        raise ValueError(f"Transcription by {source} needs {missing[0]}: pip install 'agent-server[audio]'.")

    def load() -> SpeechModel:
        from agent_server.generation.multimodal.transcribing import SpeechModel

        return SpeechModel.load(source, settings.compute.device, settings.compute.dtype)

    return Transcriber(source_name(source), load, Decoder(settings.media), settings.media.sound_seconds)
