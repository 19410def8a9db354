"""OutputFormat: a description of how one model writes reasoning, content and tool calls, as plain data.

Three parts of the server read it: the streaming parser (`events.parsing`), the grammar builder (`events.grammar`) and
the writer (`events.template.writer`), whose examples `agent-server inspect` prints. The template analyser derives it;
`events.formats.registry` has the formats that are selected by name. All classes here are frozen and serialise with
msgspec (`msgspec.json.encode(format)`).

**Markers.** The annotation of a text field declares whether it contains markers, and which part of the output they
delimit (`events.formats.fields`); `markers` and `marker_ids` collect them. The order in which the parts of a call are
written is defined in `events.formats.layout` alone.

**White space.** A marker is given exactly as the template writes it, with its line breaks: `"<tool_call>\\n"`. The
grammar builder reproduces it. The parser looks for the marker without its outer white space, and accepts missing or
additional white space around structural markers. Around a *value* (`value_prefix`, `value_suffix`) exactly the white
space given here is removed if it is present, and no more, so that `"\\n#include\\n\\n</parameter>"` keeps its own line
break.

**Shape of the output**, in the order in which a model writes it:

    [reasoning.start] reasoning [reasoning.end]
    [content.start] content [content.end]
    [tools.section_start] call [tools.call_separator call]... [tools.section_end]

A call has one of these forms, by `tools.style`:

    json:    call_start {"name": NAME, "arguments": {...}, "id": ID} call_end           (keys: tools.json)
    tag:     call_start name_prefix NAME name_suffix arguments.start ARGUMENTS arguments.end call_end
             with the id at the position in tools.id, and ARGUMENTS by `arguments.style`:
             json     {"key": value, ...}                                  a JSON object, verbatim
             tagged   name_prefix KEY name_suffix [type_prefix TYPE type_suffix] value_prefix VALUE value_suffix
                      separator ...                                        one block for each argument
             python   key=value, key=value                                 Python literals, closed by arguments.end
             object   key:value, ...                                       bare keys, strings between `quote`s
             nested   <key>VALUE</key>                                     elements named after keys, which nest
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from events.formats.fields import Marker, Part, Words, texts

ReasoningMarkers = Annotated[tuple[str, ...], Marker("reasoning")]
ContentMarkers = Annotated[tuple[str, ...], Marker("content")]
MessageMarkers = Annotated[tuple[str, ...], Marker("messages")]
CallMarkers = Annotated[tuple[str, ...], Marker("calls")]
CallMarker = Annotated[str, Marker("calls")]
Word = Annotated[str, Words()]

Initial = Literal["content", "reasoning", "undecided"]
ArgumentStyle = Literal["json", "tagged", "python", "object", "nested"]
IdPosition = Literal["none", "key", "before_name", "between", "after_arguments", "in_name"]


class Description(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of all parts of a description: frozen, keyword-only, serialised without defaults."""


class Reasoning(Description, frozen=True, kw_only=True):
    """How reasoning is delimited.

    start: markers that open it, the canonical one first; empty if only the prompt opens it (a delimiter format).
    end: markers that close it, the canonical one first.
    initial: the part in which the output begins if neither the prompt nor its header determines it. "undecided" holds
        text back until a marker or the end decides; it is for callers who cannot know the prompt.
    ended_by: markers that end reasoning without its end marker and then have their own meaning (a tool marker).
    after_call: the part to which text belongs after a call inside reasoning.
    unclosed: the part to which reasoning belongs that the output opens and never closes. With "content", such
        reasoning is held back until it is closed; reasoning that the prompt opened always streams.
    """

    start: ReasoningMarkers = ()
    end: ReasoningMarkers = ()
    initial: Initial = "content"
    ended_by: CallMarkers = ()
    after_call: Literal["content", "reasoning"] = "content"
    unclosed: Literal["reasoning", "content"] = "reasoning"


class Content(Description, frozen=True, kw_only=True):
    """How content is wrapped. Wrappers are optional for the parser and never shown.

    start: markers that open content (they end open reasoning), the canonical one first. end: markers that close it.
    wrapped: "always"; "with_reasoning" if the template wraps only after reasoning; "with_calls" if it wraps only the
        text before calls, which has no markers of its own then.
    prefix: text that is put before the content (a reasoning opener that the client wants to see).
    after_calls: whether text after the first call is shown.
    """

    start: ContentMarkers = ()
    end: ContentMarkers = ()
    wrapped: Literal["always", "with_reasoning", "with_calls"] = "always"
    prefix: Word = ""
    after_calls: Literal["keep", "drop"] = "keep"


