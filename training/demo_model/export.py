"""Write a checkpoint as a model folder that transformers can load."""

import argparse
import json
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM

from training.demo_model.model import Shape
from training.demo_model.render import END
from training.demo_model.tokenizer import MARKERS, PADDING, as_transformers
from training.demo_model.train import load_tokenizer


def load_trained(run: Path, vocabulary: int) -> LlamaForCausalLM:
    """Load the newest checkpoint of a run into a transformers model."""
    config = Shape(vocabulary).transformers_config(MARKERS.index(END), MARKERS.index(PADDING))
    model = LlamaForCausalLM(config)
    state = torch.load(run / "checkpoint.pt", map_location="cpu")["model"]
    renamed = {f"model.{name}": weight for name, weight in state.items()}
    renamed["lm_head.weight"] = state["embed_tokens.weight"]
    model.load_state_dict(renamed)
    return model


def export(run: Path, output: Path) -> None:
    """Write weights in bfloat16, the configurations, the tokenizer and the chat template."""
    tokenizer = load_tokenizer(run)
    model = load_trained(run, tokenizer.get_vocab_size())
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        eos_token_id=MARKERS.index(END),
        pad_token_id=MARKERS.index(PADDING),
    )
    model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    model.save_pretrained(output)
    as_transformers(tokenizer).save_pretrained(output)
    _name_common_class(output / "tokenizer_config.json")


def _name_common_class(path: Path) -> None:
    """Name the tokenizer class that every version of transformers knows."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Export the newest checkpoint of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder that train.py wrote")
    parser.add_argument("output", type=Path, help="model folder to write")
    options = parser.parse_args()
    export(options.run, options.output)
    size = sum(path.stat().st_size for path in options.output.iterdir())
    print(f"{options.output}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
