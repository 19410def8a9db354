"""An agent together with its model, as the run manager runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from ag_ui.core import ActivityMessage, AgentCapabilities, Message, RunAgentInput, SystemMessage, UserMessage

from agent_server.agents import interrupts, subagents
from agent_server.agents.agent import Agent, family, guards_of, mcp_connections, mcp_of, model_of
from agent_server.agents.capabilities import capabilities_of
from agent_server.agents.checkpoints import (
    Checkpointer,
    RunStart,
    ended_checkpoint,
    first_checkpoint,
    open_run,
    read_checkpoint,
    repeat_events,
)
from agent_server.agents.compaction import INSTRUCTIONS as SUMMARISE_CONVERSATION
from agent_server.agents.compaction import SUMMARY, ClientCompaction, Compactor
from agent_server.agents.compaction_settings import Compaction, CompactionMode
from agent_server.agents.conversation import Conversation
from agent_server.agents.conversation_context import ConversationContext, Toolset
from agent_server.agents.effective_options import effective_options
from agent_server.agents.generative_ui.catalog import RENDER
from agent_server.agents.generative_ui.open_generative_ui import SANDBOX
from agent_server.agents.generative_ui.operations import version_of
from agent_server.agents.guardrails import Forbidden, GuardedStream, Guards, Where, withheld
from agent_server.agents.loop import Loop, Outcome, ending_of
from agent_server.agents.reasoning_policy import ReasoningPolicy, unsealed
from agent_server.agents.running import Callee, FunctionCallee, ToolConcurrency
from agent_server.agents.sealing import Sealer
from agent_server.agents.state import Predictor, SharedState
from agent_server.agents.subagents import SubagentCallee
from agent_server.agents.surfaces import Surfaces, page_catalog
from agent_server.agents.tool_search import (
    RESULTS,
    SEARCH_TOOLS,
    SearchCallee,
    ToolIndex,
    search_declaration,
    tokens_of,
)
from agent_server.agents.turn import LanguageModel, TurnTaker
from agent_server.agents.turn_output import TurnOutput
from agent_server.pacing import collect_yielding
from agent_server.runs import Ending, Resumption, RunContext
from agent_server.runs.store import Store
from agent_server.settings import ToolLimits
from agent_server.user import User
from events.options import GenerationOptions, SamplingParams
from events.vocabulary import MCP_TOOLS_EVENT, Custom, Event, MessagesSnapshot

if TYPE_CHECKING:
    from adapters.forwarded_props import ProxiedRequest
    from agent_server.agents.mcp.app_requests import AppRequests
    from agent_server.agents.mcp.mcp_tools import McpConnections, McpTools, ToolOffer

Emit = Callable[[Event], None]
SUMMARY_INSTRUCTIONS = "Summarise the following thoughts in one or two short sentences, in their language."
SUMMARY_TOKENS = 96
MIN_DEFERRED_TOKENS = 500
"""Below this many tokens of declarations no tool is deferred, however small the context: a search costs a turn."""


class ServedAgent:
    """An agent with its model. One instance serves all runs; `AgentRun` is one of them."""

    is_hosted = False

    def __init__(
        self,
        agent: Agent,
        model: LanguageModel,
        *,
        sealer: Sealer | None = None,
        limits: ToolLimits | None = None,
        mcp: McpConnections | None = None,
        models: Mapping[str, LanguageModel] | None = None,
        concurrency: ToolConcurrency | None = None,
        guards: Guards | None = None,
        compaction: CompactionMode | None = None,
    ) -> None:
        """guards: the server's, which come before the agent's own. compaction: for an agent that does not set it."""
        self._compaction = agent.compacts(compaction)
        self.agent = agent
        self.guards = guards_of(agent, guards)
        self.model_name = agent.model
        self.name = agent.name
        self.description = agent.description
        self.announces_a2ui = agent.announces_a2ui
        self._models: Mapping[str, LanguageModel] = {**(models or {}), "": model}
        self._model = model_of(agent, self._models)
        self._sealer = sealer or Sealer()
        self._limits = limits or ToolLimits()
        self._concurrency = concurrency or ToolConcurrency(self._limits)
        self.mcp = mcp
        self._mcp: dict[str, McpTools] = {}
        self._apps: AppRequests | None = None
        if any(each.mcp_servers for each in family(agent)):
            self._mcp, self._apps = mcp_of(agent, mcp, self._limits)

    async def close(self) -> None:
        """Close the connections to MCP servers. Safe to call twice."""
        await asyncio.gather(*(tools.close() for tools in self._mcp.values()))

    def capabilities(self) -> AgentCapabilities:
        return capabilities_of(self.agent, self._model, self._compaction)

    def answers_call(self, name: str, declared: Collection[str]) -> bool:
        """Whether the server answers a call: of one of the agent's tools or, if it has tools, of an undeclared one.

        declared: names of the client's tools.
        """
        own = {tool.name for tool in self.agent.server_tools} | {other.name for other in self.agent.subagents}
        has_tools = bool(self.agent.tools or self.agent.mcp_servers)
        return name in own or (has_tools and name not in declared)

    async def answer_app(self, request: ProxiedRequest, user: User) -> Mapping[str, object]:
        """Answer an MCP app's request to its server: the MCP result, or an object with `error`."""
        if self._apps is None:
            return {"error": f"The agent {self.name} has no MCP servers."}
        return await self._apps.answer(request, user)

    def checkpoint(self, input: RunAgentInput, options: GenerationOptions, *, whole: bool, user: str = "") -> str:
        """The checkpoint of a run that has not started."""
        return first_checkpoint(input, options, whole=whole, user=user)

    def ended_checkpoint(self, input: RunAgentInput, options: GenerationOptions) -> str:
        return ended_checkpoint(input, options)

    def resumption(self, checkpoint: str) -> Resumption:
        """What is needed to resume another server's run. Raises msgspec.MsgspecError or ValueError for a checkpoint
        that this version cannot read."""
        run_checkpoint = read_checkpoint(checkpoint)
        return Resumption(
            input=run_checkpoint.run_input(),
            options=run_checkpoint.options,
            has_begun=run_checkpoint.begun,
            whole=run_checkpoint.whole,
            request_digest=run_checkpoint.request_digest,
            user=run_checkpoint.user,
        )

    async def run(self, context: RunContext) -> Ending:
        """Run the agent once: apply the answers that the run resumes with, then run the loop."""
        opening = await open_run(context, self.name)
        # The client's or the thread's messages, with sealed reasoning decrypted and people's edits applied. Messages of
        # subagents are left out of the prompt: the agent knows their results.
        opened = unsealed(
            [message for message in opening.messages if message.subagent_run_id is None],
            self._sealer,
            tenant=context.tenant,
            thread_id=context.input.thread_id,
            warn=context.recorder.warn,
        )
        conversation = Conversation(await collect_yielding(opened), opening.messages)
        for record in context.thread.interrupts if context.thread is not None else ():
            approved, edited = interrupts.approval_of(None if record.answer is None else record.answer.get("payload"))
            if approved and edited is not None:
                conversation.use_arguments(record.call["id"], edited)
        return await AgentRun(self, context, opening, conversation).run()


