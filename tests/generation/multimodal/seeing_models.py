"""Tiny random models that see, of several families, with the files that their processors are made of."""

import json
from hashlib import blake2b

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from agent_server.engine_protocol.protocol import Picture
from tests.generation.tiny_models import BASE, make_tokenizer

WORDS = {
    "qwen": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "gemma": ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    "mistral": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "llava": ("<image>",),
}
TEXT = {key: value for key, value in BASE.items() if key != "pad_token_id"} | {"pad_token_id": 0}
QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
CLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 64, "longest_edge": 4096},
}


def _rope(kind="default", **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


FAMILIES = {
    "qwen2.5-vl": {
        "words": "qwen",
        "config": "Qwen2_5_VLConfig",
        "text": {**_rope(mrope_section=[2, 2, 2])},
        "vision": {**QWEN_VISION, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 48, "window_size": 16, "fullatt_block_indexes": [1]},
        "pixels": QWEN_PIXELS,
        "processor": "Qwen2_5_VLProcessor",
    },
    "qwen3-vl": {
        "words": "qwen",
        "config": "Qwen3VLConfig",
        "text": {"head_dim": 16, **_rope(mrope_section=[4, 2, 2], mrope_interleaved=True)},
        "vision": {**QWEN_VISION, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 48, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        "pixels": {**QWEN_PIXELS, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
        "processor": "Qwen3VLProcessor",
    },
    "gemma3": {
        "words": "gemma",
        "config": "Gemma3Config",
        "text": {"head_dim": 16, "sliding_window": 7, "num_hidden_layers": 7},
        "vision": {**CLIP, "patch_size": 4, "image_size": 32},
        "extra": {"mm_tokens_per_image": 16},
        "pixels": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 32, "width": 32}},
        "processor": "Gemma3Processor",
        "settings": {"image_seq_length": 16},
    },
    "mistral3": {
        "words": "mistral",
        "config": "Mistral3Config",
        "text": {"model_type": "mistral", "head_dim": 12, "tie_word_embeddings": False},
        "vision": {"model_type": "pixtral", **CLIP, "patch_size": 4, "image_size": 64},
        "extra": {"spatial_merge_size": 2, "tie_word_embeddings": False},
        "pixels": {"image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 8, "width": 8}, "size": {"longest_edge": 64}},
        "processor": "PixtralProcessor",
        "settings": {"patch_size": 4, "spatial_merge_size": 2},
    },
    "llava": {
        "words": "llava",
        "config": "LlavaConfig",
        "text": {"model_type": "llama"},
        "vision": {"model_type": "clip_vision_model", **CLIP, "patch_size": 8, "image_size": 32, "projection_dim": 32},
        "extra": {"image_seq_length": 16},
        "pixels": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        "processor": "LlavaProcessor",
        "settings": {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    },
}  # fmt: skip
NAMES = {
    "qwen": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"},
    "gemma": {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    "mistral": {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
    "llava": {"image_token": "<image>"},
}  # fmt: skip


def make_words(family):
    """The tokenizer with the family's words, as transformers' kind."""
    words = FAMILIES[family]["words"]
    tokenizer = make_tokenizer()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_start|>", extra_special_tokens=NAMES[words]
    )
    fast.add_special_tokens({"additional_special_tokens": list(WORDS[words])}, replace_extra_special_tokens=False)
    return fast


def save_seeing(family, folder, seed=None, **changes):
    """A folder as such models come: weights, tokenizer, processor. changes: of the text model's configuration."""
    own = FAMILIES[family]
    words = make_words(family)
    ids = {name: words.convert_tokens_to_ids(text) for name, text in NAMES[own["words"]].items()}
    numbers = {f"{name}_id": number for name, number in ids.items()}
    numbers |= {name.replace("token", "token_index"): number for name, number in ids.items()}
    config = getattr(transformers, own["config"])(
        text_config={**TEXT, **own["text"], **changes}, vision_config=own["vision"], **own.get("extra", {}), **numbers
    )
    torch.manual_seed(own.get("seed", 0) if seed is None else seed)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3.0) if parameter.any() else parameter.normal_(std=0.3)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(own["pixels"]))
    processor = {"processor_class": own["processor"], **own.get("settings", {})}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return model


def picture(seed=0, width=40, height=56):
    """Noise, as the engine takes it."""
    pixels = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    raw = pixels.numpy().tobytes()
    digest = blake2b(repr((width, height)).encode() + raw, digest_size=16).digest()
    return Picture(width=width, height=height, pixels=raw, digest=digest)
