"""MiniMax M3: calls are nested XML whose every tag is announced by `]<]minimax[>[`, typed by the schema."""

from __future__ import annotations

from events.formats.output_format import Arguments, OutputFormat, Tools
from events.formats.reasoning import REASONING

FORMAT = OutputFormat(
    name="minimax_m3",
    reasoning=REASONING["minimax-m3"],
    tools=Tools(
        style="tag",
        section_start="]<]minimax[>[<tool_call>\n",
        section_end="]<]minimax[>[</tool_call>",
        name_prefix=']<]minimax[>[<invoke name="',
        name_suffix='">',
        arguments=Arguments(style="nested", element_prefix="]<]minimax[>[", end="]<]minimax[>[</invoke>\n"),
    ),
)