class AgentRun:
    """Runs a served agent once, and the agents that it calls. Each of their conversations has a context and a loop."""

    def __init__(self, served: ServedAgent, context: RunContext, opening: RunStart, conversation: Conversation) -> None:
        agent, recorder = served.agent, context.recorder
        self._served = served
        self._agent = agent
        self._run = context
        self._opening = opening
        # Offer surfaces to the model if the page can show them and has no tool of its own with that name.
        settings, own = agent.a2ui_settings, {each.name for each in context.input.tools or ()}
        offered = agent.a2ui is not False and RENDER not in own
        catalog = page_catalog(context.input, settings) if offered else None
        version = version_of(context.input.forwarded_props)
        self._surfaces = Surfaces(
            recorder.emit, conversation, catalog, settings.attempts, mirrored=SANDBOX in own, version=version
        )
        self._requested_mcp: list[McpTools] = []
        """Connections to MCP servers that the request names, which are closed with the run."""
        # The client's state; the thread's where the client sent none; else the agent's own.
        client_state = context.input.state
        if not client_state and context.thread is not None:
            client_state = context.thread.snapshot.state
        initial = agent.state if not client_state and isinstance(agent.state, dict) else client_state
        schema = agent.state if isinstance(agent.state, type) else None
        state = SharedState(initial, recorder.emit, schema)
        self._main = ConversationContext(
            run=context,
            conversation=conversation,
            state=state,
            emit=self._surfaces.emit,
            may_ask=context.thread is not None,
            concurrency=served._concurrency,
            checkpointer=Checkpointer(context, conversation, state),
            guards=served.guards,
        )

    async def run(self) -> Ending:
        recorder, opening = self._run.recorder, self._opening
        conversation, state = self._main.conversation, self._main.state
        recorder.messages = conversation.wire
        if opening.checkpoint is not None:
            # Continue where another server stopped: keep its counts, and do not repeat the run's first events.
            checkpoint = opening.checkpoint
            recorder.usage = {each.model or "": each for each in checkpoint.usage}
            recorder.turns = checkpoint.turns
            for sentence in checkpoint.warnings:
                recorder.warn(sentence)
            recorder.journal.muted = True
        if self._agent.shares_state:
            state.snapshot()
        if opening.repeated is not None:
            # This very resume is already completed: only its results are sent again.
            assert self._run.thread is not None
            recorder.state = self._run.thread.snapshot.state
            if not self._agent.shares_state:
                state.snapshot()
            messages = await collect_yielding(conversation.wire())
            return repeat_events(self._run, self._main.emit, messages, opening.repeated)
        outcome = await self._outcome()
        if outcome.questions or (self._agent.shares_state and state.changed):
            state.snapshot()
        if outcome.questions:
            recorder.interrupts = list(outcome.questions)
            recorder.emit(MessagesSnapshot(messages=await collect_yielding(conversation.snapshot())))
        return ending_of(outcome)

    async def _outcome(self) -> Outcome:
        opening, recorder = self._opening, self._run.recorder
        if opening.questions:
            return Outcome(reason="tool_calls", questions=tuple(opening.questions))
        try:
            loop = await self._loop(self._agent, self._main)
            if opening.checkpoint is not None:
                recorder.journal.muted = False
                return await loop.resume_orphan(opening.checkpoint)
            return await (loop.resume(opening) if opening.resumes else loop.run())
        except Forbidden as forbidden:
            # Show that the answer was stopped, and store that with the thread.
            recorder.close_open()
            activity = withheld(self._run.new_id("activity"), forbidden)
            recorder.emit(activity)
            self._main.conversation.visible.append(
                ActivityMessage(id=activity.message_id, activity_type=activity.activity_type, content=activity.content)
            )
            return Outcome(reason="content_filter")
        finally:
            await asyncio.gather(*(tools.close() for tools in self._requested_mcp))
            self._surfaces.close()
            if self._agent.shares_state or self._main.state.changed:
                recorder.state = self._main.state.value

    async def _loop(self, agent: Agent, context: ConversationContext) -> Loop:
        """The loop of this agent, or of one it calls. context: of its conversation; its tools are added here."""
        run, served = self._run, self._served
        predictor = Predictor(agent.predict_state, context.state)
        predictor.announce(context.emit)
        reasoning: ReasoningPolicy | None = None
        if agent.reasoning != "full":

            async def summarise(text: str) -> str:
                return await self._summary(context.guards, text, SUMMARY_INSTRUCTIONS)

            reasoning = ReasoningPolicy(
                agent.reasoning,
                served._sealer,
                tenant=run.tenant,
                thread_id=run.input.thread_id,
                summarise=agent.summarise or summarise,
            )
        output = TurnOutput(
            context.emit,
            reasoning=reasoning,
            follow=predictor.follow if agent.predict_state else None,
            guarded=None if context.guards is None else GuardedStream(context.guards),
        )
        turns = TurnTaker(
            model_of(agent, served._models),
            run,
            output,
            cache_key=run.input.thread_id if agent is self._agent else run.new_id("place"),
            journals=context.checkpointer is not None,
        )
        context = msgspec.structs.replace(context, tools=await self._toolset(agent, context, turns))
        options = effective_options(agent, run.options, served._model.output.sampling)
        return Loop(agent, context, turns, options, self._compactor(agent, context, turns))

    def _compactor(self, agent: Agent, context: ConversationContext, turns: TurnTaker) -> Compactor | None:
        """The compactor of a stored conversation, or of one whose client asks for compaction; None for others, which
        are sent to the model unchanged or refused as too long. A subagent's conversation is a single task."""
        run = self._run
        settings, request = self._served._compaction, run.options.compact
        if request is not None:
            settings = replace(settings or Compaction(), mode="summarise")
        if settings is None or agent is not self._agent or (request is None and run.thread is None):
            return None

        async def summarise(text: str) -> str:
            tokens = min(settings.summary_tokens, int(SUMMARY * await turns.context_length()))
            return await self._summary(context.guards, text, SUMMARISE_CONVERSATION, tokens, "text")

        client_request = None
        if request is not None:
            client_request = ClientCompaction(request, partial(self._served._sealer.seal_compacted, tenant=run.tenant))
        return Compactor(settings, context, turns, summarise, client_request)

    async def _toolset(self, agent: Agent, context: ConversationContext, turns: TurnTaker) -> Toolset:
        run, recorder, surfaces, served = self._run, self._run.recorder, self._surfaces, self._served
        own_limits = {"seconds": agent.time_limit, "characters": agent.result_limit}
        own_limits = {name: value for name, value in own_limits.items() if value}
        limits = served._limits.model_copy(update=own_limits) if own_limits else served._limits
        callees: dict[str, Callee] = {tool.name: FunctionCallee(tool, limits) for tool in agent.server_tools}
        declarations = [tool.declaration() for tool in agent.server_tools]
        approvals = {tool.name: tool for tool in agent.server_tools if tool.requires_approval is not False}

        async def run_nested(other: Agent, conversation: Conversation, emit: Emit) -> Outcome:
            guards = guards_of(other, context.guards)
            nested = msgspec.structs.replace(
                context, conversation=conversation, emit=emit, may_ask=False, checkpointer=None, guards=guards
            )
            return await (await self._loop(other, nested)).run()

        if agent is self._agent and surfaces.catalog is not None and RENDER not in callees:
            callees[RENDER] = surfaces.callee()
            declarations.append(surfaces.catalog.declaration())
        always = {other.name for other in agent.subagents}
        for other in agent.subagents:
            add_visible, emit = context.conversation.visible.extend, context.emit
            callees[other.name] = SubagentCallee(other, run_nested, emit, run.new_id, add_visible, limits.characters)
            declarations.append(subagents.declaration(other))
        offers = await self._requested_offers(limits) if agent is self._agent else []
        if (mcp := served._mcp.get(agent.name)) is not None:
            offers.append(await mcp.offer(limits, run.user))
        for offer in offers:
            for sentence in offer.warnings:
                recorder.warn(sentence)
            for each in offer.sign_ins:  # includes users who have signed in since they were asked to
                callees[each.declaration.name] = each
                if each.declaration.name in offer.required_sign_ins:
                    declarations.append(each.declaration)
                    always.add(each.declaration.name)
            for declared, callee, approving in offer.tools:
                if declared.name in callees:
                    recorder.warn(f"Two tools are called {declared.name}; the MCP server's is not offered.")
                    continue
                callees[declared.name] = callee
                declarations.append(declared)
                if approving is not None:
                    approvals[declared.name] = approving
        # A subagent has none of the client's tools.
        client_tools = (run.input.tools or ()) if agent is self._agent else ()
        # The tools to search for instead of declaring, if all declarations exceed their share of the model's context.
        # Subagents, sign-ins and the tool for surfaces are declared in any case.
        deferred: ToolIndex | None = None
        needed = tokens_of(declarations)
        if limits.context_share and needed >= MIN_DEFERRED_TOKENS:
            room = limits.context_share * await turns.context_length()
            searchable = [each for each in declarations if each.name != RENDER and each.name not in always]
            if needed > room and len(searchable) > RESULTS:
                deferred = ToolIndex(searchable)
        if deferred is not None and SEARCH_TOOLS not in callees:
            callees[SEARCH_TOOLS] = SearchCallee(deferred)
            declarations = [each for each in declarations if each.name not in deferred.tools]
            declarations.append(search_declaration(deferred))
        clients = frozenset(each.name for each in client_tools) - callees.keys()
        may_start_early = (name for name, each in callees.items() if each.early and name not in approvals)
        early = frozenset(may_start_early if limits.early else ())
        return Toolset(
            callees=callees,
            declarations=declarations,
            approvals=approvals,
            early=early,
            clients=clients,
            deferred=deferred,
            context=surfaces.prompt_context(run.input.context or ()),
        )

    async def _requested_offers(self, limits: ToolLimits) -> list[ToolOffer]:
        """The tools of the MCP servers that the request names. Sends an event with the tools of each."""
        servers, user = self._run.options.mcp_servers, self._run.user
        if not servers:
            return []
        from agent_server.agents.mcp.mcp_tools import requested_offer

        offers: list[ToolOffer] = []
        requests = (requested_offer(server, limits, user) for server in servers)
        for tools, offer, description in await asyncio.gather(*requests):
            self._requested_mcp.append(tools)
            self._main.emit(Custom(name=MCP_TOOLS_EVENT, value=description))
            offers.append(offer)
        return offers

    async def _summary(
        self,
        guards: Guards | None,
        text: str,
        instructions: str,
        tokens: int = SUMMARY_TOKENS,
        where: Where = "reasoning",
    ) -> str:
        """Let the model summarise a text in a turn whose events are not sent. guards: of the conversation. where: how
        they classify the text. Raises EngineError, or Forbidden."""
        messages: list[Message] = [
            SystemMessage(id="summary-instructions", content=instructions),
            UserMessage(id="summary-text", content=text),
        ]
        source = self._run.input
        input = RunAgentInput(thread_id=source.thread_id, run_id=source.run_id, messages=messages, tools=[])
        options = GenerationOptions(sampling=SamplingParams(temperature=0.0, max_tokens=tokens), thinking=False)
        output = TurnOutput(lambda event: None, guarded=None if guards is None else GuardedStream(guards, where))
        turn = await TurnTaker(self._served._model, self._run, output).take(input, options)
        return turn.output.text.strip()


