"""SentencePiece's `tokenizer.model`, for models that have no tokenizer.json: with the ids of SentencePiece, or refused.

The vocabulary is rebuilt for `tokenizers`, and then compared with SentencePiece itself on texts that are easily encoded
in another way: white space, characters that it composes or does not know, controls, long runs.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from agent_server.model_files.piece_tokenizer import SPACE, Pieces, Step, sentencepiece_bpe, sentencepiece_unigram
from agent_server.model_files.served_tokenizer import put_around
from agent_server.model_files.usable_files import UnusableFile

logger = logging.getLogger("agent_server")
UNIGRAM, BPE = 1, 2
"""Of `TrainerSpec.ModelType`."""
PROBES = (
    *(
        "hello world",
        " hello",
        "  hello",
        "hello ",
        "a  b   c    d     e",
        " ",
        "   ",
        "\n",
        "\n\n\n",
        "\t\tx",
        "a\r\nb",
    ),
    *(
        "def f(x):\n    return x  # two\n\n        deep",
        "if (a) {\n\tb();\n}\n",
        "1234567890 3.14 1,000,000",
        "it's DON'T",
    ),
    *(
        "café cafe\u0301",
        "\u2126 \u212b ﬁ ½ ² ™",
        "한국어 \u1112\u1161\u11ab",
        "東京は夜の七時",
        "你好，世界！",
        "Привет",
    ),
    *(
        "مرحبا",
        "नमस्ते दुनिया",
        "สวัสดี",
        "🙂 👨‍👩‍👧‍👦 🇩🇪 👍🏽",
        "\u00a0\u2003\u3000x",
        "\u200b\u200d\ufeff",
        "\u2028",
        "▁ a▁b ▁▁",
    ),
    *(
        '{"a": [1, {"b": null}], "c": "d e"}',
        "<div class='a'>\n  <p>x</p>\n</div>",
        "camelCaseHTTPServer2XML",
        "a_b__c",
    ),
    *(
        "aaaaaaaaaaaaaaaaaaaaaaaaa",
        "-----=====+++++",
        "\x01\x1f\x7f",
        "𝔘𝔫𝔦 𝟙𝟚",
        " " * 37 + "x",
        "\n" * 40,
        "word " * 30,
        "",
    ),
)


def sentencepiece_tokenizer(path: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> Tokenizer | None:
    """The tokenizer of a file; None where it is not SentencePiece's.

    settings: the content of tokenizer_config.json. special: bos_token, eos_token and the like, as text. Raises
    UnusableFile where its ids would not be SentencePiece's, ImportError where its packages are not installed.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import SentencePieceProcessor
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    data = path.read_bytes()
    try:
        proto = ModelProto.FromString(data)
        reference = SentencePieceProcessor(model_proto=data)
    except (DecodeError, RuntimeError):
        return None
    tokenizer = _rebuilt(proto, path, later_prefix=settings.get("legacy") is not False)
    begins, ends = bool(settings.get("add_bos_token", True)), bool(settings.get("add_eos_token", False))
    numbers = {"bos_token": reference.bos_id() if begins else -1, "eos_token": reference.eos_id() if ends else -1}
    texts = [
        special.get(name) or (reference.id_to_piece(number) if number >= 0 else "") for name, number in numbers.items()
    ]
    put_around(tokenizer, *(text if number >= 0 else "" for text, number in zip(texts, numbers.values(), strict=True)))
    _check(tokenizer, reference, path, strictly=settings.get("legacy") is not False)
    return tokenizer


def _rebuilt(proto: Any, path: Path, *, later_prefix: bool) -> Tokenizer:
    """later_prefix: a space is put also before what follows a control token, as transformers' legacy form does."""
    kind, spec = proto.trainer_spec.model_type, proto.normalizer_spec
    if kind not in (UNIGRAM, BPE) or proto.trainer_spec.treat_whitespace_as_suffix:
        raise UnusableFile(f"{path} is of a kind of SentencePiece's that is not read; {CONVERT}")
    pieces = Pieces(
        [piece.piece for piece in proto.pieces],
        [piece.type for piece in proto.pieces],
        [piece.score for piece in proto.pieces],
    )
    prefix = bool(spec.add_dummy_prefix)
    make = sentencepiece_bpe if kind == BPE else sentencepiece_unigram
    made = make(pieces, prefix=prefix and later_prefix, normalizers=_normalizers(spec))
    if prefix and not later_prefix:
        made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    return made


def _normalizers(spec: Any) -> list[Step]:
    steps: list[Step] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps


CONVERT = "serve a folder with a tokenizer.json instead, which most models have."


def _check(tokenizer: Tokenizer, reference: Any, path: Path, *, strictly: bool) -> None:
    different = [
        text for text in PROBES if tokenizer.encode(text, add_special_tokens=False).ids != reference.encode(text)
    ]
    if different and strictly:
        raise UnusableFile(
            f"{path} cannot be served: of {len(PROBES)} texts, {len(different)} would have other tokens than "
            f"SentencePiece gives them, {different[0]!r} for one; {CONVERT}"
        )
    if different:
        logger.warning(
            '%s: %d of %d texts have other tokens than SentencePiece gives them, as "legacy": false in '
            "tokenizer_config.json asks: %r for one.",
            *(path, len(different), len(PROBES), different[0]),
        )
