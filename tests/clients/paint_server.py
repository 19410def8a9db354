"""An MCP server over standard input and output, with one tool: `python paint_server.py FILE`. It makes FILE when it has
been asked for its tools. It imports little, so that agents need not wait for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCHEMA = {
    "type": "object",
    "properties": {"one": {"type": "string"}, "other": {"type": "string"}},
    "required": ["one", "other"],
}
TOOL = {"name": "mix", "description": "Mix two colours of paint.", "inputSchema": SCHEMA}

for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            version = asked["params"]["protocolVersion"]
            named = {"name": "paint", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": named}
        case "tools/list":
            result = {"tools": [TOOL]}
            Path(sys.argv[1]).touch()
        case "tools/call":
            colours = asked["params"]["arguments"]
            text = f"{colours['one']} and {colours['other']} give purple."
            result = {"content": [{"type": "text", "text": text}]}
        case _:
            result = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