class CallId(Description, frozen=True, kw_only=True):
    """The position of a call's id, if the format has ids.

    position: "none"; "key" (a key of the call's JSON object, named by JsonKeys.id); "before_name"; "between" (after
    the name, before the arguments); "after_arguments"; "in_name" (the id is in the name's place and
    contains the name: `functions.NAME:0`; the text around it is name_prefix and name_suffix up to `{index}`).
    """

    position: IdPosition = "none"
    prefix: CallMarker = ""
    suffix: CallMarker = ""


class JsonKeys(Description, frozen=True, kw_only=True):
    """Keys of a call that is a JSON object. The parser also accepts the usual synonyms, in any order.

    wrapper: the key whose value holds name and arguments (`{"type": "function", "function": {...}}`), or "".
    id_first: the id is written before the name.
    name_is_key: the object's only key is the function's name and its value the arguments.
    array: all calls are in one JSON array. array_only: a single object is not accepted in place of the array.
    arguments_required: an object without arguments is not a call; otherwise its arguments are empty.
    """

    name: Word = "name"
    arguments: Word = "arguments"
    id: Word = ""
    wrapper: Word = ""
    id_first: bool = False
    name_is_key: bool = False
    array: bool = False
    array_only: bool = False
    arguments_required: bool = False


class Arguments(Description, frozen=True, kw_only=True):
    """How the arguments of a "tag" call are written. See the diagram in the module's docstring.

    start, end: markers around all arguments (`end` includes the end of the function: `</function>`).
    type_prefix, type_suffix: around a declared type of the value. Optional in the output.
    type_words: the words between them: `true` / `false`, meaning "a string" / "JSON", or the name of a JSON type, with
        `number` for every number. The parser accepts both.
    separator: text between two arguments.
    quote: the delimiter of strings in the "object" style (`<|"|>`), or "" for JSON's.
    untyped: how a value is read if neither a schema nor a declared type determines it: "json" (as JSON if it is valid
        JSON, else as a string) or "string".
    item: in the "nested" style, the element that contains one item of a list.
    element_prefix: in the "nested" style, the text before every tag.
    """

    style: ArgumentStyle = "json"
    start: CallMarker = ""
    end: CallMarker = ""
    name_prefix: CallMarker = ""
    name_suffix: CallMarker = ""
    type_prefix: CallMarker = ""
    type_suffix: CallMarker = ""
    type_words: Literal["is_string", "names"] = "is_string"
    value_prefix: CallMarker = ""
    value_suffix: CallMarker = ""
    separator: CallMarker = ""
    quote: CallMarker = ""
    untyped: Literal["json", "string"] = "json"
    item: Word = "item"
    element_prefix: CallMarker = ""


class Tools(Description, frozen=True, kw_only=True):
    """How tool calls are written.

    section_start, section_end: around all calls. call_start, call_end: around each. call_separator: between two.
    name_prefix, name_suffix: around the function's name; `{index}` in name_suffix is replaced by the call's number.
    name_entities: the name is written with XML entities.
    repeats_section: every call is in its own section.
    lines: JSON is written over several lines, indented.

    Parser settings in which servers differ; a request can override them (see events.parsing.policy):
    bare: whether a call is recognised without its opening marker: "never"; "declared" (generic JSON or the format's
        name_prefix, with the name of a declared tool); "always" (also if no tools are declared).
    commit: when a call is announced: "arguments" (when its arguments begin, the earliest moment at which it cannot be
        prose) or "call" (when it is complete and valid; nothing is streamed).
    undeclared: a call of an undeclared tool is kept, dropped, or shown as content.
    failed: text after an opening marker that is not a call is shown with its markers ("content"), without them
        ("text"), dropped, or kept as a call whose arguments are the text ("call").
    truncated: an unfinished call at the end of the output is kept if its name is complete ("keep"), if its name has
        begun ("name"), or only if it was announced before ("drop").
    """

    style: Literal["json", "tag"] = "json"
    section_start: CallMarker = ""
    section_end: CallMarker = ""
    call_start: CallMarker = ""
    call_end: CallMarker = ""
    call_separator: CallMarker = ""
    name_prefix: CallMarker = ""
    name_suffix: CallMarker = ""
    name_entities: bool = False
    repeats_section: bool = False
    lines: bool = False
    id: CallId = CallId()
    json: JsonKeys = JsonKeys()
    arguments: Arguments = Arguments()
    bare: Literal["never", "declared", "always"] = "declared"
    commit: Literal["arguments", "call"] = "arguments"
    undeclared: Literal["keep", "drop", "content"] = "keep"
    failed: Literal["content", "text", "drop", "call"] = "content"
    truncated: Literal["keep", "name", "drop"] = "keep"


