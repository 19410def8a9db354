"""Transcription by a model of Whisper's kind in this process."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent_server.engine_protocol.protocol import EngineError, SpeechOptions
from agent_server.engines.encoders import HUB_NAME
from agent_server.media.decoding import Decoder
from agent_server.model_files import source_name

if TYPE_CHECKING:
    from agent_server.generation.multimodal.transcribing import SpeechModel
    from agent_server.settings import Settings

logger = logging.getLogger("agent_server")
MAX_WAITING = 32
"""Recordings that may wait; more are refused."""
RATE = 16_000
SAMPLE_BYTES = 2


class Transcript(msgspec.Struct, frozen=True):
    """seconds: of the recording. tokens: of the text."""

    text: str
    seconds: float
    tokens: int


class Transcriber:
    """A model in a thread of its own, which takes one recording after the other."""

    def __init__(self, name: str, load: Callable[[], SpeechModel], decoder: Decoder, longest: int) -> None:
        """longest: seconds of a recording."""
        self.name = name
        self._load = load
        self._decoder = decoder
        self._longest = longest
        self._model: SpeechModel | None = None
        self._failure = ""
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transcription")

    async def start(self) -> None:
        """Never raises: `transcribe` tells what is wrong."""
        try:
            model = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
            if model.rate != RATE:
                raise ValueError(f"it hears {model.rate} samples a second, and {RATE} are made here")
            self._model = model
        except Exception as error:  # whatever a file, transformers or a model's code brings
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._failure = f"Cannot load {self.name}: {reason}"
            logger.error("%s", self._failure)

    @property
    def unready(self) -> str:
        """Why nothing can be transcribed yet; "" once it can."""
        if self._model is not None:
            return ""
        return self._failure or f"The model {self.name} is loading."

    async def transcribe(self, data: bytes, options: SpeechOptions) -> Transcript:
        """Transcribe a file. Raises EngineError."""
        if self._model is None:
            raise EngineError("unavailable", self.unready, retryable=not self._failure)
        if self._waiting >= MAX_WAITING:
            raise EngineError("overloaded", "Too many recordings wait to be transcribed.", retryable=True)
        self._waiting += 1
        try:
            samples = await self._decoder.sound(data, self._longest)
            work = partial(self._model.transcribe, samples, options)
            try:
                text, tokens = await asyncio.get_running_loop().run_in_executor(self._thread, work)
            except EngineError:
                raise
            except Exception as error:  # a model's code may raise anything: that fails this request, not the server
                logger.exception("transcription failed")
                raise EngineError("internal", f"The transcription failed: {type(error).__name__}.") from error
            return Transcript(text, len(samples) / SAMPLE_BYTES / RATE, tokens)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        await self._decoder.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def choose_transcriber(settings: Settings) -> Transcriber | None:
    """What answers `/v1/audio/transcriptions`; nothing is loaded yet. Raises ValueError with one sentence."""
    source = settings.served.transcriber
    if not source:
        return None
    if not Path(source).is_dir() and not HUB_NAME.fullmatch(source):
        raise ValueError(f"There is no folder {source}. Give a folder with a model of Whisper's kind, or a hub name.")
    if missing := [name for name in ("torch", "transformers", "av") if importlib.util.find_spec(name) is None]:
        raise ValueError(f"Transcription by {source} needs {missing[0]}: pip install 'agent-server[audio]'.")
    decoder = Decoder(settings.media)
    return Transcriber(source_name(source), partial(_load, source, settings), decoder, settings.media.sound_seconds)


def _load(source: str, settings: Settings) -> SpeechModel:
    from agent_server.generation.multimodal.transcribing import SpeechModel

    return SpeechModel.load(source, settings.compute.device, settings.compute.dtype)
