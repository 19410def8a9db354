"""Adjust a saved tokenizer for serving: remove settings of its training, and add the tokens of its configuration.

transformers sets truncation and padding in every call, and adds the tokens that `tokenizer_config.json` names; a
`Tokenizer` that is read from its file does neither. tokenizer.json declares which tokens are added around a text: if it
exists, transformers ignores `add_bos_token` and `add_eos_token`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from agent_server.model_files.usable_files import UnusableFile

ADDED = "added_tokens_decoder"
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
LISTS = ("additional_special_tokens", "extra_special_tokens")
_RESERVED = re.compile(r"[\[<].*(?:unused|reserved).*[\]>]", re.IGNORECASE)


def without_training_limits(tokenizer: Tokenizer) -> Tokenizer:
    """Disable truncation and padding, which are saved with a tokenizer that was trained with them."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def for_serving(tokenizer: Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str], path: Path) -> Tokenizer:
    """Apply the model's settings to the tokenizer, as transformers does.

    settings: the content of tokenizer_config.json, at `path`. special: bos_token, eos_token and the like, as text.
    Raises UnusableFile if the settings give a token an id that it cannot have.
    """
    # Add the tokens that are listed with their ids.
    listed = settings.get(ADDED)
    tokens = {int(number): token for number, token in listed.items()} if isinstance(listed, Mapping) else {}
    tokenizer = _with_reserved_pieces_renamed(tokenizer, {number: token["content"] for number, token in tokens.items()})
    added = tokenizer.get_added_tokens_decoder()
    for number, token in sorted(tokens.items()):
        requested = AddedToken(token["content"], **{name: token[name] for name in FLAGS if name in token})
        if number in added and _described(added[number]) == _described(requested):
            continue
        tokenizer.add_tokens([requested])
        if (own_id := tokenizer.token_to_id(requested.content)) != number:
            raise UnusableFile(
                f"{path} gives the token {requested.content!r} the id {number}, but tokenizer.json makes it {own_id}. "
                "Copy both files from the same model."
            )
    named = [*special.values(), *(text for name in LISTS for text in _texts(settings.get(name)))]
    existing = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in dict.fromkeys(named) if text and text not in existing]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])
    return without_training_limits(tokenizer)


def control_tokens(tokenizer: Tokenizer, templates: Iterable[str] = ()) -> dict[int, AddedToken]:
    """Return the tokens that are not text, by id: special tokens, added tokens that the model's own vocabulary lacks,
    and added tokens that a chat template writes. Other added tokens are text that is matched before anything else, such
    as runs of spaces or Gemma's HTML tags.

    templates: the sources of the model's chat templates, whose markers not every file declares as special.
    """
    model, sources = tokenizer.model, "\n".join(templates)
    return {
        number: token
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
        if token.special
        or (token.content.strip() and (model.token_to_id(token.content) is None or token.content in sources))
    }


def without_control_tokens(tokenizer: Tokenizer, controls: Collection[int]) -> Tokenizer:
    """Return a tokenizer that encodes the text of these control tokens as text. It shares the vocabulary, which takes
    seconds to copy, and adds nothing around a text."""
    plain = Tokenizer(tokenizer.model)
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    for number, token in added:
        token.special = number in controls
    plain.add_tokens([token for _, token in added])
    plain.encode_special_tokens = True  # as text
    return plain


def put_around(tokenizer: Tokenizer, begin: str | None, end: str | None) -> None:
    """Make the tokenizer add these tokens, and no others, before and after a text."""
    first, last = ([text] if text and tokenizer.token_to_id(text) is not None else [] for text in (begin, end))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{text}:1" for text in first), "$B:1", *(f"{text}:1" for text in last)],
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in dict.fromkeys([*first, *last])],
    )


def _with_reserved_pieces_renamed(tokenizer: Tokenizer, texts: Mapping[int, str]) -> Tokenizer:
    """Return a tokenizer in which pieces of the vocabulary that are reserved for later tokens have the texts that the
    configuration gives their ids. InternLM2's `<|im_start|>` is the piece `[UNUSED_TOKEN_146]`."""
    renamed = {
        piece: text
        for number, text in texts.items()
        if (piece := tokenizer.model.id_to_token(number)) is not None
        and _RESERVED.fullmatch(piece)
        and tokenizer.token_to_id(text) is None
    }
    if not renamed:
        return tokenizer
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    if isinstance(vocabulary, list):  # pairs of piece and score
        state["model"]["vocab"] = [(renamed.get(piece, piece), score) for piece, score in vocabulary]
    else:
        state["model"]["vocab"] = {renamed.get(piece, piece): number for piece, number in vocabulary.items()}
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in renamed]
    return Tokenizer.from_str(json.dumps(state))


def _described(token: AddedToken) -> tuple[object, ...]:
    return (token.content, *(getattr(token, name) for name in FLAGS))


def _texts(value: object) -> list[str]:
    """Return the texts of tokens in a configuration: a list, or a mapping by name, of texts and token objects."""
    each = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    contents = [one.get("content") if isinstance(one, Mapping) else one for one in each]
    return [text for text in contents if isinstance(text, str)]