def serve_agents(
    agents: Sequence[Agent],
    model: LanguageModel,
    *,
    sealer: Sealer | None = None,
    limits: ToolLimits | None = None,
    models: Mapping[str, LanguageModel] | None = None,
    guards: Guards | None = None,
    compaction: CompactionMode | None = None,
    store: Store | None = None,
    public_url: str = "",
) -> Mapping[str, ServedAgent]:
    """The agents by name, for the run manager.

    The first one also answers as "default" if none has that name; without any agent, "default" is the bare model.
    store: keeps users' consents for MCP servers. public_url: of this server, to which users return after signing in.
    """
    shared = sealer or Sealer()
    mcp = mcp_connections(agents, store, shared, public_url)
    limits = limits or ToolLimits()
    concurrency = ToolConcurrency(limits)

    def serve(agent: Agent) -> ServedAgent:
        return ServedAgent(agent, model, sealer=shared, limits=limits, mcp=mcp, models=models, concurrency=concurrency,
                           guards=guards, compaction=compaction)  # fmt: skip

    served = {agent.name: serve(agent) for agent in agents}
    if len(served) != len(agents):
        raise ValueError("two agents have the same name")
    if "default" not in served:
        first = agents[0] if agents else Agent(name="default")
        served["default"] = serve(first)
    return served
