"""Transcribe sounds with Whisper and its derivatives, with transformers' own `generate`."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from agent_server.engine_protocol.protocol import EngineError, SpeechOptions
from agent_server.generation.device import choose_device, choose_dtype
from agent_server.model_files import load_model_files

WINDOW_SECONDS = 30
"""The length of the model's input. Longer recordings are transcribed window by window, following the timestamps that
the model writes."""

SLOWEST = 4
"""The maximum number of windows that are transcribed, as a multiple of a recording's length. After that it is
transcribed in adjacent windows, without timestamps."""
FULL_SCALE = 2**15
"""The sample that corresponds to 1.0."""
Wave = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]


class SpeechModel:
    """A model on its device. Not for several threads at once."""

    def __init__(self, model: Any, features: Any, tokenizer: Any) -> None:
        self._model = model
        self._features = features
        self._tokenizer = tokenizer
        self._times = tokenizer.token_to_id("<|notimestamps|>")
        self.rate = int(features.sampling_rate)

    @classmethod
    def load(cls, source: str, device: str, dtype: str) -> SpeechModel:
        """Raises ValueError with one sentence, FileNotFoundError, and what transformers raises for a model that it
        cannot load."""
        import transformers

        config = transformers.AutoConfig.from_pretrained(source)
        if config.model_type != "whisper":
            raise ValueError(f"{source} is of the kind {config.model_type}, and only Whisper's kind transcribes here.")
        place = choose_device(device.partition(",")[0])
        model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(source, dtype=choose_dtype(dtype, place))
        features = transformers.AutoFeatureExtractor.from_pretrained(source)
        return cls(model.eval().to(place), features, load_model_files(source).tokenizer)

    @torch.inference_mode()
    def transcribe(self, samples: bytes, options: SpeechOptions) -> tuple[str, int]:
        """Return the text and the number of its tokens. samples: int16, `rate` per second. Raises EngineError for a
        language that the model does not know."""
        ids = self.token_ids(samples, options)
        text_ids = [token for token in ids if self._times is None or token <= self._times]
        return str(self._tokenizer.decode(text_ids, skip_special_tokens=True)).strip(), len(ids)

    def token_ids(self, samples: bytes, options: SpeechOptions) -> list[int]:
        """Return the token ids as `generate` returns them, with timestamps for a recording longer than a window."""
        wave: Wave = numpy.frombuffer(samples, dtype="<i2").astype(numpy.float32) / numpy.float32(FULL_SCALE)
        window = WINDOW_SECONDS * self.rate
        if len(wave) <= window:
            return self._generate(wave, options)
        watch = _Windows(-(-len(wave) // window))
        try:
            return self._generate(wave, options, return_timestamps=True, monitor_progress=watch)
        except _StandstillError:
            cut = (wave[begin : begin + window] for begin in range(0, len(wave), window))
            return [token for piece in cut for token in self._generate(piece, options)]

    def _generate(self, wave: Wave, options: SpeechOptions, **named: Any) -> list[int]:
        """Return the generated token ids. named: options of `generate` for a recording longer than a window."""
        shape = {"truncation": False, "padding": "longest"} if named else {}
        inputs = self._features(wave, sampling_rate=self.rate, return_tensors="pt", return_attention_mask=True, **shape)
        device, dtype = self._model.device, self._model.dtype
        if options.temperature:
            named |= {"do_sample": True, "temperature": options.temperature}
        if options.prompt:
            start = self._tokenizer.token_to_id("<|startofprev|>")
            if start is None:
                raise EngineError("invalid_request", "This model takes no prompt.", param="prompt")
            prompt = self._tokenizer.encode(f" {options.prompt.strip()}", add_special_tokens=False).ids
            most = self._model.config.max_target_positions // 2 - 1  # half of the context, as in Whisper's own decoding
            named["prompt_ids"] = torch.tensor([start, *prompt[-most:]]).to(device)
        language, config = options.language, self._model.generation_config
        if not getattr(config, "is_multilingual", False):  # an English-only model has no options for a language
            if language not in ("", "en"):
                raise _unknown(language)
        elif language and f"<|{language}|>" not in (getattr(config, "lang_to_id", None) or {}):
            raise _unknown(language)
        else:
            named |= {"task": "transcribe", **({"language": language} if language else {})}
        out = self._model.generate(
            inputs["input_features"].to(device, dtype),
            attention_mask=inputs["attention_mask"].to(device),
            **named,
        )
        ids: list[int] = out[0].tolist()
        return ids


class _StandstillError(Exception):
    """The timestamps that the model writes do not reach the end of the recording."""


class _Windows:
    """Counts the windows that `generate` transcribes, as its `monitor_progress`. Each window starts at the last
    timestamp that the model wrote, so timestamps that hardly advance would never end. needed: the number of adjacent
    windows in the recording."""

    def __init__(self, needed: int) -> None:
        self._remaining = SLOWEST * needed

    def __call__(self, _: torch.Tensor) -> None:
        self._remaining -= 1
        if self._remaining < 0:
            raise _StandstillError


def _unknown(language: str) -> EngineError:
    return EngineError("invalid_request", f"This model does not know the language {language!r}.", param="language")
