"""SentencePiece's `tokenizer.model`, for models that have no tokenizer.json: with the ids of SentencePiece, or refused.

The vocabulary is rebuilt for `tokenizers`, and then compared with SentencePiece itself on texts that are easily encoded
in another way: white space, characters that it composes or does not know, controls, long runs. Where a difference is
known and wanted, or cannot be avoided, it is logged.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agent_server.model_files.piece_tokenizer import Pieces, Prefix, Step, sentencepiece_bpe, sentencepiece_unigram
from agent_server.model_files.served_tokenizer import put_around
from agent_server.model_files.usable_files import UnusableFile

logger = logging.getLogger("agent_server")
UNIGRAM, BPE = 1, 2
"""Of `TrainerSpec.ModelType`."""
PROBES = (
    'hello world', ' hello', '  hello', 'hello ', 'a  b   c    d     e', ' ', '   ', '\n', '\n\n\n', '\t\tx',
    'a\r\nb', 'def f(x):\n    return x  # two\n\n        deep', 'if (a) {\n\tb();\n}\n', '1234567890 3.14 1,000,000',
    "it's DON'T", 'caf\xe9 cafe\u0301', '\u2126 \u212b \ufb01 \xbd \xb2 \u2122',
    '\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab', '東京は夜の七時', '你好，世界！', 'Привет', 'مرحبا', 'नमस्ते दुनिया', 'สวัสดี',
    '\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd',
    '\xa0\u2003\u3000x', '\u200b\u200d\ufeff', '\u2028', '▁ a▁b ▁▁', '{"a": [1, {"b": null}], "c": "d e"}',
    "<div class='a'>\n  <p>x</p>\n</div>", 'camelCaseHTTPServer2XML', 'a_b__c', 'aaaaaaaaaaaaaaaaaaaaaaaaa',
    '-----=====+++++', '\x01\x1f\x7f', '𝔘𝔫𝔦 𝟙𝟚', " " * 37 + "x", "\n" * 40, "word " * 30, '', 'ｶﾞ ﷺ', 'e\u0301\u093e',
)  # fmt: skip


def sentencepiece_tokenizer(
    path: Path, settings: Mapping[str, Any], special: Mapping[str, str]
) -> tuple[Tokenizer, dict[str, str]] | None:
    """The tokenizer of a file, and bos_token, eos_token and the like, as text; None where it is not SentencePiece's.

    settings: the content of tokenizer_config.json. special: the tokens that it names, which count before the file's.
    Raises UnusableFile where its ids would not be SentencePiece's, ImportError where its packages are not installed.
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
    numbers = {"bos_token": reference.bos_id(), "eos_token": reference.eos_id(), "unk_token": reference.unk_id()}
    own = {name: reference.id_to_piece(number) for name, number in numbers.items() if number >= 0}
    special = {**own, **special}
    legacy = settings.get("legacy") is not False
    tokenizer = _rebuilt(proto, path, "always" if legacy else "first")
    begins, ends = bool(settings.get("add_bos_token", "bos_token" in own)), bool(settings.get("add_eos_token", False))
    put_around(tokenizer, special.get("bos_token") if begins else None, special.get("eos_token") if ends else None)
    _check(tokenizer, reference, path, legacy=legacy, maps=bool(proto.normalizer_spec.precompiled_charsmap))
    return tokenizer, special


def _rebuilt(proto: Any, path: Path, prefix: Prefix) -> Tokenizer:
    """prefix: where spaces are put if the file asks for any."""
    kind, spec = proto.trainer_spec.model_type, proto.normalizer_spec
    if kind not in (UNIGRAM, BPE) or proto.trainer_spec.treat_whitespace_as_suffix or not spec.escape_whitespaces:
        raise UnusableFile(f"{path} is of a kind of SentencePiece's that is not read; {CONVERT}")
    pieces = Pieces(
        [piece.piece for piece in proto.pieces],
        [piece.type for piece in proto.pieces],
        [piece.score for piece in proto.pieces],
    )
    make = sentencepiece_bpe if kind == BPE else sentencepiece_unigram
    return make(pieces, prefix=prefix if spec.add_dummy_prefix else "never", normalizers=_normalizers(spec))


def _normalizers(spec: Any) -> list[Step]:
    steps: list[Step] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        removed = {r"\A +|[ ▁]+\z": "", " {2,}": " "}  # of all white space, spaces alone
        steps += [{"type": "Replace", "pattern": {"Regex": each}, "content": new} for each, new in removed.items()]
    return steps


CONVERT = "serve a folder with a tokenizer.json instead, which most models have."


def _check(tokenizer: Tokenizer, reference: Any, path: Path, *, legacy: bool, maps: bool) -> None:
    """legacy: transformers' word for a tokenizer that puts a space before a text whatever the text begins with. Others
    put none before a space. maps: characters are replaced by a table, which tokenizers applies to whole graphemes and
    SentencePiece to the longest entries."""
    different = [
        text for text in PROBES if tokenizer.encode(text, add_special_tokens=False).ids != reference.encode(text)
    ]
    refused = [text for text in different if (legacy or text[:1].strip("▁ ")) and (text.isascii() or not maps)]
    if refused:
        raise UnusableFile(
            f"{path} cannot be served: of {len(PROBES)} texts, {len(refused)} would have other tokens than "
            f"SentencePiece gives them, {refused[0]!r} for one; {CONVERT}"
        )
    if maps:
        logger.warning(
            "%s replaces characters by a table (precompiled_charsmap): combined characters may have other tokens than "
            "SentencePiece gives them, as with transformers; %d of %d texts have.",
            *(path, len(different), len(PROBES)),
        )
    elif different:
        logger.warning(
            "%s: texts that begin with a space have other tokens than SentencePiece gives them (%r for one), as "
            '"legacy": false in tokenizer_config.json asks.',
            *(path, different[0]),
        )
