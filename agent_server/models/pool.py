"""Several models, with as many loaded as memory allows: each on first use, until it is idle or another model
needs its memory.

A model's states are unloaded → loading → loaded → leaving → unloaded. A leaving model gets no new users and is unloaded
when its last one is done, so running generations are never cut off. Models are loaded one at a time, so that two loads
never count on the same memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import msgspec

from adapters.body import KINDS
from agent_server.engine_protocol.protocol import Engine, EngineError, EngineStatus
from agent_server.media.intake import Intake
from agent_server.models.model import POLL_SECONDS, ChatModel, Tell, loading_states
from agent_server.settings import OutputSettings, PoolSettings

if TYPE_CHECKING:
    from agent_server.models.prompting.prompt import PromptBuilder

IN_USE: ContextVar[frozenset[str]] = ContextVar("models_in_use", default=frozenset())
"""The models that the current task uses already. It may use them again even if they are leaving."""
UNLOADED = EngineStatus(state="unloaded", message="The model is loaded with the first request.")
QUEUED = EngineStatus(
    state="loading", progress=0.0, message="The model waits until other models are loaded or unloaded."
)


class PooledModel:
    """A model that its pool loads and unloads. make: creates it for each load. bytes: of its weights and cache;
    estimated from its files until it was loaded once.

    users: the number of turns that use it now. last_used: when a use last began or ended. waiting: the futures of those
    who wait until it is loaded. adapters: folders of its LoRA adapters, by name."""

    adapter = ""

    def __init__(
        self,
        name: str,
        make: Callable[[], ChatModel],
        load_prompts: Callable[[], PromptBuilder],
        output: OutputSettings | None = None,
        intake: Intake | None = None,
        bytes: int = 0,
    ) -> None:
        self.name = name
        self.output = output or OutputSettings()
        self.intake = intake or Intake()
        self.make = make
        self.bytes = bytes
        self.pool: ModelPool | None = None
        self.current: ChatModel | None = None
        self.users = 0
        self.last_used = 0.0
        self.unloading: asyncio.Task[None] | None = None
        self.loading: asyncio.Task[None] | None = None
        self.failed: tuple[float, EngineError] | None = None
        self.adapters: dict[str, str] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.unused = asyncio.Event()
        self._load_prompts = load_prompts

    @property
    def root(self) -> PooledModel:
        return self

    @property
    def leaving(self) -> bool:
        return self.unloading is not None

    @property
    def status(self) -> EngineStatus:
        if self.leaving or (self.current is None and self.loading is not None):
            return QUEUED
        if self.current is not None:
            return self.current.status
        if self.failed is not None:
            return EngineStatus(state="failed", message=self.failed[1].message)
        return UNLOADED

    @property
    def ready(self) -> bool:
        return self.current is not None and self.current.ready

    @property
    def engine(self) -> Engine:
        """The engine. Raises EngineError while the model is not loaded."""
        if self.current is None:
            raise EngineError("unavailable", f"The model {self.name} is not loaded.", retryable=True)
        return self.current.engine

    @property
    def prompts(self) -> PromptBuilder:
        """The prompt builder. Raises EngineError while the model is not loaded."""
        if self.current is None:
            raise EngineError("unavailable", f"The model {self.name} is not loaded.", retryable=True)
        return self.current.prompts

    @property
    def takes(self) -> frozenset[str]:
        return self.current.takes if self.current is not None else frozenset(KINDS)

    async def tokenizing(self) -> PromptBuilder:
        """Return the prompt builder for requests that need no weights. Loads only the tokenizer if necessary."""
        if self.ready:
            return self.prompts
        try:
            return await asyncio.to_thread(self._load_prompts)
        except EngineError:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise EngineError("unavailable", f"Cannot load {self.name}: {reason}") from error

    @contextlib.asynccontextmanager
    async def use(self, tell: Tell) -> AsyncIterator[None]:
        """Load the model and keep it loaded within the context, in which a turn uses it. tell: called with the status
        while it is being loaded. Raises EngineError if it cannot be loaded."""
        assert self.pool is not None
        models_in_use = IN_USE.get()
        await self.pool.enter(self, tell, again=self.name in models_in_use)
        IN_USE.set(models_in_use | {self.name})
        try:
            yield
        finally:
            IN_USE.set(models_in_use)
            self.pool.leave(self)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter, and the model if necessary. Later loads of the model include the adapter. Raises
        EngineError."""
        async with self.use(lambda status: None):
            assert self.current is not None
            await self.current.load_adapter(name, folder)
            self.adapters[name] = folder

    async def remove_adapter(self, name: str) -> None:
        del self.adapters[name]
        if self.current is not None and self.ready:
            await self.current.remove_adapter(name)

    async def load(self) -> None:
        """Load the model before its first request. Never raises; the outcome is in `status`."""
        with contextlib.suppress(EngineError):
            async with self.use(lambda status: None):
                pass

    def states(self) -> AsyncGenerator[EngineStatus, None]:
        return loading_states(lambda: self.status)

    async def close(self) -> None:
        await self.intake.close()
        if self.pool is not None:
            await self.pool.close()


