"""Turn sounds into tokens and the inputs of a model's encoder, with the model's own processor.

transformers creates the processors of some families only with libraries that sounds do not need. For those, `KINDS` has
the rule for the number of a sound's tokens.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy
from tokenizers import Tokenizer
from torch import Tensor

from agent_server.engine_protocol.protocol import Sound
from agent_server.generation.faults import first_line
from agent_server.generation.multimodal.inputs import PreparedMedia
from agent_server.generation.multimodal.media_reader import MediaReader, UnreadableMedia, tensors

logger = logging.getLogger("agent_server.generation")
FULL_SCALE = 2**15
"""The sample that corresponds to 1.0."""
MIN_LENGTH_FRACTION = 10
"""A sound must last at least one such fraction of a second, since encoders fail on less than their kernels span."""
Wave = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]
Read = Callable[[Wave], tuple[list[int], dict[str, Tensor]]]
"""A sound → its tokens, and the arguments of the model's forward."""


class SoundReader(MediaReader):
    """Reads sounds for one model. rate: samples per second. seconds: the maximum length of a sound; 0 for no limit."""

    def __init__(self, tokenizer: Tokenizer, word: str, read: Read, rate: int, seconds: int) -> None:
        super().__init__(tokenizer, word)
        self.rate = rate
        self.seconds = seconds
        self._read = read

    def prepare(self, sound: Sound) -> PreparedMedia:
        """Prepare a sound. Features replace all of its control tokens, since some families have embeddings of their own
        for those around it (Gemma 3n). Raises ValueError for a sound that the model cannot use."""
        if sound.rate != self.rate:
            raise ValueError(f"it has {sound.rate} samples a second, not {self.rate}")
        wave: Wave = numpy.frombuffer(sound.samples, dtype="<i2").astype(numpy.float32) / numpy.float32(FULL_SCALE)
        if self.seconds and len(wave) > self.seconds * self.rate:
            raise ValueError(f"it is longer than the {self.seconds} seconds that the model hears")
        if len(wave) * MIN_LENGTH_FRACTION < self.rate:
            raise ValueError(f"it is shorter than 1/{MIN_LENGTH_FRACTION} of a second")
        ids, named = self._read(wave)
        places = tuple(index for index, token in enumerate(ids) if self.is_control(token))
        if self.placeholder not in ids:
            raise ValueError("it has no tokens")
        return PreparedMedia("audio", sound.digest, tuple(ids), places, named)


def load_sound_reader(model: str, tokenizer: Tokenizer) -> SoundReader:
    """Return the reader for a model's folder or hub name. Raises UnreadableMedia."""
    from transformers import AutoFeatureExtractor, AutoProcessor

    if importlib.util.find_spec("av") is None:
        raise UnreadableMedia("install 'agent-server[audio]', which decodes them")
    try:
        kind = _processor_class(model)
        if kind in KINDS:
            features = AutoFeatureExtractor.from_pretrained(model)
            rate = int(features.sampling_rate)
            word, read = KINDS[kind](model, features, tokenizer)
        else:
            processor = AutoProcessor.from_pretrained(model, trust_remote_code=False)
            features = getattr(processor, "feature_extractor", None) or processor.audio_processor
            rate, word = int(features.sampling_rate), str(processor.audio_token)

            def read_by_processor(wave: Wave) -> tuple[list[int], dict[str, Tensor]]:
                options = {"return_tensors": "pt", "add_special_tokens": False, "sampling_rate": rate}
                inputs = processor(text=[processor.audio_token], audio=[wave], **options)
                return inputs["input_ids"][0].tolist(), tensors(inputs)

            read = read_by_processor
        return SoundReader(tokenizer, word, read, rate, _longest_seconds(features, kind))
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise UnreadableMedia(f"its processor cannot be made ({first_line(error)})") from error


def _processor_class(model: str) -> str:
    """Return the name of the model's processor, from either of two files; "" if they do not name one."""
    from transformers.feature_extraction_utils import FeatureExtractionMixin
    from transformers.processing_utils import ProcessorMixin

    for settings in (ProcessorMixin.get_processor_dict, FeatureExtractionMixin.get_feature_extractor_dict):
        if kind := settings(model)[0].get("processor_class"):
            return str(kind)
    return ""


def _longest_seconds(features: Any, kind: str) -> int:
    """Return the length after which a feature extractor truncates; 0 if it does not. Whisper's has an attribute for it,
    Gemma's a default argument."""
    if kind == "VoxtralProcessor":
        return 0
    most = getattr(features, "n_samples", None)
    if most is None:
        named = inspect.signature(type(features).__call__).parameters
        most = named["max_length"].default if "max_length" in named and "truncation" in named else None
    return int(most) // int(features.sampling_rate) if isinstance(most, int) else 0


Rule = tuple[str, Read]


def _voxtral(model: str, features: Any, tokenizer: Tokenizer) -> Rule:
    """Windows of 30 seconds, the last one padded, with one token for 8 frames (mistral-common's `audio` module).
    transformers' own processor takes sounds only from conversations."""
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
    """One token for each frame after the encoder halved their number twice, between a begin and an end token.
    transformers' processor needs torchvision, for videos."""
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(model)
    first, word, last = (str(getattr(words, name)) for name in ("boa_token", "audio_token", "eoa_token"))

    def read(wave: Wave) -> tuple[list[int], dict[str, Tensor]]:
        inputs = tensors(features([wave], return_tensors="pt"))
        count = int(inputs["input_features_mask"][0, ::2][::2].sum())
        return list(tokenizer.encode(f"{first}{word * count}{last}", add_special_tokens=False).ids), inputs

    return word, read


def _gemma3n(model: str, features: Any, tokenizer: Tokenizer) -> Rule:
    """The same number of tokens for every sound, between a begin and an end token and line breaks. Its processor needs
    torchvision like Gemma 4's."""
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
