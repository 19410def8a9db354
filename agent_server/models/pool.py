"""Several models of which as many are loaded as there is memory for: on first use, until they are idle or in the way.

A model is unloaded → loading → loaded → leaving → unloaded. One that is leaving gets no new users and is unloaded when
its last one is done: nothing that runs is cut. Loads come one after another, so that two never count on the same
memory.
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
from agent_server.models.model import POLL_SECONDS, ChatModel, Tell
from agent_server.settings import OutputSettings, PoolSettings

if TYPE_CHECKING:
    from agent_server.models.prompting.prompt import PromptBuilder

HELD: ContextVar[frozenset[str]] = ContextVar("held_models", default=frozenset())
"""The models that the current task uses already: it is let in again, also where the model is leaving."""
UNLOADED = EngineStatus(state="unloaded", message="It is loaded with the first request.")
QUEUED = EngineStatus(state="loading", progress=0.0, message="It waits until other models are loaded or unloaded.")


class PooledModel:
    """A model that its pool loads and unloads. make: makes it anew for each load. bytes: of its weights and cache, as
    far as its files tell, until it was loaded once.

    users: turns that use it now; used: when one last began or ended to; waiting: those who wait until it is loaded;
    adapters: folders of its LoRA adapters, by their names."""

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
        self.used = 0.0
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
        """Raises EngineError while it is not loaded."""
        if self.current is None:
            raise EngineError("unavailable", f"The model {self.name} is not loaded.", retryable=True)
        return self.current.engine

    @property
    def prompts(self) -> PromptBuilder:
        """Raises EngineError while it is not loaded."""
        if self.current is None:
            raise EngineError("unavailable", f"The model {self.name} is not loaded.", retryable=True)
        return self.current.prompts

    @property
    def takes(self) -> frozenset[str]:
        return self.current.takes if self.current is not None else frozenset(KINDS)

    async def tokenizing(self) -> PromptBuilder:
        """The prompt builder for what needs no weights: nothing is loaded for it but the tokenizer."""
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
        """Around everything that a turn asks of the model: it is loaded before, and stays until after. tell: of the
        wait. Raises EngineError where it cannot be loaded."""
        assert self.pool is not None
        held = HELD.get()
        await self.pool.enter(self, tell, again=self.name in held)
        HELD.set(held | {self.name})
        try:
            yield
        finally:
            HELD.set(held)
            self.pool.leave(self)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter beside the weights, which are loaded for it, and keep it for later loads. Raises
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
        """Load it before anyone asks for it. Never raises: the outcome is `status`."""
        with contextlib.suppress(EngineError):
            async with self.use(lambda status: None):
                pass

    async def states(self) -> AsyncGenerator[EngineStatus, None]:
        """Each new status while it is being loaded, and the one after it."""
        last: EngineStatus | None = None
        while True:
            status = self.status
            if status != last:
                yield status
            if status.state not in ("starting", "loading"):
                return
            last = status
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        await self.intake.close()
        if self.pool is not None:
            await self.pool.close()


logger = logging.getLogger("agent_server.models")
FAILED_SECONDS = 10.0
"""How long a load that failed answers for the next ones, so that clients that try again start no process each time."""
GIB = 2**30


class ModelState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What an operator is told of a model. bytes: of weights and cache, a guess until it was loaded once. idle_seconds:
    since its last use, where it is loaded and unused."""

    name: str
    state: str
    message: str = ""
    users: int = 0
    bytes: int = 0
    idle_seconds: float | None = None


