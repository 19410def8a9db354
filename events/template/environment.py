"""Rendering chat templates in a sandbox that supports published templates.

Differences from jinja2's immutable sandbox, each of which some published template needs: lists may grow (Kimi K2
appends to a list), `from_json` exists (DeepSeek V3.2), `tojson` does not escape HTML and accepts generators and
undefined values, `safe` and `escape` return plain strings (Functionary 3.1 would otherwise HTML-escape what it
concatenates), `{% generation %}` blocks render their body, `break` and `continue` work, `raise_exception` and
`strftime_now` exist, and so do `functions` and `datetime` (Firefunction v2), and `tools_json` and a message's
`tool_calls_json` (TabbyAPI).

Rendering is pure: the clock is a parameter, the caller's data is copied first, and the output is bounded. Limiting the
*time* is up to the caller: render in a thread and stop waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

DEFAULT_MAX_CHARACTERS = 8_000_000
MAX_REPEATED = 1_000_000  # characters or items that one `*` may produce
FIXED_NOW = datetime(2025, 1, 1)
_GROWING_METHODS: dict[type, frozenset[str]] = {
    list: frozenset({"append", "extend", "insert", "pop"}),
    dict: frozenset({"update", "setdefault"}),
}

_UNCHANGING = frozenset({str, LoopContext, Namespace})
"""Types whose attributes change nothing; those of a namespace are what the template has put there."""
_TOOL_TEXTS = frozenset({"functions", "tools_json"})
"""Variables for the declared tools as JSON text."""

_NONE_BY_DEFAULT = frozenset({"tools", "documents"})

Clock = Callable[[], datetime]
Message = dict[str, Any]


class TemplateError(Exception):
    """The template could not be compiled or rendered. The message is meant for a person.

    raised: the template itself refused the conversation with `raise_exception`.
    """

    def __init__(self, message: str, *, raised: bool = False) -> None:
        super().__init__(message)
        self.raised = raised


class _Refused(Exception):
    """Raised by `raise_exception` in a template."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it renders its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def getattr(self, obj: object, attribute: str) -> object:
        """Look up an attribute like jinja2, with a fast path for what templates use for every message: a key of a
        dictionary that is not hidden by one of dict's own attributes."""
        if type(obj) is dict and not hasattr(dict, attribute):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if type(obj) in _UNCHANGING:  # jinja2 checks a dozen types first
            return not attr.startswith("_")
        if attr in _GROWING_METHODS.get(type(obj), frozenset()):
            return True
        return bool(super().is_safe_attribute(obj, attr, value))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse the two operators that turn a short template into a huge value."""
        if operator == "**" and (abs(left) > 10_000 or abs(right) > 64):
            raise TemplateError("the chat template computes too large a power")
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                is_repetition = isinstance(sequence, (str, list, tuple)) and isinstance(count, int)
                if is_repetition and len(sequence) * count > MAX_REPEATED:
                    raise TemplateError("the chat template repeats a value too often")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _json_default(value: object) -> object:
    if isinstance(value, Undefined):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter: JSON text as transformers writes it, for any value; unknown objects become strings."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_json_default,
    )


def _from_json(value: object) -> object:
    return json.loads(value) if isinstance(value, (str, bytes)) else value


def _is_none(value: object) -> bool:
    """The `none` test. transformers sets `tools` and `documents` to None where there are none; here they stay
    undefined, since an undefined variable may also be iterated."""
    return value is None or (isinstance(value, Undefined) and value._undefined_name in _NONE_BY_DEFAULT)


def _escape(value: Any) -> str:
    return str(jinja2.filters.do_forceescape(value))


_ENVIRONMENT = _Sandbox(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
    cache_size=0,
    optimized=False,  # constant folding does not pay off for templates that are rendered a few times
)
_ENVIRONMENT.filters.update(
    {
        "tojson": to_json,
        "from_json": _from_json,
        "fromjson": _from_json,
        "safe": str,
        "escape": _escape,
        "e": _escape,
    }
)
_ENVIRONMENT.tests["none"] = _is_none
_ENVIRONMENT.globals["raise_exception"] = _raise_exception
_ENVIRONMENT.globals.pop("lipsum", None)  # a prompt must not contain random text


@lru_cache(maxsize=4)
def _parse(source: str) -> jinja2.nodes.Template:
    return _ENVIRONMENT.parse(source)


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    try:
        code = _ENVIRONMENT.compile(_parse(source))
        return jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None))
    except (jinja2.TemplateError, RecursionError, ValueError) as error:
        raise TemplateError(f"the chat template is not valid: {error}") from error


@lru_cache(maxsize=64)
def variables(source: str) -> frozenset[str]:
    """Return the names that a template reads: its own and those that a caller may pass. Empty for an invalid
    template."""
    try:
        names = _parse(source).find_all(jinja2.nodes.Name)
        return frozenset(name.name for name in names if name.ctx == "load")
    except (jinja2.TemplateError, RecursionError):
        return frozenset()


@lru_cache(maxsize=64)
def possible_values(source: str, variable: str) -> tuple[str, ...]:
    """Return the strings with which a template compares a variable, or another one that is set from it, and those that
    it sets the variable to. Empty for an invalid template."""
    try:
        tree = _parse(source)
        names = {variable}
        found: list[jinja2.nodes.Node] = []
        for assignment in tree.find_all(jinja2.nodes.Assign):
            target = assignment.target
            if isinstance(target, jinja2.nodes.Name) and (target.name == variable or _reads(assignment.node, names)):
                found.append(assignment.node)
                names.add(target.name)
        found += [compare for compare in tree.find_all(jinja2.nodes.Compare) if _reads(compare, names)]
        constants = [
            node.value
            for part in found
            for node in (part, *part.find_all(jinja2.nodes.Const))
            if isinstance(node, jinja2.nodes.Const)
        ]
        return tuple(dict.fromkeys(value for value in constants if isinstance(value, str)))
    except (jinja2.TemplateError, RecursionError):
        return ()


def _reads(node: jinja2.nodes.Node, names: set[str]) -> bool:
    return any(
        name.name in names for name in (node, *node.find_all(jinja2.nodes.Name)) if isinstance(name, jinja2.nodes.Name)
    )


def _copied(value: object) -> object:
    """Return a deep copy of JSON-like data, so that a template that extends a list changes only its own."""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, Mapping)):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


class ChatTemplate:
    """A chat template with the special tokens it may use.

    source: the jinja text. special_tokens: variables such as bos_token and eos_token; missing ones are "".
    Raises TemplateError if the source does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special_tokens = {"bos_token": "", "eos_token": "", **(special_tokens or {})}
        self._template = _compile(source)
        self._tool_texts = sorted(_TOOL_TEXTS & variables(source))
        self._call_texts = "tool_calls_json" in source
        self._tells_date = "datetime" in variables(source)
        self.prompts_last = prompts_last(source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        now: Clock | None = None,
        max_characters: int = DEFAULT_MAX_CHARACTERS,
        **extra: Any,
    ) -> str:
        """Render the prompt's text. Without tools the variable is undefined instead of None, since several templates
        test it.

        now: the clock for `strftime_now`; without one the date is fixed. Raises only TemplateError.
        """
        context = self._context(messages, tools, now, extra)
        return self._run({**context, "add_generation_prompt": add_generation_prompt}, _BoundedOutput(max_characters))

    def render_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, object]] | None = None,
        now: Clock | None = None,
        max_characters: int = DEFAULT_MAX_CHARACTERS,
        **extra: object,
    ) -> tuple[str, int]:
        """Render the text with the generation prompt. Return it with the index at which that begins: the text before is
        what `render` returns without one. For templates that are `prompts_last`; arguments and errors as for
        `render`."""
        output = _BoundedOutput(max_characters)
        flag = _PromptFlag(output)
        context = self._context(messages, tools, now, extra)
        text = self._run({**context, "add_generation_prompt": flag}, output)
        return text, len(text) if flag.index is None else flag.index

    def _context(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, object]] | None,
        now: Clock | None,
        extra: Mapping[str, object],
    ) -> dict[str, object]:
        clock = now or (lambda: FIXED_NOW)
        if self._call_texts:
            calls = [
                to_json(message["tool_calls"], indent=2) if message.get("tool_calls") else "" for message in messages
            ]
            messages = [{**message, "tool_calls_json": text} for message, text in zip(messages, calls, strict=True)]
        context: dict[str, object] = {
            "strftime_now": lambda form="%Y-%m-%d": clock().strftime(form),
            **({"datetime": clock().strftime("%Y-%m-%d")} if self._tells_date else {}),
            **{name: to_json(tools or [], indent=2) for name in self._tool_texts},
            **self.special_tokens,
            **{key: _copied(value) for key, value in extra.items()},
            "messages": _copied(messages),
        }
        if tools:
            context["tools"] = _copied(tools)
        return context

    def _run(self, context: dict[str, object], output: _BoundedOutput) -> str:
        # What `Template.generate` does, without rewriting tracebacks. A context and its macros reference each other;
        # the cycle is broken here so that they are freed at once without the cycle collector.
        try:
            scope = self._template.new_context(context)
            try:
                for piece in self._template.root_render_func(scope):
                    output.add(piece)
            finally:
                scope.vars.clear()
            return "".join(output.parts)
        except TemplateError:
            raise
        except _Refused as error:
            raise TemplateError(str(error), raised=True) from error
        except Exception as error:  # any error of the template: TypeError, KeyError, OverflowError ...
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error


