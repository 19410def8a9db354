"""Sounds → what the model reads of them, by the model's own processor.

transformers builds the processors of some families only beside libraries that are not needed to read a sound; for
those, `KINDS` has the rule by which a sound's tokens are counted.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from tokenizers import Tokenizer
from torch import Tensor

from agent_server.engine_protocol.protocol import Sound
from agent_server.generation.faults import first_line
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.media_reader import MediaReader, Unreadable, tensors

logger = logging.getLogger("agent_server.generation")
FULL = 2**15
"""The loudest sample."""
SHORTEST = 10
"""A sound has at least one such part of a second: towers fail at less than their kernels span."""
Wave = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]
Read = Callable[[Wave], tuple[list[int], dict[str, Tensor]]]
"""A sound → the tokens that stand for it, and the arguments of the model's forward."""


class SoundReader(MediaReader):
    """rate: samples a second. seconds: the longest sound that the model hears to its end, 0 for any."""

    def __init__(self, tokenizer: Tokenizer, word: str, read: Read, rate: int, seconds: int) -> None:
        super().__init__(tokenizer, word)
        self.rate = rate
        self.seconds = seconds
        self._read = read

    def prepare(self, sound: Sound) -> PreparedMedia:
        """Raises ValueError for a sound that the model does not hear as it is. Features stand in for all of a sound's
        control tokens: some families have embeddings of their own for those around it (Gemma 3n)."""
        if sound.rate != self.rate:
            raise ValueError(f"it has {sound.rate} samples a second, not {self.rate}")
        wave: Wave = numpy.frombuffer(sound.samples, dtype="<i2").astype(numpy.float32) / numpy.float32(FULL)
        if self.seconds and len(wave) > self.seconds * self.rate:
            raise ValueError(f"it is longer than the {self.seconds} seconds that the model hears")
        if len(wave) * SHORTEST < self.rate:
            raise ValueError(f"it is shorter than 1/{SHORTEST} of a second")
        ids, named = self._read(wave)
        places = tuple(index for index, token in enumerate(ids) if self.is_control(token))
        if self.placeholder not in ids:
            raise ValueError("it has no tokens")
        return PreparedMedia("audio", sound.digest, tuple(ids), places, named)


def load_sound_reader(model: str, tokenizer: Tokenizer) -> SoundReader:
    """The reader of a folder or a hub name. Raises Unreadable."""
    from transformers import AutoFeatureExtractor, AutoProcessor

    if importlib.util.find_spec("av") is None:
        raise Unreadable("install 'agent-server[audio]', which decodes them")
    try:
        kind = _kind(model)
        if kind in KINDS:
            features = AutoFeatureExtractor.from_pretrained(model)
            word, read = KINDS[kind](model, features, tokenizer)
        else:
            processor = AutoProcessor.from_pretrained(model, trust_remote_code=False)
            features = getattr(processor, "feature_extractor", None) or processor.audio_processor
            word, read = str(processor.audio_token), partial(_by_processor, processor, int(features.sampling_rate))
        return SoundReader(tokenizer, word, read, int(features.sampling_rate), _seconds(features, kind))
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise Unreadable(f"its processor cannot be made ({first_line(error)})") from error


def _kind(model: str) -> str:
    """The name of its processor, which stands in one of two files."""
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.processing_utils import ProcessorMixin

    for settings in (ProcessorMixin.get_processor_dict, FeatureExtractionMixin.get_feature_extractor_dict):
        if kind := settings(model)[0].get("processor_class"):
            return str(kind)
    return ""


def _by_processor(processor: Any, rate: int, wave: Wave) -> tuple[list[int], dict[str, Tensor]]:
    text = [processor.audio_token]
    inputs = processor(text=text, audio=[wave], return_tensors="pt", add_special_tokens=False, sampling_rate=rate)
    return inputs["input_ids"][0].tolist(), tensors(inputs)


def _seconds(features: Any, kind: str) -> int:
    """Behind which a feature extractor cuts what it is given: Whisper's says it, Gemma's have it as a default."""
    if kind == "VoxtralProcessor":
        return 0
    most = getattr(features, "n_samples", None)
    if most is None:
        named = inspect.signature(type(features).__call__).parameters
        most = named["max_length"].default if "max_length" in named and "truncation" in named else None
    return int(most) // int(features.sampling_rate) if isinstance(most, int) else 0


Rule = tuple[str, Read]


def _voxtral(model: str, features: Any, tokenizer: Tokenizer) -> Rule:
    """Windows of 30 seconds, the last one filled up, with a token for each 8 frames (mistral-common's `audio` module);
    transformers' own processor takes sounds from conversations alone."""
    word, window = "[AUDIO]", int(features.nb_max_frames)

    def read(wave: Wave) -> tuple[list[int], dict[str, Tensor]]:
        filled = {"padding": True, "truncation": False, "pad_to_multiple_of": features.n_samples}
        inputs = features(wave, sampling_rate=features.sampling_rate, return_tensors="pt", **filled)
        frames = inputs["input_features"].reshape(features.feature_size, -1, window).transpose(0, 1)
        count = len(frames) * window // VOXTRAL_FRAMES
        return list(tokenizer.encode(word * count, add_special_tokens=False).ids), {"input_features": frames}

    return word, read


VOXTRAL_FRAMES = 8


def _gemma4(model: str, features: Any, tokenizer: Tokenizer) -> Rule:
    """A token for each frame that the tower's two halvings leave, between two tokens of their own; transformers'
    processor cannot be made where torchvision is not installed, which its videos need."""
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(model)
    first, word, last = (str(getattr(words, name)) for name in ("boa_token", "audio_token", "eoa_token"))

    def read(wave: Wave) -> tuple[list[int], dict[str, Tensor]]:
        inputs = tensors(features([wave], return_tensors="pt"))
        count = int(inputs["input_features_mask"][0, ::2][::2].sum())
        return list(tokenizer.encode(f"{first}{word * count}{last}", add_special_tokens=False).ids), inputs

    return word, read


def _gemma3n(model: str, features: Any, tokenizer: Tokenizer) -> Rule:
    """As many tokens for every sound, between two of their own and line breaks; its processor asks for torchvision as
    Gemma 4's does."""
    from transformers import AutoTokenizer
    from transformers.processing_utils import ProcessorMixin

    words = AutoTokenizer.from_pretrained(model)
    first, word, last = (str(getattr(words, name)) for name in ("boa_token", "audio_token", "eoa_token"))
    settings, _ = ProcessorMixin.get_processor_dict(model)
    text = f"\n\n{first}{word * int(settings.get('audio_seq_length', GEMMA3N_TOKENS))}{last}\n\n"
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    return word, lambda wave: (ids, tensors(features([wave], return_tensors="pt")))


GEMMA3N_TOKENS = 188
KINDS: dict[str, Callable[[str, Any, Tokenizer], Rule]] = {
    "VoxtralProcessor": _voxtral,
    "Gemma3nProcessor": _gemma3n,
    "Gemma4Processor": _gemma4,
}
