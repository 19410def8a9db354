"""Shared parts of models that encode texts instead of generating them: their thread and their source."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from agent_server.engine_protocol.protocol import EngineError
from agent_server.fair_threads import FairThreads
from agent_server.user import current_user

if TYPE_CHECKING:
    from agent_server.engines.upstream.transport import Transport
    from agent_server.settings import Settings

logger = logging.getLogger("agent_server")
MAX_WAITING = 16_384
"""Inputs that may wait; more are refused. One tenant may have half of them."""
ROUND = 64
"""Inputs that are computed together. Each tenant that waits has an equal part of them."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
Model = TypeVar("Model")
Encoded = TypeVar("Encoded")


class ThreadedModel(Generic[Model]):
    """A model that is loaded and computed in a thread of its own, which tenants get in turn."""

    kind = "model"
    """What the model is called while it loads."""

    def __init__(self, name: str, load: Callable[[], Model]) -> None:
        self.name = name
        self._load = load
        self._model: Model | None = None
        self._failure = ""
        self._thread = FairThreads(self.kind.replace(" ", "-"), threads=1)

    async def start(self) -> None:
        """Load the model. Never raises: `loaded` and `unready` report a failure."""
        try:
            self._model = await self._thread.run(self._load)
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
        self._thread.close()


@dataclass(eq=False)
class _Request(Generic[Encoded]):
    """Inputs that are computed in rounds, and the rows of those that have been."""

    texts: Sequence[Encoded]
    done: asyncio.Future[list[list[float]]]
    rows: list[list[float]] = field(default_factory=list)

    @property
    def left(self) -> int:
        return 0 if self.done.done() else len(self.texts) - len(self.rows)


class LocalEncoder(ThreadedModel[Model], Generic[Model, Encoded]):
    """A model whose inputs are computed in rounds, those of several requests together, and those of tenants by turns,
    so that one with a long list delays the others by a round."""

    def __init__(self, name: str, load: Callable[[], Model]) -> None:
        super().__init__(name, load)
        self._waiting: dict[str, list[_Request[Encoded]]] = {}
        self._working: asyncio.Task[None] | None = None

    def compute(self, model: Model, texts: Sequence[Encoded]) -> list[list[float]]:
        """Return a row of numbers for each text. Called in the model's thread."""
        raise NotImplementedError

    async def computed(self, texts: list[Encoded]) -> list[list[float]]:
        """Return the rows of `compute` for these texts, which are batched with those of other requests. Raises
        EngineError."""
        model, tenant = self.loaded(), current_user.get().tenant
        if not texts:
            return []
        left = {name: sum(request.left for request in requests) for name, requests in self._waiting.items()}
        own = left.get(tenant, 0) + len(texts)
        if own > MAX_WAITING // 2 or sum(left.values()) + len(texts) > MAX_WAITING:
            raise EngineError("overloaded", f"Too many inputs wait for {self.name}.", retryable=True)
        request = _Request(texts, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant, []).append(request)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(model))
        return await request.done

    async def _work(self, model: Model) -> None:
        while batch := self._next_round():
            texts = [text for _, some in batch for text in some]
            try:
                rows = iter(await self._thread.run(self.compute, model, texts))
            except Exception as error:  # a model's code may raise anything: that fails these requests, not the server
                logger.exception("%s failed", self.name)
                for request, _ in batch:
                    if not request.done.done():
                        failure = EngineError("internal", f"{self.name} failed: {type(error).__name__}.")
                        request.done.set_exception(failure)
                continue
            for request, some in batch:
                request.rows += itertools.islice(rows, len(some))
                if not request.left and not request.done.done():
                    request.done.set_result(request.rows)

    def _next_round(self) -> list[tuple[_Request[Encoded], Sequence[Encoded]]]:
        """Return the next inputs of each tenant's oldest requests."""
        for tenant, requests in list(self._waiting.items()):
            self._waiting[tenant] = [request for request in requests if request.left]
            if not self._waiting[tenant]:
                del self._waiting[tenant]
        batch: list[tuple[_Request[Encoded], Sequence[Encoded]]] = []
        for requests in self._waiting.values():
            room = max(1, ROUND // len(self._waiting))
            for request in requests:
                some = request.texts[len(request.rows) :][:room]
                batch.append((request, some))
                room -= len(some)
                if not room:
                    break
        return batch

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._working
        for request in itertools.chain(*self._waiting.values()):
            request.done.cancel()
        await super().close()


def check_source(source: str, wanted: str, use: str) -> None:
    """Raise ValueError where no such model can be loaded. wanted: such as "an embedding model"; use: what needs the
    packages, such as "Embeddings of"."""
    if Path(source).is_file():
        raise ValueError(f"{source} is a file. Give the folder with {wanted} that it was made of, or a hub name.")
    if not Path(source).is_dir() and not HUB_NAME.fullmatch(source):
        raise ValueError(f"There is no folder {source}. Give a folder with {wanted}, or a hub name.")
    if missing := [package for package in ("torch", "transformers") if importlib.util.find_spec(package) is None]:
        raise ValueError(f"{use} {source} need {missing[0]}: pip install 'agent-server[local]'.")


def upstream_transport(url: str, settings: Settings) -> Transport:
    """Create the transport to an upstream other than the chat model's. Raises ValueError for an invalid address."""
    from agent_server.engines.upstream import parse_address
    from agent_server.engines.upstream.transport import Transport

    return Transport(parse_address(url, settings.upstream.key.get_secret_value()), settings.upstream)
