"""The tokens that end a generation of a GGUF file, which does not declare all of them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from agent_server.model_files import load_model_files

BYTES = sorted(ByteLevel.alphabet())
HARMONY = ["<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"]
SOLAR = ["<|begin|>", "<|end|>", "<|calls|>", "<|flush|>"]
PHI = ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"]


@pytest.mark.parametrize(
    ("controls", "declared", "ends"),
    [
        (HARMONY, {"eos": "<|return|>"}, {"<|return|>", "<|call|>"}),
        (HARMONY, {"eos": "<|return|>", "eot": "<|end|>"}, {"<|return|>", "<|call|>"}),
        (SOLAR, {"eos": "<|flush|>"}, {"<|flush|>", "<|calls|>"}),
        (PHI, {"eos": "<|endoftext|>"}, {"<|end|>", "<|endoftext|>"}),
    ],
)
def test_the_end_of_a_message_that_another_follows_is_no_end(
    controls: list[str], declared: dict[str, str], ends: set[str], tmp_path: Path
) -> None:
    """gpt-oss ends its reasoning with <|end|> and goes on with the answer."""
    path = tmp_path / "model.gguf"
    tokens = [*BYTES, "Ġt", *controls]
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(BYTES) + 1) + [gguf.TokenType.CONTROL] * len(controls))
    writer.add_token_merges(["Ġ t"])
    for word, token in declared.items():
        writer.add_uint32(f"tokenizer.ggml.{word}_token_id", tokens.index(token))
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert {tokens[number] for number in load_model_files(path).stop_token_ids} == ends
