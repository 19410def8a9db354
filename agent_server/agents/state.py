"""The state that a run shares with its clients: snapshots at boundaries, deltas in between, and predictions while an
argument is being written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jsonpatch
import msgspec
from partial_json_parser import Allow, loads
from pydantic import BaseModel, ValidationError

from agent_server.agents.server_tools import ToolFault
from events.vocabulary import Custom, Event, StateDelta, StateSnapshot, ToolCallArgs, ToolCallEnd, ToolCallStart

Emit = Callable[[Event], None]
PREDICTION_STEP = 24  # minimum growth of an argument in characters before its prediction is sent again


def copied(value: Any) -> Any:
    """A deep copy by way of JSON. Raises TypeError for what JSON cannot represent."""
    return msgspec.json.decode(msgspec.json.encode(value))


class SharedState:
    """One run's state. `value` is a JSON object that tools change in place; `push` sends what changed.

    schema: a pydantic model that the state must always fit, or None for any object.
    """

    def __init__(self, initial: object, emit: Emit, schema: type[BaseModel] | None = None) -> None:
        value: dict[str, Any] = copied(initial) if isinstance(initial, dict) else {}
        if schema is not None:
            with contextlib.suppress(ValidationError):  # defaults complete a state that fits the schema
                value = schema.model_validate(value).model_dump(mode="json", by_alias=True)
        self.value: dict[str, object] = value
        self._sent: dict[str, Any] = copied(self.value)
        self._emit = emit
        self._schema = schema
        self.changed = False

    @property
    def last_sent(self) -> dict[str, Any]:
        """The state that clients got last; it is not changed in place."""
        return self._sent

    def snapshot(self) -> None:
        """Send the whole state."""
        self._sent = copied(self.value)
        self._emit(StateSnapshot(snapshot=self._sent))

    def push(self) -> None:
        """Send what changed since the last event, as RFC 6902 operations; nothing if nothing changed.

        Raises ToolFault and reverts the change if it is not JSON or does not fit the schema.
        """
        try:
            now = copied(self.value)
            if self._schema is not None and now != self._sent:
                self._schema.model_validate(now)
        except (TypeError, ValueError, ValidationError) as error:
            self.value.clear()
            self.value.update(copied(self._sent))
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False, include_input=False, include_context=False)[0]
                reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ToolFault(f"The change to the shared state was refused: {reason}") from None
        self._push(now)

    def push_prediction(self) -> None:
        """As `push`, for a value that is still being written: it need not fit the schema yet."""
        self._push(copied(self.value))

    def _push(self, now: dict[str, object]) -> None:
        if patch := jsonpatch.make_patch(self._sent, now).patch:
            self._sent = now
            self.changed = True
            self._emit(StateDelta(delta=patch))


class PredictState(msgspec.Struct, frozen=True):
    """Shows the argument `tool_argument` of `tool` as `state_key` in the state while the model is writing it."""

    state_key: str
    tool: str
    tool_argument: str


class Predictor:
    """Follows tool calls while their arguments stream and writes declared arguments into the state.

    Each prediction replaces the whole value (a JSON patch cannot append to a string), so it is sent only when the
    argument has grown by a tenth: the bytes sent stay proportional to the argument's length.
    """

    def __init__(self, declared: Sequence[PredictState], state: SharedState) -> None:
        self._declared = declared
        self._state = state
        self._open: dict[str, tuple[PredictState, list[str]]] = {}
        self._length: dict[str, int] = {}
        self._sent: dict[str, int] = {}

    def announce(self, emit: Emit) -> None:
        """Send the CUSTOM event that tells CopilotKit which argument to show as which part of the state."""
        if self._declared:
            emit(Custom(name="PredictState", value=[msgspec.structs.asdict(each) for each in self._declared]))

    def follow(self, event: Event) -> None:
        """Observe an event of the turn; may change and push the state."""
        if isinstance(event, ToolCallArgs):
            call = self._open.get(event.tool_call_id)
            if call is None:
                return
            call[1].append(event.delta)
            length = self._length[event.tool_call_id] = self._length[event.tool_call_id] + len(event.delta)
            sent = self._sent[event.tool_call_id]
            if length - sent >= max(PREDICTION_STEP, sent // 10):
                self._sent[event.tool_call_id] = length
                self._predict(*call)
        elif isinstance(event, ToolCallStart):
            prediction = next((each for each in self._declared if each.tool == event.tool_call_name), None)
            if prediction is not None:
                self._open[event.tool_call_id] = (prediction, [])
                self._length[event.tool_call_id] = self._sent[event.tool_call_id] = 0
        elif isinstance(event, ToolCallEnd) and event.tool_call_id in self._open:
            self._predict(*self._open.pop(event.tool_call_id))

    def _predict(self, prediction: PredictState, pieces: list[str]) -> None:
        text = "".join(pieces)
        try:
            arguments = loads(text, Allow.ALL)
        except Exception:  # an incomplete JSON token; the next piece completes it
            return
        if isinstance(arguments, dict) and prediction.tool_argument in arguments:
            before = self._state.value.get(prediction.state_key)
            value = arguments[prediction.tool_argument]
            if value != before:
                self._state.value[prediction.state_key] = value
                self._state.push_prediction()
