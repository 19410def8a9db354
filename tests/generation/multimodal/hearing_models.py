"""Tiny random models that hear, of several families, with the files that their processors are made of."""

import io
import json
from hashlib import blake2b
from wave import open as open_wave

import numpy
import torch
import transformers
from transformers import PreTrainedTokenizerFast

from agent_server.engine_protocol.protocol import Sound
from agent_server.model_files import load_model_files
from tests.generation.multimodal.seeing_models import TEXT
from tests.generation.tiny_models import VOCAB, make_tokenizer

RATE = 16_000
WINDOW = 4
"""Seconds that the tiny towers hear at once; those of whole models hear 30."""
MELS = 8
ENCODER = {
    "num_mel_bins": MELS,
    "max_source_positions": 50 * WINDOW,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
}
WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "chunk_length": WINDOW}

FAMILIES = {
    "qwen2-audio": {
        "config": "Qwen2AudioConfig",
        "words": {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"},
        "text": {"model_type": "qwen2"},
        "audio": {"model_type": "qwen2_audio_encoder", **ENCODER},
        "features": {**WHISPER, "return_attention_mask": True},
        "processor": "Qwen2AudioProcessor",
        "frame": ("<|audio_bos|>", "<|audio_eos|>"),
        "seconds": WINDOW,
    },
    "voxtral": {
        "config": "VoxtralConfig",
        "words": {"audio_token": "[AUDIO]", "audio_bos_token": "[BEGIN_AUDIO]"},
        "text": {"model_type": "llama"},
        "audio": {"model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": MELS, "max_source_positions": 50 * WINDOW},
        "features": WHISPER,
        "processor": "VoxtralProcessor",
        "frame": ("[BEGIN_AUDIO]", ""),
        "seconds": 0,
    },
    "gemma4": {
        "config": "Gemma4Config",
        "words": {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"},
        "text": {"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 16, "sliding_window": 7, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 320, "final_logit_softcapping": 5.0},
        "audio": {"model_type": "gemma4_audio", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "subsampling_conv_channels": [8, 4], "output_proj_dims": 24},
        "extra": {"vision_config": None},
        "features": {"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": MELS},
        "processor": "Gemma4Processor",
        "seconds": 30,
    },
    "gemma3n": {
        "config": "Gemma3nConfig",
        "words": {"audio_token": "<audio_soft_token>", "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>"},
        "text": {"model_type": "gemma3n_text", "head_dim": 16, "sliding_window": 7, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 256, "laurel_rank": 8, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4, "final_logit_softcapping": 5.0},
        "audio": {"model_type": "gemma3n_audio", "hidden_size": 32, "input_feat_size": MELS, "conf_num_hidden_layers": 2, "conf_num_attention_heads": 2, "conf_reduction_factor": 4, "sscp_conv_channel_size": [8, 4], "vocab_size": VOCAB - 260, "vocab_offset": 260},
        "extra": {"vision_config": {"model_type": "gemma3n_vision", "hidden_size": 16, "vocab_size": 1, "vocab_offset": 259, "label_names": ["none"]}, "audio_soft_tokens_per_image": 40},
        "features": {"feature_extractor_type": "Gemma3nAudioFeatureExtractor", "feature_size": MELS},
        "processor": "Gemma3nProcessor",
        "settings": {"audio_seq_length": 40},
        "suppressed": list(range(259, VOCAB)),  # the tokens around a sound have embeddings of its tower's, as the real ones
        "seconds": 30,
    },
}  # fmt: skip


class NoPictures(transformers.PreTrainedModel):
    """In place of Gemma 3n's picture tower, which needs timm."""

    config: transformers.Gemma3nVisionConfig


transformers.AutoModel.register(transformers.Gemma3nVisionConfig, NoPictures, exist_ok=True)


def make_words(family):
    """The tokenizer with the family's words, as transformers' kind."""
    words = FAMILIES[family]["words"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), eos_token="<|im_end|>", pad_token="<|im_start|>", extra_special_tokens=words
    )
    fast.add_special_tokens({"additional_special_tokens": list(words.values())}, replace_extra_special_tokens=False)
    return fast


def save_hearing(family, folder, seed=None):
    """A folder as such models come: weights, tokenizer, processor."""
    own = FAMILIES[family]
    words = make_words(family)
    number = words.convert_tokens_to_ids(own["words"]["audio_token"])
    config = getattr(transformers, own["config"])(
        text_config={**TEXT, **own["text"]}, audio_config=own["audio"], audio_token_id=number, audio_token_index=number,
        **own.get("extra", {}),
    )  # fmt: skip
    torch.manual_seed(own.get("seed", 0) if seed is None else seed)
    model = transformers.AutoModelForMultimodalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0) if parameter.any() else parameter.normal_(std=0.3)
    model.generation_config.eos_token_id = None
    model.generation_config.suppress_tokens = own.get("suppressed")
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(own["features"]))
    processor = {"processor_class": own["processor"], **own.get("settings", {})}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return model


TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if 'audio' in part %}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A sound's part is known by its key, as Qwen2-Audio's first templates know it."""


def save_hearing_chat(folder, context=1024, **generation):
    """A folder of Qwen2-Audio's kind with a chat template, whose answers can be read as text. context: in tokens, most
    of which are a letter. generation: more of its `generation_config.json`."""
    save_hearing("qwen2-audio", folder)
    spoken = load_model_files(folder).tokenizer.get_vocab_size()
    config = json.loads((folder / "config.json").read_text())
    rows = config["text_config"]["vocab_size"]
    config["text_config"]["max_position_embeddings"] = context
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"suppress_tokens": list(range(spoken, rows)), **generation}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def sound(seed=0, seconds=0.8, rate=RATE):
    """Notes of 50 ms, silence among them, as the engine takes it."""
    count, random = int(rate * seconds), torch.Generator().manual_seed(seed)
    notes = -(-count // (rate // 20))
    heights, strengths = (torch.rand(notes, generator=random).repeat_interleave(rate // 20)[:count] for _ in range(2))
    samples = 30_000 * strengths.sub(0.3).clamp(0) * torch.sin(torch.cumsum(0.02 + 2.5 * heights, 0))
    raw = samples.to(torch.int16).numpy().astype("<i2").tobytes()
    return Sound(samples=raw, rate=rate, digest=blake2b(raw, digest_size=16).digest())


def wave(heard):
    return numpy.frombuffer(heard.samples, dtype="<i2").astype(numpy.float32) / 2**15


def wav(samples, rate=RATE):
    """A file of WAV."""
    held = io.BytesIO()
    with open_wave(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples)
    return held.getvalue()