class ModelPool:
    """Loads and unloads the models, as its settings say. now: seconds, for tests."""

    def __init__(self, settings: PoolSettings, *, now: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.models: dict[str, PooledModel] = {}
        self._now = now
        self._one_load = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._closed = False
        self.begun = False
        """Whether a model was loaded, and so requests can be answered."""

    def add(self, model: PooledModel) -> None:
        model.pool = self
        self.models[model.name] = model

    def describe(self) -> list[ModelState]:
        return [self._state(model) for model in self.models.values()]

    def _state(self, model: PooledModel) -> ModelState:
        status = model.status
        idle = self._now() - model.used if model.current is not None and not model.users else None
        return ModelState(
            name=model.name,
            state="leaving" if model.leaving else status.state,
            message=status.message,
            users=model.users,
            bytes=model.bytes,
            idle_seconds=None if idle is None else round(idle, 3),
        )

    def metrics(self) -> Mapping[str, float]:
        """The loaded engines' numbers, added up, and how many models are loaded."""
        total: dict[str, float] = {}
        loaded = [model.current for model in self.models.values() if model.current is not None]
        for current in loaded:
            for name, value in current.engine.metrics().items():
                total[name] = total.get(name, 0.0) + value
        return {**total, "models_loaded": float(len(loaded))}

    # using

    async def enter(self, model: PooledModel, tell: Tell, *, again: bool = False) -> None:
        """Count a user of a model, once it is loaded. again: for one who uses it already."""
        if model.current is not None and model.loading is None and (again or self._serves(model)):
            model.users += 1
            return
        self._want(model)
        place = asyncio.get_running_loop().create_future()
        model.waiting.append(place)
        try:
            told: EngineStatus | None = None
            while not place.done():
                status = model.status
                if status != told:
                    tell(status)
                told = status
                await asyncio.wait((place,), timeout=POLL_SECONDS)
            place.result()
        except BaseException:
            if place in model.waiting:
                model.waiting.remove(place)
            elif place.done() and not place.cancelled() and place.exception() is None:
                self.leave(model)
            raise

    def _serves(self, model: PooledModel) -> bool:
        """Whether a loaded model takes new users. One whose engine gave up leaves, and is loaded anew."""
        assert model.current is not None
        if model.current.status.state in ("failed", "stopped"):
            self.unload(model)
        return not model.leaving

    def _want(self, model: PooledModel) -> None:
        """Have it loaded, unless that is under way. Raises EngineError where it failed a moment ago."""
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
        model.used = self._now()
        if not model.users:
            model.unused.set()

    # loading

    async def _load(self, model: PooledModel) -> None:
        """Load a model, with others unloaded where there is no room for it, and let in, or tell, those who wait."""
        try:
            async with self._one_load:
                await self._make_room(model)
                while (failure := await self._attempt(model)) is not None:
                    victim = self._oldest() if failure.kind == "out_of_memory" else None
                    if victim is None:
                        raise failure
                    logger.info("%s is unloaded: there is too little memory for %s beside it.", victim.name, model.name)
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
        """The end of a load. Those who wait are counted here, before another load can ask for the memory."""
        model.loading = None
        model.used = self._now()
        model.failed = None if failure is None else (self._now(), failure)
        self.begun = self.begun or failure is None
        waiting, model.waiting = model.waiting, []
        for place in waiting:
            if place.done():
                continue
            if failure is None:
                model.users += 1
                place.set_result(None)
            else:
                place.set_exception(EngineError(failure.kind, failure.message, retryable=failure.retryable))

    async def _attempt(self, model: PooledModel) -> EngineError | None:
        """One attempt to load; why it failed, or None."""
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
        """Unload others until a model fits into the budget. Raises EngineError where it never would."""
        budget = self.settings.budget
        if not budget:
            return
        if model.bytes > budget:
            message = (
                f"{model.name} takes about {model.bytes / GIB:.2f} GiB, and all models together may take "
                f"{budget / GIB:.2f}; give more with --models-memory."
            )
            raise EngineError("out_of_memory", message)
        while self._taken(model) + model.bytes > budget and (victim := self._oldest()) is not None:
            logger.info("%s is unloaded to make room for %s.", victim.name, model.name)
            await asyncio.wait((self.unload(victim),))

    def _taken(self, but: PooledModel) -> int:
        return sum(each.bytes for each in self.models.values() if each.current is not None and each is not but)

    def _oldest(self) -> PooledModel | None:
        """The loaded model to unload first: one that nobody uses, the longest unused one; else the one that was used
        the longest ago, which then ends what it has."""
        loaded = [each for each in self.models.values() if each.current is not None and each.loading is None]
        return min(loaded, key=lambda each: (each.users > 0, each.used), default=None)

    def unload(self, model: PooledModel) -> asyncio.Task[None]:
        """Let a loaded model leave: it is unloaded when its last user is done, and new ones wait until it is loaded
        again."""
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
            self._want(model)

    def begin(self, model: PooledModel) -> None:
        """Have a model loaded before anyone asks for it; returns at once. Raises EngineError where it just failed."""
        self._want(model)

    # idle models

    async def _unload_idle(self) -> None:
        """Unload models as they become idle, until none is loaded."""
        try:
            while loaded := [each for each in self.models.values() if each.current is not None]:
                await asyncio.sleep(max(0.01, min(map(self._rest, loaded))))
                for model in loaded:
                    self._unload_if_idle(model)
        finally:
            self._timer = None

    def _rest(self, model: PooledModel) -> float:
        """Seconds until a model may be idle for long enough."""
        if model.users or model.loading is not None or model.leaving:
            return self.settings.idle
        return model.used + self.settings.idle - self._now()

    def _unload_if_idle(self, model: PooledModel) -> None:
        if model.current is None or model.users or model.loading is not None or model.leaving:
            return
        if self._now() - model.used >= self.settings.idle:
            logger.info("%s is unloaded: it was idle for %g seconds.", model.name, self.settings.idle)
            self.unload(model)

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
            model.unused.set()  # its users are gone, or are about to be told
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
    """name: the adapter's, by which the engine knows it, too."""

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