class Route(Description, frozen=True, kw_only=True):
    """The part to which a message's body belongs if its header (with its last marker) contains `header`. If several
    routes match, the one that is last in the header decides; a recipient takes precedence over all of them.

    to: "call": the body is a call's arguments, or the call itself (by Tools.style); "text": the body is the only
        argument, `text`, of the function that the header names.
    """

    header: Annotated[str, Marker("messages")]
    to: Literal["reasoning", "content", "call", "text", "drop"]


class Channels(Description, frozen=True, kw_only=True):
    """Messages with headers that route their bodies: `start` HEADER `header_end` BODY `end`.

    start: markers that begin a header. Text before the first header is routed by `routes` too, as an empty header.
    header_end: markers that end it and begin the body.
    end: markers that end the body.
    recipient: the text before a function's name in a header (`to=`); "" if headers do not name functions. named: a
        header that no route matches is a function's name; if it cannot be a name, it is text.
    namespace: text before the name that is not part of it (`functions.`). Other recipients are not tools of the
        request.
    content_type: the marker before the type of the body (`<|constrain|>json`), which ends the function's name.
    start_ends_body: whether `start` within a body ends it.
    starts_in_header: whether the prompt ends within a header.
    markup: whether reasoning that is shown in the content includes its markers.
    """

    start: MessageMarkers
    header_end: MessageMarkers
    end: MessageMarkers = ()
    routes: tuple[Route, ...] = ()
    recipient: Word = ""
    named: bool = False
    namespace: Word = ""
    content_type: Annotated[str, Marker("messages")] = ""
    start_ends_body: bool = True
    starts_in_header: bool = False
    markup: bool = True


class OutputFormat(Description, frozen=True, kw_only=True):
    """How one model writes. Every part is optional: a format without any of them is plain text.

    name: the registry's name, or "template" if it was derived.
    message_start: the text that begins an assistant message in the prompt (`<|im_start|>assistant\\n`). The text of the
        generation prompt after it counts as written by the model.
    drop: markers that are never shown (end of turn, message separators).
    address: (start, end) of the recipient's name before a message, which is never shown: `to=NAME<|message|>`.
    spellings: (variant, canonical) pairs of markers; models write the variant as well.
    reader: the name of a reader registered in `events.parsing.machine.READERS` that parses the output instead of the
        default one; "" for the default.
    boundaries: "strict" follows rules 3.2.1 to 3.2.6 of the DeepSeek proposal (docs/reading-output.md, "Sources");
        "lenient" lets text precede, separate and follow calls.
    """

    name: Word = "plain"
    message_start: Word = ""
    reasoning: Reasoning | None = None
    content: Content = Content()
    tools: Tools | None = None
    channels: Channels | None = None
    drop: Annotated[tuple[str, ...], Marker("turn")] = ()
    address: Annotated[tuple[str, str] | None, Marker("messages")] = None
    spellings: Annotated[tuple[tuple[str, str], ...], Marker("calls")] = ()
    reader: Word = ""
    boundaries: Literal["lenient", "strict"] = "lenient"


def markers(output_format: OutputFormat, *parts: Part) -> tuple[str, ...]:
    """Return the distinct markers of a format, or of some parts of it, without outer whitespace."""
    stripped = (text.strip() for text in texts(output_format, *parts))
    return tuple(dict.fromkeys(text for text in stripped if text))


def marker_ids(output_format: OutputFormat, control_tokens: Mapping[str, int]) -> dict[str, int]:
    """Return the vocabulary's control tokens that occur in markers, with their ids. A marker may be a token
    (`<tool_call>`) or contain one (`]<]minimax[>[` in `]<]minimax[>[<tool_call>`); single characters are ignored."""
    marker_text = "\0".join(markers(output_format))
    return {token: number for token, number in control_tokens.items() if len(token) > 1 and token in marker_text}
