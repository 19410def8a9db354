"""A small model's server is ready before its forward is recorded: that is done once there is nothing to compute."""

import threading
from queue import SimpleQueue

from agent_server.engine_protocol.protocol import Delta, Finished
from agent_server.generation.process import worker
from agent_server.generation.recorded.flat import RecordingInterrupted
from agent_server.generation.scheduling.messages import StopWorker
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_models import make_model


def test_it_is_recorded_when_nothing_is_asked_and_says_the_same(monkeypatch):
    monkeypatch.setattr(worker, "RECORD_AFTER", 0.0)
    driver = Driver(make_model("llama"), flatten=None)
    asked = prompts(1, seed=3)[0]
    number = driver.submit(asked, max_tokens=8)
    driver.finish()
    before = driver.ids(number)
    assert driver.core.runner.flat is None and driver.core.record is not None
    recorded, record = threading.Event(), driver.core.record
    driver.core.record = lambda: (record(), recorded.set())
    sent = SimpleQueue()
    serving = threading.Thread(target=worker.run, args=(driver.core, sent.put), daemon=True)
    serving.start()
    assert recorded.wait(120)
    number = driver.submit(asked, max_tokens=8, tenant="another")
    tokens, ended = [], False
    while not ended:
        for _, item in getattr(sent.get(timeout=60), "items", ()):
            tokens += [token.id for token in item.tokens] if isinstance(item, Delta) else []
            ended = ended or isinstance(item, Finished)
    driver.core.inbox.put(StopWorker())
    serving.join(60)
    assert driver.core.runner.flat is not None and driver.core.record is None
    assert tokens == before


def test_a_request_interrupts_the_recording_which_is_made_later(monkeypatch):
    monkeypatch.setattr(worker, "RECORD_AFTER", 0.0)
    driver = Driver(make_model("llama"), flatten=None)
    record, outcomes, recorded = driver.core.record, [], threading.Event()

    def record_while_a_request_arrives():
        if not outcomes:
            driver.submit(prompts(1, seed=3)[0], max_tokens=2)
        try:
            record()
        except BaseException as error:
            outcomes.append(type(error))
            raise
        outcomes.append(None)
        recorded.set()

    driver.core.record = record_while_a_request_arrives
    sent = SimpleQueue()
    serving = threading.Thread(target=worker.run, args=(driver.core, sent.put), daemon=True)
    serving.start()
    ended = None
    while ended is None:
        items = getattr(sent.get(timeout=60), "items", ())
        ended = next((item for _, item in items if isinstance(item, Finished)), None)
    assert recorded.wait(120)
    driver.core.inbox.put(StopWorker())
    serving.join(60)
    assert outcomes == [RecordingInterrupted, None]
    assert driver.core.runner.flat is not None and driver.core.record is None


def test_an_engine_whose_recording_fails_goes_on(monkeypatch):
    monkeypatch.setattr(worker, "RECORD_AFTER", 0.0)
    driver = Driver(make_model("llama"), flatten=None)
    failed = threading.Event()

    def record():
        failed.set()
        raise KeyError("a layer")

    driver.core.record = record
    sent = SimpleQueue()
    serving = threading.Thread(target=worker.run, args=(driver.core, sent.put), daemon=True)
    serving.start()
    assert failed.wait(120)
    driver.submit(prompts(1, seed=3)[0], max_tokens=2)
    ended = None
    while ended is None:
        items = getattr(sent.get(timeout=60), "items", ())
        ended = next((item for _, item in items if isinstance(item, Finished)), None)
    driver.core.inbox.put(StopWorker())
    serving.join(60)
    assert driver.core.runner.flat is None
