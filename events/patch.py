"""JSON Patch (RFC 6902) on plain data, as the AG-UI client applies it.

A patch applies completely or not at all. The document is never changed: the containers along a path are copied and the
rest is shared, so a small patch of a large state is cheap. Where the client (fast-json-patch, validating) differs from
the RFC, this module follows the client, because the server's copy of the state must stay equal to the user's: a `move`
or `copy` beyond the end of an array appends, and removing the whole document leaves null.

Since parts are shared, a `copy` costs nothing here, but whoever encodes the document pays for each of them: thirty
copies of a document into itself are 2^30 documents. So what a patch copies and what it leaves is bounded, and so is the
depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from events.nesting import DEPTH, TooLarge, measure

MOST_BYTES = 16 * 2**20
"""Bytes that one patch may copy or move, and that a document may have after a patch that copies; see `measure`."""
Edit = Callable[[object, str], object]


class PatchError(ValueError):
    """The patch is invalid or does not fit the document."""


def apply_patch(document: object, patch: Iterable[Mapping[str, object]]) -> object:
    """Return the document after `patch`; unchanged parts are shared with `document`. Raises PatchError."""
    try:
        return _apply(document, patch)
    except TooLarge as error:
        raise PatchError(f"The patch makes the document too large. {error}") from None


def _apply(document: object, patch: Iterable[Mapping[str, object]]) -> object:
    left, copies = MOST_BYTES, False
    for operation in patch:
        keys = _keys(operation, "path")
        match operation.get("op"):
            case "add":
                document = _edit(document, keys, _add(_new_value(operation, keys), bounded=True))
            case "replace":
                _get(document, keys)
                document = _edit(document, keys, _replace(_new_value(operation, keys)))
            case "remove":
                _get(document, keys)
                document = _edit(document, keys, _remove) if keys else None
            case "test":
                if not equal(_get(document, keys), _new_value(operation, keys)):
                    raise PatchError(f"{operation['path']!r} is not what the patch expects.")
            case "copy":
                copies, value = True, _get(document, _keys(operation, "from"))
                left -= measure(value, above=len(keys), most=left)
                document = _edit(document, keys, _add(value, bounded=False))
            case "move":
                source = _keys(operation, "from")
                value = _get(document, source)
                left -= measure(value, above=len(keys), most=left)
                if not keys:
                    document = value
                    continue
                if not source:
                    raise PatchError("A document cannot be moved into itself.")
                _get(document, keys[:-1])
                document = _edit(_edit(document, source, _remove), keys, _add(value, bounded=False))
            case _:
                raise PatchError("An operation's op must be add, remove, replace, move, copy or test.")
    if copies:
        measure(document, most=MOST_BYTES)
    return document


def _keys(operation: Mapping[str, Any], name: str) -> list[str]:
    """Return the unescaped segments of a JSON pointer (RFC 6901)."""
    pointer = operation.get(name)
    if not isinstance(pointer, str) or (pointer and pointer[0] != "/"):
        raise PatchError(f"An operation's {name} must be a JSON pointer.")
    keys = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if len(keys) > DEPTH:
        raise PatchError(f"A patch must not reach deeper than {DEPTH} levels.")
    if "__proto__" in keys:  # the client refuses it, so that no patch changes JavaScript's own objects
        raise PatchError("A patch must not touch __proto__.")
    return keys


def _new_value(operation: Mapping[str, object], keys: list[str]) -> object:
    """Return the value of an operation. keys: of its path."""
    if "value" not in operation:
        raise PatchError("The operation has no value.")
    value = operation["value"]
    if isinstance(value, dict | list):
        measure(value, above=len(keys))
    return value


def _get(node: object, keys: list[str]) -> object:
    for key in keys:
        node = _child(node, key)
    return node


def _child(node: object, key: str) -> object:
    if isinstance(node, dict) and key in node:
        return node[key]
    if isinstance(node, list) and key.isascii() and key.isdigit() and str(int(key)) == key and int(key) < len(node):
        return node[int(key)]
    raise PatchError(f"The document has no {key!r} at that path.")


def _edit(node: object, keys: list[str], edit: Edit) -> object:
    """Return a copy of `node` with `edit` applied at the end of the path; an empty path edits the whole document."""
    if not keys:
        return edit(None, "")
    if not isinstance(node, dict | list):
        raise PatchError(f"There is no object or array that can contain {keys[0]!r}.")
    copied = node.copy()
    if len(keys) == 1:
        edit(copied, keys[0])
    else:
        inner = _edit(_child(node, keys[0]), keys[1:], edit)
        copied[int(keys[0]) if isinstance(copied, list) else keys[0]] = inner  # type: ignore[index]
    return copied


def _add(value: object, *, bounded: bool) -> Edit:
    def add(node: Any, key: str) -> Any:
        if node is None:
            return value
        if isinstance(node, dict):
            node[key] = value
            return node
        if key != "-" and not (key.isascii() and key.isdigit()):
            raise PatchError(f"Invalid array index {key!r}. Use a whole number or '-'.")
        index = len(node) if key == "-" else int(key)
        if bounded and index > len(node):
            raise PatchError("An index must not be beyond the end of the array.")
        node.insert(index, value)
        return node

    return add


def _replace(value: object) -> Edit:
    def replace(node: Any, key: str) -> Any:
        if node is None:
            return value
        node[int(key) if isinstance(node, list) else key] = value
        return node

    return replace


def _remove(node: Any, key: str) -> Any:
    del node[int(key) if isinstance(node, list) else key]
    return node


def equal(a: object, b: object) -> bool:
    """Compare JSON values: true is not 1, but 1 is 1.0."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
