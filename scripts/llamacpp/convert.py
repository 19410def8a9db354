"""The bundled model as GGUF, by llama.cpp's own converter, run in the folder of its sources.

    python convert.py PROJECT FILE [MODEL [TYPE]]

The converter knows tokenizers by name. Ours has none there: ids are what is sent and what comes back, so any of the
byte-level ones will do.
"""

from __future__ import annotations

import runpy
import sys

sys.path[:0] = [".", "gguf-py"]
from conversion import base, llama  # type: ignore[import-not-found]  # noqa: E402

base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
llama.LlamaModel.set_vocab = lambda self: self._set_vocab_gpt2()
project, file, *other = sys.argv[1:]
model = other[0] if other else f"{project}/agent_server/models/demo"
kind = other[1] if len(other) > 1 else "f32"
sys.argv = ["convert", model, "--outfile", file, "--outtype", kind]
runpy.run_path("convert_hf_to_gguf.py", run_name="__main__")
