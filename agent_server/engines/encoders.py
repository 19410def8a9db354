"""Shared parts of models that encode texts instead of generating them: their thread and their source."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from agent_server.engine_protocol.protocol import EngineError

if TYPE_CHECKING:
    from agent_server.engines.upstream.transport import Transport
    from agent_server.settings import Settings

logger = logging.getLogger("agent_server")
MAX_WAITING = 16_384
"""Inputs that may wait; more are refused."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
Model = TypeVar("Model")
Encoded = TypeVar("Encoded")


class ThreadedModel(Generic[Model]):
    """A model that is loaded and computed in a thread of its own."""

    kind = "model"
    """What the model is called while it loads."""

    def __init__(self, name: str, load: Callable[[], Model]) -> None:
        self.name = name
        self._load = load
        self._model: Model | None = None
        self._failure = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.kind.replace(" ", "-"))

    async def start(self) -> None:
        """Load the model. Never raises: `loaded` and `unready` report a failure."""
        try:
            self._model = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
        except Exception as error:  # whatever a file, transformers or a model's code brings
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._failure = f"Cannot load {self.name}: {reason}"
            logger.error("%s", self._failure)

    @property
    def unready(self) -> str:
        """Why no request can be answered yet; "" once they can."""
        if self._model is not None:
            return ""
        return self._failure or f"The {self.kind} {self.name} is loading."

    def loaded(self) -> Model:
        """Return the model. Raises EngineError until it is loaded."""
        if self._model is None:
            raise EngineError("unavailable", self.unready, retryable=not self._failure)
        return self._model

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class LocalEncoder(ThreadedModel[Model], Generic[Model, Encoded]):
    """A model whose inputs are computed together, those of all requests that wait."""

    def __init__(self, name: str, load: Callable[[], Model]) -> None:
        super().__init__(name, load)
        self._waiting: list[tuple[list[Encoded], asyncio.Future[list[list[float]]]]] = []
        self._working: asyncio.Task[None] | None = None

    def compute(self, model: Model, texts: Sequence[Encoded]) -> list[list[float]]:
        """Return a row of numbers for each text. Called in the model's thread."""
        raise NotImplementedError

    async def computed(self, texts: list[Encoded]) -> list[list[float]]:
        """Return the rows of `compute` for these texts, which are batched with those of other requests. Raises
        EngineError."""
        model = self.loaded()
        if sum(len(waiting) for waiting, _ in self._waiting) + len(texts) > MAX_WAITING:
            raise EngineError("overloaded", f"Too many inputs wait for {self.name}.", retryable=True)
        done: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((texts, done))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(model))
        return await done

    async def _work(self, model: Model) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = [each for each in self._waiting if not each[1].done()], []
            texts = [text for some, _ in batch for text in some]
            try:
                rows = await loop.run_in_executor(self._thread, self.compute, model, texts)
            except Exception as error:  # a model's code may raise anything: that fails these requests, not the server
                logger.exception("%s failed", self.name)
                for _, done in batch:
                    if not done.done():
                        done.set_exception(EngineError("internal", f"{self.name} failed: {type(error).__name__}."))
                continue
            at = 0
            for some, done in batch:
                if not done.done():
                    done.set_result(rows[at : at + len(some)])
                at += len(some)

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._working
        for _, done in self._waiting:
            done.cancel()
        await super().close()


def check_source(source: str, wanted: str, use: str) -> None:
    """Raise ValueError where no such model can be loaded. wanted: such as "an embedding model"; use: what needs the
    packages, such as "Embeddings of"."""
    if not Path(source).is_dir() and not HUB_NAME.fullmatch(source):
        raise ValueError(f"There is no folder {source}. Give a folder with {wanted}, or a hub name.")
    if missing := [package for package in ("torch", "transformers") if importlib.util.find_spec(package) is None]:
        raise ValueError(f"{use} {source} need {missing[0]}: pip install 'agent-server[local]'.")


def upstream_transport(url: str, settings: Settings) -> Transport:
    """Create the transport to an upstream other than the chat model's. Raises ValueError for an invalid address."""
    from agent_server.engines.upstream import parse_address
    from agent_server.engines.upstream.transport import Transport

    return Transport(parse_address(url, settings.upstream.key.get_secret_value()), settings.upstream)