logger = logging.getLogger("agent_server.models")
FAILED_SECONDS = 10.0
"""How long a failed load answers further requests, so that clients that retry do not start a process each time."""
GIB = 2**30


class ModelState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of a model as reported to operators. bytes: of weights and cache, estimated until it was loaded once.
    idle_seconds: since its last use, if it is loaded and unused."""

    name: str
    state: str
    message: str = ""
    users: int = 0
    bytes: int = 0
    idle_seconds: float | None = None


class ModelPool:
    """Loads and unloads models within a memory budget and an idle time. now: the clock, in seconds."""

    def __init__(self, settings: PoolSettings, *, now: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.models: dict[str, PooledModel] = {}
        self._now = now
        self._load_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._closed = False
        self.any_loaded = False
        """Whether any model was ever loaded, which means that the server can answer requests."""

    def add(self, model: PooledModel) -> None:
        model.pool = self
        self.models[model.name] = model

    def describe(self) -> list[ModelState]:
        states = []
        for model in self.models.values():
            status = model.status
            is_idle = model.current is not None and not model.users
            states.append(
                ModelState(
                    name=model.name,
                    state="leaving" if model.leaving else status.state,
                    message=status.message,
                    users=model.users,
                    bytes=model.bytes,
                    idle_seconds=round(self._now() - model.last_used, 3) if is_idle else None,
                )
            )
        return states

    def metrics(self) -> Mapping[str, float]:
        """Return the sums of the loaded engines' metrics, and the number of loaded models."""
        total: dict[str, float] = {}
        loaded = [model.current for model in self.models.values() if model.current is not None]
        for current in loaded:
            for name, value in current.engine.metrics().items():
                total[name] = total.get(name, 0.0) + value
        return {**total, "models_loaded": float(len(loaded))}

    # using

    async def enter(self, model: PooledModel, tell: Tell, *, again: bool = False) -> None:
        """Wait until a model is loaded, and count a user of it. again: the caller uses it already."""
        if model.current is not None and model.loading is None:
            # A model whose engine has failed accepts no new users: it is unloaded and loaded again.
            if not again and model.current.status.state in ("failed", "stopped"):
                self.unload(model)
            if again or not model.leaving:
                model.users += 1
                return
        self._start_loading(model)
        loaded = asyncio.get_running_loop().create_future()
        model.waiting.append(loaded)
        try:
            reported_status: EngineStatus | None = None
            while not loaded.done():
                status = model.status
                if status != reported_status:
                    tell(status)
                reported_status = status
                await asyncio.wait((loaded,), timeout=POLL_SECONDS)
            loaded.result()
        except BaseException:
            if loaded in model.waiting:
                model.waiting.remove(loaded)
            elif loaded.done() and not loaded.cancelled() and loaded.exception() is None:
                self.leave(model)
            raise

    def _start_loading(self, model: PooledModel) -> None:
        """Start loading a model unless it is loaded or loading. Raises EngineError if it failed within
        FAILED_SECONDS."""
        if self._closed:
            raise EngineError("unavailable", "The server is shutting down.", retryable=True)
        if model.loading is not None or model.current is not None:
            return
        if model.failed is not None and self._now() - model.failed[0] < FAILED_SECONDS:
            error = model.failed[1]
            raise EngineError(error.kind, error.message, retryable=error.retryable)
        model.failed = None
        model.loading = self._spawn(self._load(model))

    def leave(self, model: PooledModel) -> None:
        model.users -= 1
        model.last_used = self._now()
        if not model.users:
            model.unused.set()

    # loading

    async def _load(self, model: PooledModel) -> None:
        """Load a model, unload others if it needs their memory, and complete the futures of those who wait for it."""
        try:
            async with self._load_lock:
                await self._make_room(model)
                while (failure := await self._attempt(model)) is not None:
                    victim = self._next_victim() if failure.kind == "out_of_memory" else None
                    if victim is None:
                        raise failure
                    logger.info("Unloading %s: there is too little memory for %s.", victim.name, model.name)
                    await asyncio.wait((self.unload(victim),))
                self._settle(model, None)
        except EngineError as failure:
            logger.warning("The model %s cannot be loaded: %s", model.name, failure.message)
            self._settle(model, failure)
        except BaseException:
            self._settle(model, EngineError("unavailable", "The server is shutting down.", retryable=True))
            raise
        if self.settings.idle and self._timer is None and not self._closed:
            self._timer = self._spawn(self._unload_idle())

    def _settle(self, model: PooledModel, failure: EngineError | None) -> None:
        """End a load. Waiting users are counted here, before another load can claim the memory."""
        model.loading = None
        model.last_used = self._now()
        model.failed = None if failure is None else (self._now(), failure)
        self.any_loaded = self.any_loaded or failure is None
        waiting, model.waiting = model.waiting, []
        for loaded in waiting:
            if loaded.done():
                continue
            if failure is None:
                model.users += 1
                loaded.set_result(None)
            else:
                loaded.set_exception(EngineError(failure.kind, failure.message, retryable=failure.retryable))

    async def _attempt(self, model: PooledModel) -> EngineError | None:
        """Attempt to load a model; return the error, or None if it succeeded."""
        current = model.current = model.make()
        try:
            await current.load()
            failure = current.failure
            if failure is None and not current.ready:
                failure = EngineError("unavailable", current.status.message or f"{model.name} could not be loaded.")
        except BaseException:
            model.current = None
            await current.close()
            raise
        if failure is None:
            model.bytes = int(current.engine.info.details.get("memory_bytes", 0)) or model.bytes
            return None
        model.current = None
        await current.close()
        return failure

    async def _make_room(self, model: PooledModel) -> None:
        """Unload others until a model fits into the budget. Raises EngineError if it exceeds the budget alone."""
        budget = self.settings.budget
        if not budget:
            return
        if model.bytes > budget:
            message = (
                f"{model.name} needs about {model.bytes / GIB:.2f} GiB, but all models together may use "
                f"{budget / GIB:.2f} GiB. Raise the limit with --models-memory."
            )
            raise EngineError("out_of_memory", message)
        while (victim := self._next_victim()) is not None:
            others = sum(each.bytes for each in self.models.values() if each.current is not None and each is not model)
            if others + model.bytes <= budget:
                return
            logger.info("Unloading %s to make room for %s.", victim.name, model.name)
            await asyncio.wait((self.unload(victim),))

    def _next_victim(self) -> PooledModel | None:
        """Return the loaded model to unload next: the least recently used one without users, else the least recently
        used one, which finishes its generations first."""
        loaded = [each for each in self.models.values() if each.current is not None and each.loading is None]
        return min(loaded, key=lambda each: (each.users > 0, each.last_used), default=None)

    def unload(self, model: PooledModel) -> asyncio.Task[None]:
        """Unload a loaded model when its last user is done. New users wait until it is loaded again."""
        if model.unloading is None:
            model.unloading = self._spawn(self._unload(model))
        return model.unloading

    async def _unload(self, model: PooledModel) -> None:
        try:
            while model.users and not self._closed:
                model.unused.clear()
                await model.unused.wait()
            if model.current is not None:
                await model.current.close()
        finally:
            model.current = model.unloading = None
        if model.waiting and not self._closed:
            self._start_loading(model)

    def begin(self, model: PooledModel) -> None:
        """Start loading a model before its first request, and return immediately. Raises EngineError if it has just
        failed."""
        self._start_loading(model)

    # idle models

    async def _unload_idle(self) -> None:
        """Unload models as they become idle, until none is loaded."""

        def is_in_use(model: PooledModel) -> bool:
            return model.current is None or bool(model.users) or model.loading is not None or model.leaving

        try:
            while loaded := [each for each in self.models.values() if each.current is not None]:
                unused_since = [self._now() if is_in_use(each) else each.last_used for each in loaded]
                await asyncio.sleep(max(0.01, min(unused_since) + self.settings.idle - self._now()))
                for model in loaded:
                    if not is_in_use(model) and self._now() - model.last_used >= self.settings.idle:
                        logger.info("Unloading %s: it was idle for %g seconds.", model.name, self.settings.idle)
                        self.unload(model)
        finally:
            self._timer = None

    # ending

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Unload everything. Safe to call twice."""
        self._closed = True
        leaving = {model.unloading for model in self.models.values()}
        for model in self.models.values():
            model.unused.set()  # its users have left, or get an error from its engine
        tasks = list(self._tasks)
        for task in tasks:
            if task not in leaving:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for model in self.models.values():
            current, model.current = model.current, None
            if current is not None:
                await current.close()


class AdaptedModel:
    """A LoRA adapter of a model, served under a name of its own. name: the adapter's name, also within the engine."""

    def __init__(self, name: str, root: ChatModel | PooledModel) -> None:
        self.name = self.adapter = name
        self.root = root

    @property
    def output(self) -> OutputSettings:
        return self.root.output

    @property
    def intake(self) -> Intake:
        return self.root.intake

    @property
    def engine(self) -> Engine:
        return self.root.engine

    @property
    def prompts(self) -> PromptBuilder:
        return self.root.prompts

    @property
    def status(self) -> EngineStatus:
        return self.root.status

    @property
    def ready(self) -> bool:
        return self.root.ready

    @property
    def takes(self) -> frozenset[str]:
        return self.root.takes

    def use(self, tell: Tell) -> AbstractAsyncContextManager[None]:
        return self.root.use(tell)

    async def tokenizing(self) -> PromptBuilder:
        return await self.root.tokenizing()

    def states(self) -> AsyncGenerator[EngineStatus, None]:
        return self.root.states()


AnyModel = ChatModel | PooledModel | AdaptedModel
"""A model as routes and agents know it."""
