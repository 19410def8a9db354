"""One row for each route: its purpose, its request and its responses.

A route without a row, or a row without a route, fails tests/http/routes/test_openapi.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ag_ui.core import AgentCapabilities, Event, RunAgentInput

from adapters import (
    anthropic_messages,
    llamacpp_completion,
    ollama,
    openai_chat,
    openai_completions,
    openai_decisions,
    openai_embeddings,
    openai_responses,
    openai_transcriptions,
    rerank,
)
from adapters import tokenize as tokenizing
from agent_server.http.openapi import answers
from agent_server.http.openapi.operation import Envelope, Fields, FreeForm, Operation
from agent_server.http.routes.health_routes import ReplicaChange
from agent_server.http.routes.mcp_routes import CompletionRequest, PromptRequest, ResourceRequest
from agent_server.http.routes.models_routes import AdapterRecord, ModelAction, ModelChange, NewAdapter
from agent_server.http.routes.threads_routes import Branch, Change, ErasureStatus, MessageFeedback
from agent_server.models.pool import ModelState
from agent_server.runs.store.records import FeedbackRecord, Removal, RunRecord, ThreadRecord

DONE = "[DONE]"
HELLO = [{"role": "user", "content": "What can you do?"}]
TEXT: Mapping[str, object] = {"type": "string"}
LIST: Mapping[str, object] = {"type": "array"}
FLAG: Mapping[str, object] = {"type": "string", "enum": ["true", "false"]}
NUMBER: Mapping[str, object] = {"type": "integer", "minimum": 0}
PAGES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "limit": ({"type": "integer", "minimum": 1, "maximum": 100}, "20 by default."),
    "order": ({"type": "string", "enum": ["asc", "desc"]}, "desc by default."),
    "after": (TEXT, "The id of the last item that the client has."),
}
JSON_RPC_ERROR: Mapping[str, Mapping[str, object]] = {
    "application/json": {
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}, "error": {"type": "object", "required": ["code", "message"]}},
        "required": ["jsonrpc", "error"],
    }
}
CONVERSATION = FreeForm(properties={"items": LIST, "metadata": {"type": "object"}})
AFTER = {"after": (NUMBER, "The number of the last event that the client has; same as `Last-Event-ID`.")}
RUN_INPUT_EXAMPLE = {
    "threadId": "thread-1",
    "runId": "run-1",
    "messages": [{"id": "m1", "role": "user", "content": "What can you do?"}],
    "tools": [],
    "context": [],
    "state": {},
    "forwardedProps": {},
}
RUN = Operation(
    "AG-UI",
    "Run an agent and stream its events",
    "Takes a RunAgentInput; `forwardedProps` may have sampling parameters. The stream is server-sent events, or "
    "AG-UI's protobuf if `Accept` requests it. With `Prefer: respond-async` the answer is 202 with the run's URL in "
    "`Location`, and the run continues without a reader; a `Webhook-Url` is then notified of its end.",
    body=RunAgentInput,
    stream=Event,
    accepts=("application/vnd.ag-ui.event+proto",),
    example=RUN_INPUT_EXAMPLE,
)
CAPABILITIES = Operation("AG-UI", "The capabilities of an agent and its model", answer=AgentCapabilities)
CALL = FreeForm("A call of CopilotKit's single endpoint.", {"method": TEXT, "params": {}, "body": {}}, ("method",))
THREAD_PAGE = Envelope("threads", ThreadRecord, many=True, extra={"nextCursor": {"type": ["string", "null"]}})
COPILOT_THREAD = FreeForm("A thread as CopilotKit lists it.")
RUN_BODY = FreeForm("A RunAgentInput in CopilotKit's spelling, with `messages`.", {"messages": {"type": "array"}})


def _control(summary: str) -> Operation:
    return Operation("Runs", summary, answer=answers.RunStatus, status=202)


AGUI: Mapping[tuple[str, str], Operation] = {
    ("POST", "/agui"): RUN,
    ("POST", "/agui/{agent}"): RUN,
    ("POST", "/ai-sdk/{agent}"): Operation(
        "AI SDK",
        "Run an agent and stream its answer as a UI message",
        "Takes the body that `DefaultChatTransport` of npm's `ai` posts; the stream is its UI message stream.",
        body=FreeForm("A chat.", {"id": TEXT, "messages": LIST, "tools": {}, "system": TEXT}, ("id", "messages")),
        stream=FreeForm("A chunk of the UI message stream."),
        end_mark=DONE,
        example={"id": "chat-1", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]},
    ),
    ("GET", "/ai-sdk/{agent}/{chat_id}/stream"): Operation(
        "AI SDK",
        "Read the active answer from its start",
        "204 if there is no active answer.",
        stream=FreeForm("A chunk of the UI message stream."),
        end_mark=DONE,
        answers_also=(204,),
    ),
    ("POST", "/ai-sdk/{agent}/{chat_id}/stop"): Operation(
        "AI SDK", "Stop a chat's active runs", answer=FreeForm(properties={"stopped": {"type": "boolean"}})
    ),
    ("GET", "/agui/capabilities"): CAPABILITIES,
    ("GET", "/agui/{agent}/capabilities"): CAPABILITIES,
    ("GET", "/agui/runs/{run_id}"): Operation("Runs", "A run's state", answer=answers.RunStatus),
    ("GET", "/agui/runs/{run_id}/events"): Operation(
        "Runs",
        "Read a run's events from any position, and live while it is active",
        stream=Event,
        accepts=("application/vnd.ag-ui.event+proto",),
        query={**AFTER, "protocolVersion": (TEXT, "The client's version of AG-UI; by default the run's own.")},
    ),
    ("POST", "/agui/runs/{run_id}/cancel"): _control("Cancel a run; its output so far is stored"),
    ("POST", "/agui/runs/{run_id}/pause"): _control("Pause a run's generation"),
    ("POST", "/agui/runs/{run_id}/resume"): _control("Resume a paused run"),
    ("POST", "/agui/runs/{run_id}/modify"): Operation(
        "Runs",
        "Change sampling parameters for the following tokens",
        body=FreeForm("Sampling parameters by name."),
        answer=answers.RunStatus,
        status=202,
        example={"temperature": 0.2},
    ),
    ("GET", "/agui/mcp"): Operation(
        "AG-UI",
        "The agents' MCP servers, with their tools, resources and prompts",
        answer=FreeForm("", {"servers": LIST}, ("servers",)),
    ),
    ("POST", "/agui/mcp/prompt"): Operation(
        "AG-UI",
        "A prompt of an MCP server, filled in, as messages for a run",
        body=PromptRequest,
        answer=FreeForm("", {"messages": LIST}, ("messages",)),
    ),
    ("POST", "/agui/mcp/resource"): Operation(
        "AG-UI",
        "A resource of an MCP server, as content for a message",
        body=ResourceRequest,
        answer=FreeForm("", {"uri": TEXT, "content": LIST}, ("uri", "content")),
    ),
    ("POST", "/agui/mcp/complete"): Operation(
        "AG-UI",
        "Values that an MCP server suggests for an argument of a prompt or a variable of a resource template",
        body=CompletionRequest,
        answer=FreeForm(
            "",
            {"values": LIST, "total": {"type": ["integer", "null"]}, "hasMore": {"type": "boolean"}},
            ("values", "total", "hasMore"),
        ),
    ),
    ("GET", "/.well-known/agent-card.json"): Operation(
        "Agents", "The first agent's A2A card", answer=FreeForm("A card.")
    ),
    ("GET", "/a2a/{agent}/.well-known/agent-card.json"): Operation(
        "Agents", "An agent's A2A card", answer=FreeForm("A card.")
    ),
    ("POST", "/a2a/{agent}"): Operation(
        "Agents",
        "An agent over A2A (JSON-RPC); A2A's specification describes it",
        body=FreeForm("A JSON-RPC message."),
        answer=FreeForm("A JSON-RPC message, or a stream of them."),
        refusals=JSON_RPC_ERROR,
    ),
    ("POST", "/mcp"): Operation(
        "Agents",
        "The agents as tools of an MCP server (streamable HTTP); MCP's specification describes it",
        body=FreeForm("A JSON-RPC message."),
        answer=FreeForm("A JSON-RPC message, or a stream of them."),
        refusals=JSON_RPC_ERROR,
    ),
    ("GET", "/mcp"): Operation(
        "Agents",
        "Messages of the MCP server that answer no request",
        answer=FreeForm("A stream."),
        refusals=JSON_RPC_ERROR,
    ),
    ("DELETE", "/mcp"): Operation(
        "Agents", "End a session of the MCP server", answer=FreeForm(""), refusals=JSON_RPC_ERROR
    ),
    ("GET", "/oauth/callback"): Operation(
        "AG-UI",
        "The redirect target after a user has signed in to an MCP server",
        answer="text/html",
        refusals={"text/html": {"type": "string"}},
        query={
            "state": (TEXT, "Identifies the sign-in."),
            "code": (TEXT, "Exchanged for a token."),
            "iss": (TEXT, "The authorization server (RFC 9207)."),
            "error": (TEXT, "Why the sign-in failed."),
        },
    ),
    ("GET", "/agui/threads"): Operation(
        "Threads",
        "Threads, the newest first",
        answer=THREAD_PAGE,
        query={
            "agentId": (TEXT, "Only threads of this agent."),
            "archived": (FLAG, "true lists archived threads."),
            "limit": ({"type": "integer", "minimum": 1, "maximum": 100}, "50 by default."),
            "cursor": (TEXT, "`nextCursor` of the previous page."),
        },
    ),
    ("GET", "/agui/threads/{thread_id}"): Operation(
        "Threads",
        "A thread with its messages, state and open interrupts",
        answer=Envelope(
            "thread",
            ThreadRecord,
            extra={"messages": LIST, "state": {}, "interrupts": LIST, "running": LIST, "waiting": LIST},
        ),
    ),
    ("PATCH", "/agui/threads/{thread_id}"): Operation(
        "Threads", "Rename, archive or annotate a thread", body=Change, answer=Envelope("thread", ThreadRecord),
        example={"name": "Weather in Oslo"},
    ),
    ("DELETE", "/agui/threads/{thread_id}"): Operation("Threads", "Delete a thread", status=204),
    ("GET", "/agui/threads/{thread_id}/messages"): Operation(
        "Threads", "Its messages", answer=FreeForm("", {"messages": {"type": "array"}}, ("messages",))
    ),
    ("DELETE", "/agui/threads/{thread_id}/messages/{message_id}"): Operation(
        "Threads", "Delete a message; it can be restored", status=204
    ),
    ("GET", "/agui/threads/{thread_id}/removed"): Operation(
        "Threads", "Messages that edits of the history removed", answer=Envelope("removed", Removal, many=True)
    ),
    ("POST", "/agui/threads/{thread_id}/removed/{removal_id}/restore"): Operation(
        "Threads", "Restore what an edit removed", answer=FreeForm("", {"messages": LIST}, ("messages",))
    ),
    ("POST", "/agui/threads/{thread_id}/branch"): Operation(
        "Threads", "Create a thread with its messages up to one of them", body=Branch,
        answer=Envelope("thread", ThreadRecord), status=201, example={"messageId": "m1"},
    ),
    ("GET", "/agui/threads/{thread_id}/state"): Operation(
        "Threads", "Its shared state", answer=FreeForm("", {"state": {}}, ("state",))
    ),
    ("GET", "/agui/threads/{thread_id}/runs"): Operation(
        "Threads", "Its runs", answer=Envelope("runs", RunRecord, many=True)
    ),
    ("GET", "/agui/threads/{thread_id}/feedback"): Operation(
        "Threads", "Ratings of its messages", answer=Envelope("feedback", FeedbackRecord, many=True)
    ),
    ("POST", "/agui/threads/{thread_id}/feedback"): Operation(
        "Threads", "Rate a message", body=MessageFeedback, answer=Envelope("feedback", FeedbackRecord), status=201,
        example={"messageId": "m1", "score": 1},
    ),
}  # fmt: skip

COPILOTKIT: Mapping[tuple[str, str], Operation] = {
    ("POST", "/copilotkit/transcribe"): Operation(
        "CopilotKit",
        "Transcribe a recording, the form's file `audio`",
        body=FreeForm("A form with a file.", {"audio": {"type": "string", "format": "binary"}}, ("audio",)),
        form=True,
        answer=answers.TranscribedText,
    ),
    ("POST", "/copilotkit"): Operation("CopilotKit", "The single endpoint", body=CALL, answer=FreeForm(), stream=Event,
                                       example={"method": "info"}),
    ("POST", "/copilotkit/"): Operation("CopilotKit", "The single endpoint", body=CALL, answer=FreeForm(), stream=Event,
                                        example={"method": "info"}),
    ("GET", "/copilotkit/info"): Operation("CopilotKit", "Agents, versions and enabled features", answer=FreeForm()),
    ("POST", "/copilotkit/agent/{agent}/run"): Operation(
        "CopilotKit", "Run an agent", body=RUN_BODY, stream=Event, example=RUN_INPUT_EXAMPLE
    ),
    ("POST", "/copilotkit/agent/{agent}/suggest"): Operation(
        "CopilotKit", "Suggest what to say next, in a run that is not stored", body=RUN_BODY, stream=Event,
        example=RUN_INPUT_EXAMPLE,
    ),
    ("GET", "/copilotkit/inspector-metadata"): Operation("CopilotKit", "No content", status=204),
    ("POST", "/copilotkit/threads/clear"): Operation("CopilotKit", "Delete all threads", status=204),
    ("POST", "/copilotkit/annotate"): Operation(
        "CopilotKit", "Refused: only CopilotKit's cloud has annotations", body=FreeForm(), answer=FreeForm(), status=422
    ),
    ("POST", "/copilotkit/agent/{agent}/connect"): Operation(
        "CopilotKit", "Replay a thread and follow its active runs", body=RUN_BODY, stream=Event,
        example=RUN_INPUT_EXAMPLE,
    ),
    ("POST", "/copilotkit/agent/{agent}/stop/{thread_id}"): Operation(
        "CopilotKit", "Stop a thread's active runs", body=FreeForm("Empty, or the run to stop."), answer=FreeForm()
    ),
    ("GET", "/copilotkit/threads"): Operation(
        "CopilotKit", "Threads", answer=FreeForm("A page of threads."),
        query={"agentId": (TEXT, ""), "includeArchived": (FLAG, ""), "limit": (NUMBER, ""), "cursor": (TEXT, "")},
    ),
    ("GET", "/copilotkit/threads/{thread_id}/messages"): Operation("CopilotKit", "Messages", answer=FreeForm()),
    ("GET", "/copilotkit/threads/{thread_id}/events"): Operation("CopilotKit", "Events of a replay", answer=FreeForm()),
    ("GET", "/copilotkit/threads/{thread_id}/state"): Operation("CopilotKit", "Shared state", answer=FreeForm()),
    ("POST", "/copilotkit/threads/{thread_id}/archive"): Operation("CopilotKit", "Archive", answer=COPILOT_THREAD),
    ("PATCH", "/copilotkit/threads/{thread_id}"): Operation(
        "CopilotKit", "Rename or archive", body=FreeForm("", {"name": TEXT, "archived": {"type": "boolean"}}),
        answer=COPILOT_THREAD,
    ),
    ("DELETE", "/copilotkit/threads/{thread_id}"): Operation("CopilotKit", "Delete", answer=FreeForm()),
}  # fmt: skip

OPENAI: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "OpenAI",
        "Chat Completions",
        "With `stream: true`, server-sent chunks and `[DONE]`.",
        body=Fields("ChatCompletionRequest", openai_chat.FIELDS, ("messages",)),
        answer=answers.ChatCompletion,
        stream=answers.ChatChunk,
        end_mark=DONE,
        example={"model": "default", "messages": HELLO, "max_tokens": 64},
    ),
    ("POST", "/v1/chat/completions/render"): Operation(
        "OpenAI",
        "The rendered prompt of a request, without an answer",
        body=Fields("ChatRenderRequest", openai_chat.FIELDS, ("messages",)),
        answer=answers.RenderedPrompt,
        example={"model": "default", "messages": HELLO},
    ),
    ("POST", "/v1/chat/completions/input_tokens"): Operation(
        "OpenAI",
        "The number of a prompt's tokens",
        body=Fields("ChatInputTokensRequest", openai_chat.FIELDS, ("messages",)),
        answer=answers.InputTokens,
        example={"model": "default", "messages": HELLO},
    ),
    ("POST", "/v1/decisions"): Operation(
        "OpenAI",
        "Predicates, choices and scores about one input, with probabilities",
        body=Fields("DecisionRequest", openai_decisions.FIELDS, ("input", "questions")),
        answer=answers.DecisionList,
        example={
            "model": "default",
            "input": "The parcel never arrived.",
            "questions": [{"type": "predicate", "instructions": "The customer complains."}],
        },
    ),
    ("POST", "/v1/embeddings"): Operation(
        "OpenAI",
        "Embeddings, if the server has an embedding model",
        body=Fields("EmbeddingRequest", openai_embeddings.FIELDS, ("input",)),
        answer=answers.EmbeddingList,
    ),
    ("POST", "/v1/rerank"): Operation(
        "OpenAI",
        "Rank documents by their relevance to a query, if the server has a reranker",
        body=Fields("RerankRequest", rerank.RERANK_FIELDS, ("query", "documents")),
        answer=answers.Ranking,
    ),
    ("POST", "/v2/rerank"): Operation(
        "OpenAI",
        "The same, at the path of Cohere's API version 2",
        body=Fields("RerankRequestV2", rerank.RERANK_FIELDS, ("query", "documents")),
        answer=answers.Ranking,
    ),
    ("POST", "/v1/score"): Operation(
        "OpenAI",
        "Score pairs of a query and a document, if the server has a reranker",
        body=Fields("ScoreRequest", rerank.SCORE_FIELDS, ()),
        answer=answers.Scores,
    ),
    ("POST", "/v1/audio/transcriptions"): Operation(
        "OpenAI",
        "Transcribe a recording, if the server has a transcription model",
        "Plain text if `response_format` is `text`.",
        body=Fields("TranscriptionRequest", openai_transcriptions.FIELDS, ("file",)),
        form=True,
        answer=answers.Transcription,
    ),
    ("POST", "/v1/completions"): Operation(
        "OpenAI",
        "Completions: the prompt is not rendered by a chat template",
        body=Fields("CompletionRequest", openai_completions.FIELDS, ("prompt",)),
        answer=answers.TextCompletion,
        stream=answers.TextCompletion,
        end_mark=DONE,
        example={"model": "default", "prompt": "Once upon a time", "max_tokens": 16},
    ),
    ("POST", "/v1/responses"): Operation(
        "OpenAI",
        "Responses",
        "With `stream: true`, typed, numbered events.",
        body=Fields("ResponsesRequest", openai_responses.FIELDS, ("input",)),
        answer=answers.Response,
        stream=answers.ResponseEvent,
        example={"model": "default", "input": "What can you do?", "max_output_tokens": 64},
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "OpenAI",
        "The number of a prompt's tokens",
        body=Fields("ResponsesInputTokensRequest", openai_responses.FIELDS, ("input",)),
        answer=answers.InputTokens,
        example={"model": "default", "input": "What can you do?"},
    ),
    ("POST", "/v1/responses/compact"): Operation(
        "OpenAI",
        "Compact a conversation to its user's messages and an encrypted summary",
        "Send the output as the input of the next response.",
        body=Fields("ResponsesCompactRequest", openai_responses.COMPACT_FIELDS, ()),
        answer=answers.CompactedResponse,
        example={"model": "default", "input": [{"role": "user", "content": "What can you do?"}]},
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "OpenAI",
        "A stored response",
        answer=answers.Response,
        stream=answers.ResponseEvent,
        query={
            "stream": (FLAG, "true streams its events."),
            "starting_after": (NUMBER, "With `stream`: the number of the last event that the client has."),
        },
    ),
    ("DELETE", "/v1/responses/{id}"): Operation("OpenAI", "Delete a stored response", answer=answers.DeletedObject),
    ("POST", "/v1/responses/{id}/cancel"): Operation("OpenAI", "Cancel a background response", answer=answers.Response),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "OpenAI",
        "The input items of a response",
        answer=answers.ItemPage,
        query=PAGES,
    ),
    ("POST", "/v1/conversations"): Operation(
        "OpenAI", "Create a conversation for responses to continue", body=CONVERSATION, answer=answers.Conversation
    ),
    ("GET", "/v1/conversations/{id}"): Operation("OpenAI", "A conversation", answer=answers.Conversation),
    ("POST", "/v1/conversations/{id}"): Operation(
        "OpenAI",
        "Change its metadata",
        body=FreeForm(properties={"metadata": {"type": "object"}}),
        answer=answers.Conversation,
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation("OpenAI", "Delete a conversation", answer=answers.DeletedObject),
    ("GET", "/v1/conversations/{id}/items"): Operation("OpenAI", "Its items", answer=answers.ItemPage, query=PAGES),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        "OpenAI",
        "Add items to it",
        body=FreeForm(properties={"items": LIST}, required=("items",)),
        answer=answers.ItemPage,
    ),
    ("GET", "/v1/conversations/{id}/items/{item}"): Operation("OpenAI", "One of them", answer=dict[str, Any]),
    ("DELETE", "/v1/conversations/{id}/items/{item}"): Operation(
        "OpenAI", "Delete one of them", answer=answers.Conversation
    ),
    ("GET", "/v1/models"): Operation("OpenAI", "The model, and each agent by its name", answer=answers.ModelList),
    ("GET", "/v1/models/{name}"): Operation("OpenAI", "One of them", answer=answers.Model),
}

OTHERS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/messages"): Operation(
        "Anthropic",
        "Messages",
        "With `stream: true`, the named events of a message.",
        body=Fields("MessagesRequest", anthropic_messages.FIELDS, ("messages", "max_tokens")),
        answer=answers.Message,
        stream=answers.MessageEvent,
        example={"model": "default", "max_tokens": 64, "messages": HELLO},
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Anthropic",
        "The number of a prompt's tokens",
        body=Fields("CountTokensRequest", anthropic_messages.FIELDS, ("messages",)),
        answer=answers.InputTokens,
        example={"model": "default", "messages": HELLO},
    ),
    ("POST", "/v1/generate"): Operation(
        "Generate",
        "The generation protocol's messages over HTTP",
        body=FreeForm(
            "`prompt` or `messages`, and sampling parameters.",
            {"prompt": TEXT, "messages": LIST, "options": {"type": "object"}, "stream": {"type": "boolean"}},
        ),
        answer=FreeForm("The completion message."),
        stream=dict,
        example={"prompt": "Once upon a time", "max_tokens": 16},
    ),
    ("POST", "/completion"): Operation(
        "Tokens", "llama.cpp's completion: the prompt is not rendered by a chat template",
        body=Fields("NativeCompletionRequest", llamacpp_completion.FIELDS, ("prompt",)),
        answer=answers.NativeCompletion, stream=answers.NativeCompletion,
        example={"prompt": "Once upon a time", "n_predict": 16},
    ),
    ("POST", "/apply-template"): Operation(
        "Tokens", "llama.cpp's rendering: the prompt of a conversation",
        body=Fields("ApplyTemplateRequest", openai_chat.FIELDS, ("messages",)), answer=answers.PromptText,
        example={"messages": [{"role": "user", "content": "Hello"}]},
    ),
    ("POST", "/tokenize"): Operation(
        "Tokens", "Convert text or a conversation to token ids", body=Fields("TokenizeRequest", tokenizing.FIELDS, ()),
        answer=answers.Tokens, example={"prompt": "Hello"},
    ),
    ("POST", "/detokenize"): Operation(
        "Tokens", "Convert token ids to text", answer=answers.DetokenizedText, example={"tokens": [1, 2, 3]},
        body=FreeForm("", {"tokens": {"type": "array", "items": NUMBER}, "model": TEXT}, ("tokens",)),
    ),
    ("GET", "/tokenizer_info"): Operation(
        "Tokens", "A tokenizer's special tokens and chat template, in vLLM's form", answer=answers.TokenizerInfo,
        query={"model": (TEXT, "")},
    ),
    ("GET", "/health"): Operation(
        "Operation", "The process answers", answer=FreeForm("", {"status": TEXT}, ("status",))
    ),
    ("GET", "/version"): Operation("Operation", "The server's version", answer=answers.Version),
    ("GET", "/load"): Operation("Operation", "The number of active runs", answer=answers.Load),
    ("GET", "/ready"): Operation(
        "Operation", "Whether runs can start", answer=answers.Readiness, answers_also=(503,)
    ),
    ("GET", "/openapi.json"): Operation("Operation", "This description", answer=FreeForm()),
    ("GET", "/docs"): Operation("Page", "The page that shows this description", answer="text/html"),
    ("GET", "/metrics"): Operation("Operation", "Prometheus' text format", answer="text/plain"),
    ("GET", "/operator/replicas"): Operation("Operation", "The replicas", answer=answers.Replicas),
    ("POST", "/operator/replicas"): Operation(
        "Operation", "Drain a replica, or take it back", body=ReplicaChange, answer=answers.Replicas,
        example={"name": "gpu1", "draining": True},
    ),
    ("DELETE", "/operator/threads"): Operation(
        "Operation", "Permanently remove all stored data of a tenant, or of one of its keys or users",
        answer=ErasureStatus,
        answers_also=(202,),
        query={"tenant": (TEXT, "Empty on a server without keys."), "key": (TEXT, "Only this key or user.")},
    ),
    ("GET", "/operator/erasures"): Operation(
        "Operation", "Active and recently finished erasures", answer=Envelope("erasures", ErasureStatus, many=True)
    ),
    ("GET", "/operator/erasures/{erasure_id}"): Operation(
        "Operation", "The progress of an erasure", answer=ErasureStatus
    ),
    ("GET", "/operator/models"): Operation(
        "Operation", "The models of a pool: which are loaded, used or idle",
        answer=Envelope("models", ModelState, many=True),
    ),
    ("POST", "/operator/models"): Operation(
        "Operation", "Load a model, or unload it once its generations are complete", body=ModelChange,
        answer=Envelope("models", ModelState, many=True), status=202, example={"name": "small", "loaded": False},
    ),
    ("GET", "/operator/adapters"): Operation(
        "Operation", "The served LoRA adapters", answer=Envelope("adapters", AdapterRecord, many=True)
    ),
    ("POST", "/operator/adapters"): Operation(
        "Operation", "Load a LoRA adapter and serve it as a model", body=NewAdapter, status=201,
        answer=Envelope("adapters", AdapterRecord, many=True), example={"name": "legal", "folder": "/adapters/legal"},
    ),
    ("DELETE", "/operator/adapters/{name}"): Operation("Operation", "Remove a LoRA adapter", status=204),
    ("GET", "/"): Operation("Page", "The demo page", answer="text/html"),
    ("GET", "/favicon.svg"): Operation("Page", "Its icon", answer="image/svg+xml"),
    ("GET", "/demo/models"): Operation(
        "Page", "Models for this machine, local models and downloads; or a search of the hub",
        answer=dict, query={"search": (TEXT, "Words to search the hub for.")},
    ),
    ("POST", "/demo/models"): Operation(
        "Page", "Download a model, pause or discard the download, or switch the model", body=ModelAction, answer=dict,
        status=202,
        example={"action": "download", "source": "Qwen/Qwen3-0.6B"},
    ),
    ("GET", "/demo/runs/{run_id}/wires"): Operation(
        "Page", "A run on several wires at once", stream=dict, end_mark=DONE, answers_also=(204,),
        query={"wire": ({"type": "array", "items": {"enum": ["agui", "openai"]}}, ""), "unknown": (TEXT, "")},
    ),
    ("POST", "/demo/wires"): Operation(
        "Page", "A recorded event log on several wires", body=FreeForm("One AG-UI event a line."),
        stream=dict, end_mark=DONE,
        query={"wire": ({"type": "array", "items": {"enum": ["agui", "openai"]}}, "")},
    ),
}  # fmt: skip

OLLAMA_ANSWER = FreeForm(
    "Ollama's answer.", {"model": TEXT, "created_at": TEXT, "done": {"type": "boolean"}}, ("model",)
)
OLLAMA_MODELS = FreeForm("", {"models": LIST}, ("models",))
OLLAMA: Mapping[tuple[str, str], Operation] = {
    ("POST", "/api/chat"): Operation(
        "Ollama", "An answer to messages", lines=True, answer=OLLAMA_ANSWER,
        body=Fields("OllamaChatRequest", ollama.CHAT_FIELDS, ("model",)),
        example={"model": "default", "messages": HELLO},
    ),
    ("POST", "/api/generate"): Operation(
        "Ollama", "An answer to a prompt", lines=True, answer=OLLAMA_ANSWER,
        body=Fields("OllamaGenerateRequest", ollama.GENERATE_FIELDS, ("model",)),
        example={"model": "default", "prompt": "What can you do?"},
    ),
    ("POST", "/api/embed"): Operation(
        "Ollama", "Embeddings of texts", answer=FreeForm("", {"model": TEXT, "embeddings": LIST}, ("embeddings",)),
        body=FreeForm("", {"model": TEXT, "input": {"type": ["string", "array"]}}, ("input",)),
    ),
    ("POST", "/api/embeddings"): Operation(
        "Ollama", "The embedding of a text", answer=FreeForm("", {"embedding": LIST}, ("embedding",)),
        body=FreeForm("", {"model": TEXT, "prompt": TEXT}, ("prompt",)),
    ),
    ("GET", "/api/tags"): Operation("Ollama", "The available models", answer=OLLAMA_MODELS),
    ("GET", "/api/ps"): Operation("Ollama", "The loaded models", answer=OLLAMA_MODELS),
    ("POST", "/api/show"): Operation(
        "Ollama", "The capabilities of a model", body=FreeForm("", {"model": TEXT}, ("model",)),
        answer=FreeForm("", {"capabilities": LIST, "details": {}, "model_info": {}}, ("capabilities",)),
    ),
    ("GET", "/api/version"): Operation(
        "Ollama", "The supported version of Ollama's API", answer=FreeForm("", {"version": TEXT}, ("version",))
    ),
}  # fmt: skip
OPERATIONS: Mapping[tuple[str, str], Operation] = {**AGUI, **COPILOTKIT, **OPENAI, **OTHERS, **OLLAMA}
