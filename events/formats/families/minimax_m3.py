"""MiniMax M3: calls are nested XML with `]<]minimax[>[` before every tag; the schema determines the types."""

from __future__ import annotations

from events.formats.family import Family, Sign, calls
from events.formats.output_format import Arguments, OutputFormat, Tools
from events.formats.samples import BREST, Sample
from events.formats.shapes import think

_TAG = "]<]minimax[>["
REASONING = think(start="<mm:think>", end="</mm:think>")
MINIMAX_M3 = OutputFormat(
    name="minimax_m3",
    reasoning=REASONING,
    tools=Tools(
        style="tag",
        section_start=f"{_TAG}<tool_call>\n",
        section_end=f"{_TAG}</tool_call>",
        name_prefix=f'{_TAG}<invoke name="',
        name_suffix='">',
        arguments=Arguments(style="nested", element_prefix=_TAG, end=f"{_TAG}</invoke>\n"),
    ),
)

SAMPLES = {
    "minimax_m3": [
        Sample(
            f'Ok.{_TAG}<tool_call>\n{_TAG}<invoke name="tide">{_TAG}<port>a < b{_TAG}</port>{_TAG}<hours>6'
            f"{_TAG}</hours>{_TAG}<extra>{_TAG}<depth>2.5{_TAG}</depth>{_TAG}</extra>{_TAG}<tags>{_TAG}<item>x"
            f"{_TAG}</item>{_TAG}<item>y{_TAG}</item>{_TAG}</tags>{_TAG}</invoke>\n"
            f"{_TAG}</tool_call>",
            [("tide", {"port": "a < b", "hours": 6, "extra": {"depth": 2.5}, "tags": ["x", "y"]})],
            content="Ok.",
        ),
        Sample("<mm:think>Hm.</mm:think>Yes.", content="Yes.", reasoning="Hm."),
        Sample(
            f'{_TAG}<tool_call>\n{_TAG}<invoke name="tide">{_TAG}<hours>06{_TAG}</hours>{_TAG}<tags>{_TAG}'
            f"</tags>{_TAG}<extra>{_TAG}</extra>{_TAG}</invoke>\n{_TAG}</tool_call>",
            [("tide", {"hours": 6, "tags": [], "extra": {}})],
        ),
        Sample(
            f'{_TAG}<tool_call>\n{_TAG}<invoke name="tide">{_TAG}<extra>{_TAG}<depth>2{_TAG}</depth>oh{_TAG}'
            f"</extra>{_TAG}</invoke>\n{_TAG}</tool_call>Done.",
            [("tide", {"extra": {"depth": 2}})],
            content="Done.",
        ),
        Sample(
            f'{_TAG}<tool_call>\n{_TAG}<invoke name="f">{_TAG}<o>{_TAG}<k>1{_TAG}</k>{_TAG}<k>{_TAG}<z>2'
            f"{_TAG}</z>{_TAG}</k>{_TAG}<j>x{_TAG}</j>{_TAG}</o>{_TAG}</invoke>\n"
            f"{_TAG}</tool_call>",
            [("f", {"o": {"k": [1, {"z": 2}], "j": "x"}})],
            tools=None,
        ),
        Sample(
            f'{_TAG}<tool_call>\n{_TAG}<invoke name="f">{_TAG}<o>{_TAG}<k>1{_TAG}</k>{_TAG}<k>2{_TAG}</k>oh'
            f"{_TAG}</o>{_TAG}</invoke>\n{_TAG}</tool_call>",
            [("f", {"o": {"k": [1, 2]}})],
            tools=None,
        ),
        # Tags in a value, where they are text and not tokens.
        Sample(
            f'{_TAG}<tool_call>\n{_TAG}<invoke name="tide">{_TAG}<port>a {_TAG}<tool_call> b {_TAG}</invoke> c{_TAG} d '
            f'{_TAG}<invoke name="now">{_TAG}</port>{_TAG}<hours>6{_TAG}</hour>{_TAG}</invoke>\n{_TAG}</tool_call>',
            [
                (
                    "tide",
                    {"port": f'a {_TAG}<tool_call> b {_TAG}</invoke> c{_TAG} d {_TAG}<invoke name="now">', "hours": 6},
                )
            ],
        ),
        Sample(
            f'{_TAG}<tool_call>\n{_TAG}<invoke name="tide">{_TAG}<port>Brest{_TAG}</invoke>\n{_TAG}</tool_call>',
            [BREST],
        ),
    ],
}

FAMILY = Family(
    formats=(MINIMAX_M3,),
    reasoning={"minimax-m3": REASONING},
    signs=(
        Sign(
            name="minimax_m3",
            what="every tag of a call is announced by ]<]minimax[>[",
            test=lambda evidence: _TAG in evidence.call,
            apply=calls(MINIMAX_M3),
            used_for="its calls",
        ),
    ),
    samples=SAMPLES,
)