class _BoundedOutput:
    """The output of a template so far, bounded."""

    def __init__(self, max_characters: int) -> None:
        self.parts: list[str] = []
        self.size = 0
        self._most = max_characters

    def add(self, piece: str) -> None:
        self.parts.append(piece)
        self.size += len(piece)
        if self.size > self._most:
            raise TemplateError(f"the rendered prompt is longer than {self._most} characters")


class _PromptFlag:
    """A true `add_generation_prompt` that notes the length of the output when the template first tests it."""

    def __init__(self, output: _BoundedOutput) -> None:
        self._output = output
        self.index: int | None = None

    def __bool__(self) -> bool:
        if self.index is None:
            self.index = self._output.size
        return True


_PROMPT_VARIABLE = "add_generation_prompt"


@lru_cache(maxsize=64)
def prompts_last(source: str) -> bool:
    """Return whether the template uses `add_generation_prompt` only in an `if` at its very end, so that the text before
    does not depend on it and nothing follows without a generation prompt."""
    try:
        parsed = _parse(source)
    except (jinja2.TemplateError, RecursionError):
        return False
    last = parsed.body[-1] if parsed.body else None
    if not isinstance(last, jinja2.nodes.If) or last.else_ or last.elif_ or not _needs_prompt(last.test):
        return False
    names = sum(name.name == _PROMPT_VARIABLE for name in parsed.find_all(jinja2.nodes.Name))
    return names == 1 + sum(_names_of_default(node) for node in parsed.body)


def _needs_prompt(test: jinja2.nodes.Node) -> bool:
    """Return whether a condition is always false without a generation prompt."""
    if isinstance(test, jinja2.nodes.And):
        return _needs_prompt(test.left) or _needs_prompt(test.right)
    return isinstance(test, jinja2.nodes.Name) and test.name == _PROMPT_VARIABLE


def _names_of_default(node: jinja2.nodes.Node) -> int:
    """Count the uses of the variable in `{% if not add_generation_prompt is defined %}{% set add_generation_prompt =
    false %}{% endif %}`, which has no effect, since the variable is always defined."""
    if not isinstance(node, jinja2.nodes.If) or not isinstance(node.test, jinja2.nodes.Not):
        return 0
    test = node.test.node
    if not isinstance(test, jinja2.nodes.Test) or test.name != "defined" or node.elif_ or node.else_:
        return 0
    names = sum(name.name == _PROMPT_VARIABLE for name in node.find_all(jinja2.nodes.Name))
    return names if isinstance(test.node, jinja2.nodes.Name) and test.node.name == _PROMPT_VARIABLE else 0
