"""The project's own cases: for every named format, what a model of that family writes and what it means.

Small and made by hand; each says something alone. `RUN` reads them whole, by characters and cut at random.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TOOLS: dict[str, Any] = {
    "tide": {
        "type": "object",
        "properties": {
            "port": {"type": "string"},
            "hours": {"type": "integer"},
            "metric": {"type": "boolean"},
            "extra": {"type": "object", "properties": {"depth": {"type": "number"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
        "required": ["port"],
    },
    "now": {"type": "object", "properties": {}},
}


class Case(NamedTuple):
    """What was written, and what it means. tools: None where nothing is declared."""

    text: str
    calls: list[tuple[str, Any]] = []
    content: str = ""
    reasoning: str = ""
    prefix: str | None = None
    tools: dict[str, Any] | None = TOOLS
    ids: list[str] | None = None


BREST = ("tide", {"port": "Brest"})
BOTH = [("tide", {"port": "Brest", "hours": 6}), ("now", {})]


def json_cases(start: str, end: str, arguments: str = "arguments") -> list[Case]:
    """A format with a tag around each JSON call."""
    one = f'{start}{{"name": "tide", "{arguments}": {{"port": "Brest"}}}}{end}'
    return [
        Case(one, [BREST]),
        Case(f"Let me look.\n{one}", [BREST], content="Let me look."),
        Case(f'{start}{{"{arguments}": {{"port": "Brest", "hours": 6}}, "name": "tide"}}{end}{start}{{"name": "now", "{arguments}": {{}}}}{end}', BOTH),
        Case(f"{start}{{'name': 'tide', '{arguments}': {{'port': 'L\\'Aber', 'metric': True, 'note': None,}}}}{end}", [("tide", {"port": "L'Aber", "metric": True, "note": None})]),
        Case(f'{start}{{"name": "tide", "{arguments}": {{"port": "a {end.strip()} b {{"}}}}{end}', [("tide", {"port": f"a {end.strip()} b {{"})]),
        Case("A tide of 3 < 4 metres.", content="A tide of 3 < 4 metres."),
    ]  # fmt: skip


def coder_cases(start: str, end: str, think: str = "<think>", unthink: str = "</think>") -> list[Case]:
    """A format with function and parameter tags."""
    one = f"{start}\n<function=tide>\n<parameter=port>\nBrest\n</parameter>\n</function>\n{end}"
    return [
        Case(one, [BREST]),
        Case(f"See first.{unthink}\n\nNow:\n{one}", [BREST], "Now:", "See first.", think),
        Case(f"{start}\n<function=tide>\n<parameter=hours>\n6\n</parameter>\n<parameter=port>\n<b>\n</parameter>!\n\n</parameter>\n<parameter=extra>\n{{\"depth\": 2.5}}\n</parameter>\n</function>\n{end}\n{start}\n<function=now>\n</function>\n{end}", [("tide", {"hours": 6, "port": "<b>\n</parameter>!\n", "extra": {"depth": 2.5}}), ("now", {})]),
        Case(one.removeprefix(start), [BREST]),
        Case(f"{start}\n<function=tide>\n<parameter=metric>False</parameter>\n<parameter=note>null</parameter>\n<parameter=tags>['x', 'y']</parameter>\n</function>{end}", [("tide", {"metric": False, "note": None, "tags": ["x", "y"]})]),
        Case(f"{start}\n<function=tide>\n<parameter=port>\nBre", [("tide", {"port": "Bre"})]),
        Case(f"{start}\n<func"),
        Case(f"{start}\n<"),
        # the end of an argument is forgotten: one that the tool has and that was not given begins the next
        Case(f"{start}\n<function=tide>\n<parameter=port>\nBrest\n<parameter=hours>\n6\n</parameter>\n</function>\n{end}", [("tide", {"port": "Brest", "hours": 6})]),
        Case(f"{start}\n<function=tide>\n<parameter=port>\n<parameter=pier>\n<parameter=port>\n</parameter>\n</function>\n{end}", [("tide", {"port": "<parameter=pier>\n<parameter=port>"})]),
        Case(f"{start}\n<function=tide\n<parameter=port\nBrest\n</parameter>\n</function>\n{end}", [BREST]),
        # and an end of the call ends it, if only ends or another call follow
        Case(f"{start}\n<function=tide>\n<parameter=port>\nBrest\n</function>\n{end}\n{one}", [BREST, BREST]),
        Case(f"{start}\n<function=tide>\n<parameter=port>\nBrest</function>\n", [BREST]),
        Case(f"{start}\n<function=tide>\n<parameter=port>\n</function>\n{end}.\n</parameter>\n</function>{end}", [("tide", {"port": f"</function>\n{end}."})]),
        Case(f"{start}\n<function=sum>\n<parameter=a>\n1\n</parameter>\n</function>\n{end}", [("sum", {"a": "1"})], tools=None),
    ]  # fmt: skip


def glm_cases(start: str = "<tool_call>", end: str = "</tool_call>", between: str = "", tag: str = "") -> list[Case]:
    """A format with tagged keys and values."""

    def argument(key: str, value: str) -> str:
        return f"<{tag}arg_key>{key}</{tag}arg_key><{tag}arg_value>{value}</{tag}arg_value>"

    return [
        Case(f"{start}tide{between}{argument('port', 'Brest')}{end}", [BREST]),
        Case(f"{start}tide{between}\n{argument('port', '  Brest ')}\n{argument('hours', '6')}\n{end}{start}now{between}{end}", [("tide", {"port": "  Brest ", "hours": 6}), ("now", {})]),
        Case(f"{start}tide{between}{argument('port', '42')}{argument('extra', '{oops')}{end}", [("tide", {"port": "42", "extra": "{oops"})]),
        Case(f"{start}tide{between}<{tag}arg_key>hours</{tag}arg_key><{tag}arg_value>6{end}{start}now{between}{end}", [("tide", {"hours": 6}), ("now", {})]),
    ]  # fmt: skip


def invoke_cases(start: str, end: str, tag: str = "") -> list[Case]:
    """A format with invoke and parameter tags."""
    one = f'<{tag}invoke name="tide">\n<{tag}parameter name="port">Brest</{tag}parameter>\n</{tag}invoke>'
    two = f'<{tag}invoke name="now">\n</{tag}invoke>'
    return [
        Case(f"{start}\n{one}\n{end}", [BREST]),
        Case(f"On it.{start}\n{one}\n{two}\n{end}", [BREST, ("now", {})], content="On it."),
        Case(f"{start}\n{one}\n{end}".replace(f"</{tag}parameter>\n", ""), [BREST]),
    ]


def dsml_cases(wrapper: str, space: str = "") -> list[Case]:
    d = "｜DSML｜" + space

    def parameter(key: str, value: str, string: str) -> str:
        return f'<{d}parameter name="{key}" string="{string}">{value}</{d}parameter>\n'

    call = (
        f'<{d}invoke name="tide">\n{parameter("port", "Brest", "true")}{parameter("hours", "6", "false")}</{d}invoke>\n'
    )
    return [
        Case(f"<｜DSML｜{wrapper}>\n{call}</｜DSML｜{wrapper}>", [("tide", {"port": "Brest", "hours": 6})]),
        Case(f"Hm.</think>\n\n<｜DSML｜{wrapper}>\n{call}{call}</｜DSML｜{wrapper}>", [("tide", {"port": "Brest", "hours": 6})] * 2, reasoning="Hm.", prefix="<think>"),
        Case(f"So I ask.\n\n<｜DSML｜{wrapper}>\n{call}</｜DSML｜{wrapper}>", [("tide", {"port": "Brest", "hours": 6})], reasoning="So I ask.", prefix="<think>"),
        Case(f"One moment.\n{call}{call}Done.", [("tide", {"port": "Brest", "hours": 6})] * 2, content="One moment.\n\nDone.", tools=None),
        Case(f"<｜DSML｜toolcalls>\n{call}</｜DSML｜{wrapper}>", [("tide", {"port": "Brest", "hours": 6})]),
        Case(f'<｜DSML｜{wrapper}><{d}invoke name="f"><{d}parameter name="a" string="true">x <b><{d}parameter name="b" string="true">y</{d}parameter></{d}invoke></｜DSML｜{wrapper}>', [("f", {"a": "x <b>", "b": "y"})], tools=None),
        Case(f'<｜DSML｜{wrapper}><{d}invoke name="now"/>\n<{d}invoke name="tide">\n{{"port": "Brest"}}\n</{d}invoke><{d}invoke name="now" /></｜DSML｜{wrapper}>', [("now", {}), BREST, ("now", {})]),
        # the schema knows better what a string is not; a tool's arguments may all stand in one
        Case(f'<｜DSML｜{wrapper}><{d}invoke name="tide">{parameter("hours", "6", "true")}{parameter("port", "42", "true")}</{d}invoke></｜DSML｜{wrapper}>', [("tide", {"hours": 6, "port": "42"})]),
        Case(f'<｜DSML｜{wrapper}><{d}invoke name="tide">{parameter("arguments", """{"hours": 6}""", "false")}</{d}invoke></｜DSML｜{wrapper}>', [("tide", {"hours": 6})]),
        Case(f'<｜DSML｜{wrapper}><{d}invoke name="tide">{parameter("arguments", """{"ours": 6}""", "false")}</{d}invoke></｜DSML｜{wrapper}>', [("tide", {"arguments": {"ours": 6}})]),
        Case(f'Say <{d}invoke name="tide"> in thought</think>Done.', content="Done.", reasoning=f'Say <{d}invoke name="tide"> in thought', prefix="<think>"),
    ]  # fmt: skip


def python_cases(start: str, end: str, brackets: str = "[]") -> list[Case]:
    left, right = brackets[:1], brackets[1:]
    return [
        Case(f"{start}{left}tide(port='Brest'){right}{end}", [BREST]),
        Case(f"{start}{left}tide(port=\"Brest\", hours=6){',' if left else chr(10)} now(){right}{end}", BOTH),
        Case(f"{start}{left}tide(port='L\\'Aber ]', metric=True, note=None, tags=['a', 'b'], extra={{'depth': 2.5}}){right}{end}", [("tide", {"port": "L'Aber ]", "metric": True, "note": None, "tags": ["a", "b"], "extra": {"depth": 2.5}})]),
    ]  # fmt: skip


def deepseek_cases(fenced: bool) -> list[Case]:
    def call(name: str, arguments: str) -> str:
        inner = (
            f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```" if fenced else f"{name}<｜tool▁sep｜>{arguments}"
        )
        return f"<｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜>"

    calls = call("tide", '{"port": "Brest", "hours": 6}') + call("now", "{}")
    section = f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"
    return [
        Case(section, BOTH, prefix=""),
        Case(f"Look it up.</think>\n\n{section}<｜end▁of▁sentence｜>", BOTH, reasoning="Look it up.", prefix="<think>"),
        Case(f"Wait.</think>One moment.{section}", BOTH, "One moment.", "Wait.", "<think>"),
    ]


M3 = "]<]minimax[>["
K3 = "<|open|>{}<|sep|>"


def k3(name: str, attributes: str = "", body: str = "") -> str:
    return f"<|open|>{name}{attributes}<|sep|>{body}<|close|>{name}<|sep|>"


CASES: dict[str, list[Case]] = {
    "hermes": [
        *json_cases("<tool_call>\n", "\n</tool_call>"),
        Case('<think>\nWhich port?\n</think>\n\n<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>', [BREST], reasoning="Which port?"),
        Case('{"name": "tide", "arguments": {"port": "Brest"}}', [BREST]),
        Case('{"name": "ferry", "arguments": {"port": "Brest"}}', content='{"name": "ferry", "arguments": {"port": "Brest"}}'),
        Case('{"high": 3, "name": "tide"}', content='{"high": 3, "name": "tide"}'),
        Case('<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}</tool_call>', [BREST]),
        Case('<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}}}\n</tool_call>', [BREST]),
        Case('<tool_call>\n{"name": "tide", "arguments": "{\\"port\\": \\"Brest\\"}"}\n</tool_call>', [BREST]),
        Case('<tool_call>\n{"type": "function", "function": {"name": "tide", "arguments": {"port": "Brest"}}}\n</tool_call>', [BREST]),
        Case('<tool_call>\n{"name": "tide", "arguments": {"port": "Bre', [("tide", '{"port": "Bre')]),
        Case("thinking<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", [("now", {})], reasoning="thinking", prefix="<think>"),
        Case('<tool_call>{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}\n</tool_call>', [BREST, ("now", {})]),
        Case('<tool_call>{"name": "now", "arguments": {}}, and so on', [("now", {})], content=", and so on"),
        Case('<tool_call>{"name": "functions.tide", "arguments": {"port": "Brest"}}</tool_call>', [BREST]),
        Case('<tool_call>[{"name": "now", "arguments": {}}, "and"]</tool_call>', [("now", {})], content='"and"]'),
        # in the middle of a sentence a call is only spoken of
        Case("I could say <tool_call>{\"name\": \"now\"}</tool_call> here.</think>No.", content="No.", reasoning="I could say <tool_call>{\"name\": \"now\"}</tool_call> here.", prefix="<think>"),
        Case("I ask. <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", [("now", {})], reasoning="I ask.", prefix="<think>"),
    ],
    "longcat": json_cases("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    "granite4": json_cases("<tool_call>\n", "\n</tool_call>"),
    "ernie45": [*json_cases("<tool_call>\n", "\n</tool_call>"), Case("Ebb.</think>\n\n<response>\nLow at six.\n</response>\n", content="Low at six.", reasoning="Ebb.", prefix="<think>")],
    "internlm": json_cases("<|action_start|><|plugin|>\n", "\n<|action_end|>", "parameters"),
    "granite-20b-fc": [Case('<function_call> {"name": "tide", "arguments": {"port": "Brest"}} <function_call> {"name": "now", "arguments": {}}', [BREST, ("now", {})])],
    "granite": [
        Case('Low. [{"name": "tide", "arguments": {"port": "Brest"}}]', content='Low. [{"name": "tide", "arguments": {"port": "Brest"}}]'),
        Case('<|tool_call|> [{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}]', [BREST, ("now", {})]),
        Case("Here is my thought process: Spring tide. Here is my response: High.", content="High.", reasoning="Spring tide."),
    ],
    "hunyuan_a13b": [Case('<think>\nEbb?\n</think>\n<answer>\nLow.\n</answer>', content="Low.", reasoning="Ebb?"), Case('<tool_calls>[{"name": "tide", "arguments": {"port": "Brest"}}]</tool_calls>', [BREST])],
    "jamba": [Case('<tool_calls>[\n  {"name": "tide", "arguments": {"port": "Brest"}},\n  {"name": "now", "arguments": {}}\n]</tool_calls>', [BREST, ("now", {})])],
    "phi4_mini_json": [Case('functools[{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}]', [BREST, ("now", {})]), Case("Python's functools [sic] helps.", content="Python's functools [sic] helps.")],
    "xlam": [
        Case('So: [TOOL_CALLS][{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST], content="So:"),
        Case('<tool_call>[{"name": "tide", "arguments": {"port": "Brest"}}]</tool_call>', [BREST]),
        Case('[{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST], tools=None),
        Case('```json\n[{"name": "tide", "arguments": {"port": "Brest"}}]\n```', [BREST]),
        Case('Like so:\n```json\n{"port": "Brest"}\n```\nGood.', content='Like so:\n```json\n{"port": "Brest"}\n```\nGood.'),
    ],
    "apertus": [Case('<|inner_prefix|>Hm.<|inner_suffix|>Now <|tools_prefix|>[{"tide": {"port": "Brest"}}, {"now": {}}]<|tools_suffix|>', [BREST, ("now", {})], "Now", "Hm."),
        Case('<|inner_prefix|>Hm.<|tools_prefix|>[{"now": {}}]<|tools_suffix|> So late.<|inner_suffix|>Late.', [("now", {})], "Late.", "Hm.So late.")],
    "cohere_command3": [
        Case('<|START_THINKING|>Ask.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "7", "tool_name": "tide", "parameters": {"port": "Brest"}}\n]<|END_ACTION|>', [BREST], reasoning="Ask.", ids=["7"]),
        Case("<|START_RESPONSE|>High.<|END_RESPONSE|>", content="High."),
        Case('<|START_ACTION|>[{"tool_call_id": "7", "tool_name": "now", "note": 1}]<|END_ACTION|>', [("now", {})], ids=["7"]),
    ],
    "llama3_json": [
        Case('<|python_tag|>{"name": "tide", "parameters": {"port": "Brest"}}; {"name": "now", "parameters": {}}<|eom_id|>', [BREST, ("now", {})]),
        Case('{"name": "tide", "parameters": {"port": "Brest"}}', [BREST], tools=None),
        Case('{"name": "Ann", "age": 7}', content='{"name": "Ann", "age": 7}'),
        Case('{"name": "tide", "parameters": {"port": "Brest"}}\n{"name": "now", "parameters": {}}', [BREST, ("now", {})]),
        Case('{"name": "tide", "parameters": {"port": "Brest"}}; {"name": "now", "parameters": {}}\n', [BREST, ("now", {})]),
        Case('{"name": "tide", "parameters": {"port": "Brest"}}\n{"port": 1}', [BREST], content='\n{"port": 1}'),
        Case('{"name": "tide", "parameters": {"port": "Brest"}}\nDone.', [BREST], content='\nDone.'),
        Case('Let me look. {"name": "tide", "parameters": {"port": "Brest"}} Soon.', [BREST], content="Let me look.  Soon."),
        Case('Such as {"name": "Ann"} or {"port": {"name": 1}} and {a}, {', content='Such as {"name": "Ann"} or {"port": {"name": 1}} and {a}, {'),
        Case('Such as {"name": "Ann"}', content='Such as {"name": "Ann"}', tools=None),
        Case('Wait: {"name": "tide", "par', content="Wait:"),
        Case("{an open brace", content="{an open brace"),
        Case('{"port": "Brest", "na', content='{"port": "Brest", "na'),
    ],
    "gigachat3": [Case('One moment.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "tide", "arguments": {"port": "Brest"}}', [BREST], content="One moment.")],
    "deepseek": deepseek_cases(True),
    "deepseek_v3": deepseek_cases(True),
    "deepseek_r1": deepseek_cases(True)[1:],
    "deepseek_v31": deepseek_cases(False),
    "deepseek_v32": dsml_cases("function_calls"),
    "deepseek_v4": dsml_cases("tool_calls"),
    "deepseek_v41": dsml_cases(" calls", " "),
    "dots": invoke_cases("<dots_function_call>", "</dots_function_call>"),
    "glm45": [*glm_cases(between="\n"), Case("More<tool_call>now\n</tool_call>", [("now", {})], reasoning="More", prefix="<think>")],
    "glm47": glm_cases(),
    "ling3": [*glm_cases(between="\n"), Case("<think>Ebb.</think>Low.", content="Low.", reasoning="Ebb.")],
    "poolside_v1": glm_cases(between="\n"),
    "hy_v3": [Case(f"<tool_calls>{case.text}</tool_calls>", case.calls) for case in glm_cases(between="<tool_sep>")],
    "hy_v4": [Case('<tool_calls:opensource><tool_call:opensource>tide<arg_key:opensource>port</arg_key:opensource><arg_value:opensource>Brest</arg_value:opensource></tool_call:opensource></tool_calls:opensource>', [BREST]), *(Case(f"<tool_calls>\n{case.text}\n</tool_calls>", case.calls) for case in glm_cases(between="<tool_sep>"))],
    "k2_horizon": [Case("Hm.</ifm|think_fast>Yes.", content="Yes.", reasoning="Hm."), *(Case(f"<ifm|tool_calls>{case.text}</ifm|tool_calls>", case.calls, prefix="<ifm|think></ifm|think>") for case in glm_cases("<ifm|tool_call>", "</ifm|tool_call>", tag="ifm|"))],
    "kimi_k2": [
        Case('So.<|tool_calls_section_begin|> er <|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>', [("now", {})], "So.", ids=["functions.now:0"]),
        Case('<|tool_calls_section_begin|> is a marker.', content="<|tool_calls_section_begin|> is a marker."),
        Case('<think>Ask.<|tool_call_begin|>functions.tide:0<|tool_call_argument_begin|>{"port": "Brest"}<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}', [BREST, ("now", {})], reasoning="Ask.", ids=["functions.tide:0", "functions.now:1"]),
        Case('<think>Ask.</think>Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.tide:0<|tool_call_argument_begin|>{"port": "Brest"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>', [BREST, ("now", {})], "Sure.", "Ask.", ids=["functions.tide:0", "functions.now:1"]),
    ],
    "kimi_k3": [
        Case(k3("think", body="Ask.") + k3("response", body="Sure.") + k3("tools", body=k3("call", ' tool="tide" index="1"', k3("argument", ' key="port" type="string"', "Brest") + k3("argument", ' key="hours" type="number"', "6"))), [("tide", {"port": "Brest", "hours": 6})], "Sure.", "Ask."),
    ],
    "mistral": [
        Case('[TOOL_CALLS]tide[ARGS]{"port": "Brest"}[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}', [BREST, ("now", {})], ids=["", "abc123def"]),
        Case('[TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}, "id": "abc123def"}]</s>', [BREST]),
        Case('[TOOL_CALLS] [TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST]),
        Case("[TOOL_CALLS] 42"),
        Case("[THINK]Say [TOOL_CALLS] aloud?[/THINK]No.", content="No.", reasoning="Say [TOOL_CALLS] aloud?"),
    ],
    "minimax_m2": [
        *invoke_cases("<minimax:tool_call>", "</minimax:tool_call>"),
        Case('<minimax:tool_call>\n<invoke name="ferry">\n<parameter name="n">1</parameter>\n</invoke>\n</minimax:tool_call>'),
        Case('<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter>\n</invoke>\n</minimax:tool_call>', [("f", {"n": "1"})], tools=None),
    ],
    "minimax_m3": [
        Case(f'Ok.{M3}<tool_call>\n{M3}<invoke name="tide">{M3}<port>a < b{M3}</port>{M3}<hours>6{M3}</hours>{M3}<extra>{M3}<depth>2.5{M3}</depth>{M3}</extra>{M3}<tags>{M3}<item>x{M3}</item>{M3}<item>y{M3}</item>{M3}</tags>{M3}</invoke>\n{M3}</tool_call>', [("tide", {"port": "a < b", "hours": 6, "extra": {"depth": 2.5}, "tags": ["x", "y"]})], content="Ok."),
        Case("<mm:think>Hm.</mm:think>Yes.", content="Yes.", reasoning="Hm."),
        Case(f'{M3}<tool_call>\n{M3}<invoke name="tide">{M3}<hours>06{M3}</hours>{M3}<tags>{M3}</tags>{M3}<extra>{M3}</extra>{M3}</invoke>\n{M3}</tool_call>', [("tide", {"hours": 6, "tags": [], "extra": {}})]),
        Case(f'{M3}<tool_call>\n{M3}<invoke name="tide">{M3}<extra>{M3}<depth>2{M3}</depth>oh{M3}</extra>{M3}</invoke>\n{M3}</tool_call>Done.', [("tide", {"extra": {"depth": 2}})], content="Done."),
        # several elements of one name are a list, where no schema says otherwise
        Case(f'{M3}<tool_call>\n{M3}<invoke name="f">{M3}<o>{M3}<k>1{M3}</k>{M3}<k>{M3}<z>2{M3}</z>{M3}</k>{M3}<j>x{M3}</j>{M3}</o>{M3}</invoke>\n{M3}</tool_call>', [("f", {"o": {"k": [1, {"z": 2}], "j": "x"}})], tools=None),
        Case(f'{M3}<tool_call>\n{M3}<invoke name="f">{M3}<o>{M3}<k>1{M3}</k>{M3}<k>2{M3}</k>oh{M3}</o>{M3}</invoke>\n{M3}</tool_call>', [("f", {"o": {"k": [1, 2]}})], tools=None),
        Case(f'{M3}<tool_call>\n{M3}<invoke name="tide">{M3}<port>Brest{M3}</invoke>\n{M3}</tool_call>', [BREST]),
    ],
    "minicpm5": [
        Case('So: <function name="tide"><param name="port">Brest</param><param name="hours">6</param></function> done', [("tide", {"port": "Brest", "hours": 6})], content="So:  done"),
        Case('<function name="ferry"><param name="port">Brest</param></function>', content='<function name="ferry"><param name="port">Brest</param></function>'),
    ],
    "muse": [
        Case(' to=self<|message|>Hm.<|eom|><|start|>assistant to=tide<|message|><atem:function_calls>\n<atem:invoke name="tide">\n<atem:parameter name="port">Brest</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Done.<|eot|>', [BREST], content="Done.", reasoning="Hm."),
        Case(' to=tide<|message|><atem:function_calls>\n<atem:invoke name="tide">\n<atem:parameter name="port">Brest</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>', [BREST]),
        Case(" to=user<|message|>Set to=9 and<|eot|>", content="Set to=9 and"),
        Case(' to=tide.tide<|message|><atem:function_calls>\n<atem:invoke name="tide.tide">\n<atem:parameter name="port">Brest</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>', [BREST]),
        # a call that the reader is only shown
        Case(' to=user<|message|>Write <atem:function_calls>\n<atem:invoke name="tide">\n</atem:invoke></atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls><|eot|>', [("now", {})], content='Write <atem:function_calls>\n<atem:invoke name="tide">\n</atem:invoke></atem:function_calls>'),
        Case(' to=self<|message|>Hm.<|eom|> to=user<|message|>Yes.<|eot|>', content="Yes.", reasoning="Hm."), *invoke_cases("<atem:function_calls>", "</atem:function_calls>", "atem:"),
    ],
    "plamo3": [
        Case('<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|><|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>tide<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"port": "Brest"}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>', [BREST], reasoning="Hm."),
    ],
    "qwen3_coder": [*coder_cases("<tool_call>", "</tool_call>"), Case('<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>', [BREST])],
    "mimo": [
        Case("<tool_call><function=tide><parameter=port>Brest</parameter><parameter=hours>6</parameter></function></tool_call>", [("tide", {"port": "Brest", "hours": 6})]),
        Case("Sure.<tool_call><function=tide><parameter=port>\n Brest\n</parameter></function></tool_call>", [("tide", {"port": "\n Brest\n"})], "Sure."),
    ],
    "step3p5": [case._replace(prefix=case.prefix or "<think></think>") for case in coder_cases("<tool_call>", "</tool_call>")],
    "seed_oss": coder_cases("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
    "step3": [
        Case('</think><｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="tide"><steptml:parameter name="port">Brest</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>', [BREST]),
        Case('Hm.</think><｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="tide"><steptml:parameter name="port">Brest</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>', [BREST], reasoning="Hm.", prefix="<think>")],
    "lfm2": [
        *python_cases("<|tool_call_start|>", "<|tool_call_end|>"), Case('<|tool_call_start|>[{"name": "tide", "arguments": {"port": "Brest"}}]<|tool_call_end|>', [BREST])],
    "pythonic": [
        # quotes that were not escaped: a string ends where the call goes on behind it
        Case("[tide(port='sed -n '1,9p' x', note=\"say \"hi\" to (b\", hours=6)]", [("tide", {"port": "sed -n '1,9p' x", "note": 'say "hi" to (b', "hours": 6})]),
        Case("[tide(port='f('a')', tags=['it's', 'b'])]", [("tide", {"port": "f('a')", "tags": ["it's", "b"]})]),
        Case("[tide(port=f'Brest', note=rb\"x\", extra=f)]", [("tide", {"port": "Brest", "note": "x", "extra": "f"})]),
        Case("See [here] and [tide(port='Brest')] or [ferry()] and [now()]: [", [BREST, ("now", {})], content="See [here] and  or [ferry()] and : ["),
        # sets are lists
        Case("[tide(tags={'a', 'b'}, extra={'depth': {1, 2.5}, 'none': {}}), tide(tags={'c'})]", [("tide", {"tags": ["a", "b"], "extra": {"depth": [1, 2.5], "none": {}}}), ("tide", {"tags": ["c"]})]),
        *python_cases("", ""), *python_cases("<|python_start|>", "<|python_end|>"), Case("[1] See the tables (2020).", content="[1] See the tables (2020).")],
    "olmo3": python_cases("<function_calls>\n", "\n</function_calls>", ""),
    "gemma4": [
        Case('<|channel>thought\nHm.<channel|>Ok. <|tool_call>call:tide{port:<|"|>Brest, "F"<|"|>,hours:6,tags:[<|"|>x<|"|>],extra:{depth:2.5}}<tool_call|>', [("tide", {"port": 'Brest, "F"', "hours": 6, "tags": ["x"], "extra": {"depth": 2.5}})], "Ok.", "Hm."),
        Case("<|tool_call>call:now{}<tool_call|><|tool_call>call:tide{port:Brest}<tool_call|>", [("now", {}), BREST]),
        # the closing quote is forgotten: the call's end, or brackets that nothing in the string opened, end it
        Case('<|tool_call>call:tide{port:<|"|>Brest}<tool_call|><|tool_call>call:tide{port:<|"|>Nantes<|"|>}<tool_call|>', [("tide", {"port": "Brest"}), ("tide", {"port": "Nantes"})]),
        Case('<|tool_call>call:tide{port:{of:[<|"|>f(x)}]}}<tool_call|>', [("tide", {"port": {"of": ["f(x)"]}})]),
        Case('<|tool_call>call:tide{port:<|"|>Brest )', [("tide", {"port": "Brest "})]),
        Case('<|tool_call>call:tide{port:<|"|>f(x)', [("tide", {"port": "f(x)"})]),
        Case('<|tool_call>call:tide{port:<|"|>Brest  ', [("tide", {"port": "Brest"})]),
        Case('<|tool_call>call:tide{port:<|"|>Brest  <|"|>}<tool_call|>', [("tide", {"port": "Brest  "})]),
        Case('<|tool_call>:tide(port:<|"|>Brest<|"|>)<tool_call|>', [("tide", {"port": "Brest"})]),
        # the opening quote is forgotten
        Case('<|tool_call>call:tide{port:Brest, harbour 5<|"|>,hours:6,tags:[<|"|>x<|"|>,y<|"|>]}<tool_call|>', [("tide", {"port": "Brest, harbour 5", "hours": 6, "tags": ["x", "y"]})]),
        Case('<|tool_call>call:tide{extra:{of:the, sea<|"|>},hours:6}<tool_call|>', [("tide", {"extra": {"of": "the, sea"}, "hours": 6})]),
    ],
    "functiongemma": [Case("<start_function_call>call:tide{port:<escape>Brest<escape>,metric:true}<end_function_call>", [("tide", {"port": "Brest", "metric": True})])],
    "beam": [
        Case('<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=tide<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="port">\nBrest\n</rfl:parameter><rfl:parameter name="hours">\n6\n</rfl:parameter><|end|><|start|>assistant to=now<|channel|>analysis <|constrain|>xml<|message|><|call|>', [("tide", {"port": "Brest", "hours": 6}), ("now", {})], reasoning="Hm."),
        Case('<|start|>assistant to=tide<|channel|>analysis<|message|><rfl:parameter name="port">\nBrest\n</rfl:parameter><|end|><|start|>', [BREST]),
        Case("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", content="Yes.", reasoning="Hm."),
    ],
    "openai": [
        Case('<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"port": "Brest"}<|call|>', [BREST], reasoning="Hm."),
        Case("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", content="Yes.", reasoning="Hm."),
        Case("<|channel|>commentary to=browser.search<|message|>x<|call|><|start|>assistant<|channel|>final<|message|>Yes.", content="Yes."),
        # a channel's name between two messages
        Case('<|channel|>commentary to=functions.now<|message|>{}<|call|>commentary<|channel|>commentary to=functions.now<|message|>{}<|call|>commentary<|channel|>final<|message|>final<|return|>final say', [("now", {}), ("now", {})], content="finalfinal say"),
    ],
    "functionary_v3_2": [Case('>>>all\nLet me see.>>>tide\n{"port": "Brest"}<|eot_id|>', [BREST], content="Let me see."), Case(">>>all\nIn Python:\n>>> now()\n", content="In Python:\n>>> now()\n")],
    "inkling": [
        Case('<|message_model|><|content_thinking|>Hm.<|end_message|><|message_model|>tide<|content_invoke_tool_json|>{"name": "tide", "args": {"port": "Brest"}}<|end_message|>', [BREST], reasoning="Hm."),
        Case("<|content_text|>Hello there.<|end_message|>", content="Hello there."),
        Case("<|content_tool_error|>No such port.<|end_message|>", content="No such port."),
        Case('search<|content_invoke_tool_text|>the "web"\n<|end_message|>', [("search", {"text": 'the "web"\n'})], tools=None),
        # a call whose header names no function is none
        Case("<|content_invoke_tool_text|>the web<|end_message|>", content="the web", tools=None),
    ],
    "nemotron_v2": [Case('Hm.</think><TOOLCALL>[{"name": "tide", "arguments": {"port": "Brest"}}, {"name": "now", "arguments": {}}]</TOOLCALL>', [BREST, ("now", {})], reasoning="Hm.", prefix="<think>")],
    "generic": [
        *json_cases("<tool_call>\n", "\n</tool_call>"),
        Case('[TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}}]', [BREST]),
        Case('<function=tide>{"port": "Brest"}</function>', [BREST]),
        Case("<thought>Hm.</thought>Yes.", content="Yes.", reasoning="Hm."),
    ],
}  # fmt: skip
