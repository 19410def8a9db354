"""The number of threads follows what the machine does beside the model: by a clock that stands for the machine."""

import pytest

from agent_server.generation.core.threads import ThreadChoice
from agent_server.generation.process.process import OPENMP_WAITS, child_environment
from tests.generation.harness import Driver
from tests.generation.tiny_models import make_model


class Machine:
    """Two or more cores; `cost` says what a token of a step takes with so many threads."""

    def __init__(self, cores, cost):
        self.now, self.count, self.cost, self.counts = 0.0, cores, cost, []
        self.threads = ThreadChoice(cores, self._use, lambda: self.now)

    def _use(self, count):
        self.count = count

    def run(self, steps, tokens=1):
        began = self.now
        for _ in range(steps):
            with self.threads.timed(tokens):
                self.now += self.cost(self.count, tokens) * tokens
                self.counts.append(self.count)
        return self.now - began


QUIET = lambda count, tokens: 1 / count  # noqa: E731
BUSY = lambda count, tokens: 1.0 if count == 1 else 20.0  # noqa: E731


@pytest.mark.parametrize(("cost", "best"), [(QUIET, 2), (BUSY, 1)])
def test_a_task_takes_less_than_twice_what_the_best_number_takes(cost, best):
    machine = Machine(2, cost)
    machine.run(20)
    assert machine.run(300) < 1.5 * 300 * cost(best, 1)


def test_it_changes_when_the_machine_does():
    machine = Machine(8, QUIET)
    machine.run(2000)
    assert machine.count == 8
    machine.cost = BUSY
    machine.run(40)
    assert machine.count == 1
    machine.cost = QUIET
    machine.run(1500)
    assert machine.count == 8


def test_prompts_and_tokens_are_chosen_for_apart():
    machine = Machine(4, lambda count, tokens: QUIET(count, tokens) if tokens > 8 else BUSY(count, tokens))
    for _ in range(200):
        machine.run(1, tokens=100)
        prompt = machine.count
        machine.run(1)
    assert (prompt, machine.count) == (4, 1)


def test_one_core_is_never_asked_for_two():
    machine = Machine(1, QUIET)
    machine.run(300)
    assert set(machine.counts) == {1}


def test_a_core_times_its_steps_unless_the_operator_names_a_number(monkeypatch):
    """`Driver` names one thread; with 0 the steps are timed."""
    monkeypatch.setattr("agent_server.generation.loading.runner_choice.SMALL_PARAMETERS", 0)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    used = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    driver = Driver(make_model("qwen3"), threads=0)
    driver.submit([5, 6, 7], max_tokens=30)
    driver.finish()
    assert 2 in used and driver.core.threads is not None
    assert Driver(make_model("qwen3"), threads=3).core.threads is None and used[-1] == 3


def test_threads_of_the_engines_process_spin_for_a_moment_unless_the_operator_says_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", *OPENMP_WAITS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "5")
    environment = child_environment()
    assert {name: environment[name] for name in OPENMP_WAITS} == {**OPENMP_WAITS, "KMP_BLOCKTIME": "5"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert "GOMP_SPINCOUNT" not in child_environment()


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_operators_allocator_settings_take_precedence(name, monkeypatch):
    """torch reads the second name, which is older, only if the first is not set."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for each in names:
        monkeypatch.delenv(each, raising=False)
    assert child_environment()["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setenv(name, "max_split_size_mb:64")
    environment = child_environment()
    assert {each: environment[each] for each in names if each in environment} == {name: "max_split_size_mb:64"}
