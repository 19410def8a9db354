"""The scheduler and its memories under random operations: nothing leaks, nobody starves, nothing comes twice."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from agent_server.generation.own_caches.own_caches import CachesMemory
from agent_server.generation.scheduling import scheduler, slabs
from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.scheduler import Scheduler
from agent_server.generation.scheduling.sequence import MAX_CHUNKS, PENDING, Sequence, common_prefix
from agent_server.generation.scheduling.slabs import BuddyAllocator, SlabMemory

MEMORIES = {
    "pages": lambda: PagedMemory(13, 4),
    "slabs": lambda: SlabMemory(64, 8),
    "caches": lambda: CachesMemory(50, state=2),
    "caches-unpadded": lambda: CachesMemory(48, padded=False),
}
LONGEST = 48


def make(number, tokens, limit=LONGEST, tenant="", priority=0, shareable=True, place=None):
    place = place and (tenant, place)
    sequence = Sequence(number, list(tokens), len(tokens), limit, tenant=tenant, priority=priority, lease_key=place)
    sequence.shareable = shareable
    return sequence


def make_filling(number, tokens, place, tenant="", priority=0, until=100.0):
    """One that is there for a lease alone."""
    sequence = make(number, tokens, tenant=tenant, priority=priority, place=place)
    sequence.terms, sequence.blocked = LeaseTerms(sequence.lease_key, until, priority), True
    return sequence


class Machine:
    """A scheduler whose `model` writes what it computes into a picture of the memory, and checks what it reads."""

    def __init__(self, memory, max_running=4, step_tokens=6, patience=50, in_flight=0, chunk_tokens=0):
        self.memory = memory
        self.scheduler = Scheduler(
            memory, max_running=max_running, step_tokens=step_tokens, patience=patience, chunk_tokens=chunk_tokens
        )
        self.written = {}
        self.flights = []
        self.in_flight = in_flight
        self.delivered = {}
        self.over = set()

    def add(self, sequence):
        self.delivered[sequence.number] = []
        self.scheduler.add(sequence)

    def places(self, sequence):
        """Where the sequence's tokens are, by the memory's bookkeeping."""
        if isinstance(self.memory, PagedMemory):
            size = self.memory.page_size
            return [page * size + slot for page in self.memory.table(sequence) for slot in range(size)]
        if isinstance(self.memory, SlabMemory):
            slab = self.memory.slab(sequence)
            return range(slab.offset, slab.offset + slab.size)
        return [(sequence.number, index) for index in range(LONGEST * 2)]

    def step(self):
        plan = self.scheduler.schedule()
        for sequence in self.scheduler.completed_prefills(plan):
            self.over.add(sequence.number)
            self.scheduler.finish(sequence, keep_prefill=True)
        if isinstance(self.memory, SlabMemory):
            self.copy()
        for sequence in plan.decodes:
            self.compute(sequence, sequence.computed - 1, sequence.computed)
        for chunk in plan.chunks:
            assert PENDING not in chunk.sequence.tokens[: chunk.start + chunk.length]
            self.compute(chunk.sequence, chunk.start, chunk.start + chunk.length)
        self.scheduler.commit(plan)
        self.flights.append([(sequence, len(sequence.tokens) - 1) for sequence in plan.sampled])
        while len(self.flights) > self.in_flight:
            self.land(self.flights.pop(0))
        return plan

    def copy(self):
        for copy in self.memory.copies:
            for step in range(copy.length):
                self.written[copy.target + step] = self.written[copy.source + step]
        self.memory.copies.clear()

    def compute(self, sequence, start, end):
        """Everything before `start` must be there, by its whole history; then the new tokens are written."""
        places = self.places(sequence)
        assert len(places) >= end
        for index in range(start):
            self.check(self.written[places[index]], sequence, index)
        for index in range(start, end):
            self.written[places[index]] = (sequence, index, tuple(sequence.tokens[: index + 1]))

    def check(self, written, sequence, index):
        """A token that was on its way when it was written is by now what its writer got."""
        writer, where, history = written
        assert (writer.tenant, where) == (sequence.tenant, index)
        history = [writer.tokens[place] if token == PENDING else token for place, token in enumerate(history)]
        now = sequence.tokens[: index + 1]
        assert len(history) == len(now)
        mine = writer is sequence
        assert all(a == b or (mine and PENDING in (a, b)) for a, b in zip(history, now, strict=True))

    def land(self, flight):
        for sequence, index in flight:
            if sequence.number in self.over:
                continue
            assert sequence.known == index, "tokens come in order, each once"
            self.scheduler.settle(sequence, 100 + index % 7)
            self.delivered[sequence.number].append(index)
            if sequence.known >= sequence.limit:
                self.finish(sequence)

    def drain(self):
        while self.flights:
            self.land(self.flights.pop(0))

    def finish(self, sequence):
        self.over.add(sequence.number)
        self.scheduler.finish(sequence)

    def run(self, steps=4000):
        for _ in range(steps):
            if self.scheduler.idle and not any(self.flights):
                return
            self.step()
        raise AssertionError("not done")

    def assert_clean(self):
        assert self.memory.usage == 0
        self.memory.leases.expire(float("inf"))
        assert len(self.memory.leases) == self.memory.leases.tokens == 0
        assert not self.scheduler.running and not self.scheduler.paused and not self.scheduler.waiting
        assert self.scheduler.queue.tenants == {}
        assert sorted(self.scheduler._rows) == list(range(self.scheduler.max_running))
        if isinstance(self.memory, PagedMemory):
            assert self.memory.available == self.memory.total
            assert set(self.memory._references) == {0}
        if isinstance(self.memory, SlabMemory):
            for slab in list(self.memory._cached):
                del self.memory._cached[slab]
                self.memory._discard(slab)
            assert self.memory.buddies.free == self.memory.total
            assert self.memory._slab_of_block == {} and self.memory.slabs == {}


prompt = st.builds(
    lambda shared, own: [7] * shared + own, st.integers(0, 20), st.lists(st.integers(1, 3), min_size=1, max_size=20)
)


class Life(RuleBasedStateMachine):
    """Random lives of sequences; `in_flight` steps are launched ahead of their tokens."""

    sequences = Bundle("sequences")

    @initialize(
        memory=st.sampled_from(sorted(MEMORIES)),
        in_flight=st.integers(0, 1),
        headroom=st.integers(0, 8),
        patience=st.sampled_from([0, 50]),
        chunk_tokens=st.sampled_from([0, 1, 3]),
    )
    def begin(self, memory, in_flight, headroom, patience, chunk_tokens):
        slabs.HEADROOM, slabs.BLOCK, scheduler.AGING_STEPS, scheduler.MIN_SHARED_TOKENS = headroom, 4, 1, 4
        self.machine = Machine(MEMORIES[memory](), in_flight=in_flight, patience=patience, chunk_tokens=chunk_tokens)
        self.count = 0

    @rule(
        target=sequences,
        tokens=prompt,
        more=st.integers(1, 20),
        tenant=st.sampled_from("ab"),
        priority=st.integers(0, 2),
        shareable=st.booleans(),
        place=st.sampled_from([None, "x", "y"]),
    )
    def submit(self, tokens, more, tenant, priority, shareable, place):
        self.count += 1
        limit = min(len(tokens) + more, LONGEST)
        sequence = make(self.count, tokens, limit, tenant, priority, shareable, place)
        self.machine.add(sequence)
        return sequence

    @rule(
        target=sequences,
        tokens=prompt,
        tenant=st.sampled_from("ab"),
        priority=st.integers(0, 2),
        place=st.sampled_from("xy"),
        until=st.integers(0, 9),
    )
    def fill(self, tokens, tenant, priority, place, until):
        self.count += 1
        sequence = make_filling(self.count, tokens, place, tenant, priority, until)
        self.machine.add(sequence)
        return sequence

    @rule(now=st.integers(0, 9))
    def expire(self, now):
        self.machine.memory.leases.expire(now)

    @rule(share=st.sampled_from([0.0, 0.3, 1.0]))
    def limit(self, share):
        self.machine.memory.leases.limit(share)

    @invariant()
    def leases_are_within_the_budget(self):
        if hasattr(self, "machine"):
            leases = self.machine.memory.leases
            assert leases.tokens == sum(lease.tokens for lease in leases._by_key.values())

    @rule(times=st.integers(1, 8))
    def step(self, times):
        for _ in range(times):
            self.machine.step()

    @rule(sequence=consumes(sequences))
    def cancel(self, sequence):
        self.machine.drain()
        if sequence.number not in self.machine.over:
            self.machine.finish(sequence)

    @rule(sequence=sequences)
    def pause(self, sequence):
        self.machine.drain()
        if sequence.state in ("waiting", "running"):
            self.machine.scheduler.pause(sequence)

    @rule(sequence=sequences)
    def resume(self, sequence):
        if sequence.state == "paused":
            self.machine.scheduler.resume(sequence)

    @invariant()
    def rows_are_their_own(self):
        if hasattr(self, "machine"):
            rows = [sequence.row for sequence in self.machine.scheduler.running]
            assert len(set(rows)) == len(rows) and -1 not in rows
            assert 0 <= self.machine.memory.usage <= 1

    def teardown(self):
        if not hasattr(self, "machine"):
            return
        for sequence in list(self.machine.scheduler.paused):
            self.machine.scheduler.resume(sequence)
        self.machine.run()
        for indices in self.machine.delivered.values():
            assert indices == sorted(set(indices))
        self.machine.assert_clean()
        slabs.HEADROOM, slabs.BLOCK, scheduler.AGING_STEPS, scheduler.MIN_SHARED_TOKENS = 256, 32, 64, 32


Life.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase


@pytest.fixture(params=MEMORIES)
def machine(request):
    return Machine(MEMORIES[request.param]())


def test_everybody_gets_every_token(machine):
    sequences = [make(number, range(1, 1 + number), 30) for number in range(1, 12)]
    for sequence in sequences:
        machine.add(sequence)
    machine.run()
    assert [machine.delivered[s.number] for s in sequences] == [list(range(n, 30)) for n in range(1, 12)]
    machine.assert_clean()


def test_a_short_prompt_does_not_wait_for_a_long_one():
    machine = Machine(PagedMemory(200, 4), step_tokens=8)
    machine.add(make(1, range(1, 200), 400))
    machine.step()
    machine.add(make(2, range(300, 304), 310))
    machine.step()
    assert machine.delivered[2] == [4], "its prompt fits beside the long one's chunk"
    assert machine.delivered[1] == []


def test_a_long_prompt_gets_on_beside_a_stream_of_short_ones():
    machine = Machine(PagedMemory(400, 4), step_tokens=8)
    long = make(1, range(1, 200), 201)
    machine.add(long)
    for number in range(2, 300):
        machine.add(make(number, [300 + number] * 8, 9))
        machine.step()
    assert machine.delivered[1] == [199, 200]


def test_a_prompt_in_chunks_does_not_stop_those_that_decode():
    machine = Machine(PagedMemory(200, 4), step_tokens=8)
    machine.add(make(1, [1, 2], 100))
    machine.step()
    machine.add(make(2, range(1, 300), 400))
    for _ in range(20):
        machine.step()
    assert len(machine.delivered[1]) == 21


def test_chunks_are_short_beside_more_that_decode_than_prompts_wait():
    machine = Machine(PagedMemory(400, 4), max_running=8, step_tokens=64, chunk_tokens=8)
    machine.add(make(0, range(60), 100))
    assert [chunk.length for chunk in machine.step().chunks] == [60], "nobody is held up"
    machine.add(make(1, range(100, 140), 200))
    plan = machine.step()
    assert len(plan.decodes) == 1 and [chunk.length for chunk in plan.chunks] == [8]
    machine.add(make(2, range(200, 240), 300))
    plan = machine.step()
    assert len(plan.decodes) == 1 and sum(chunk.length for chunk in plan.chunks) == 63, "two wait, one decodes"


def test_few_chunks_stand_beside_decoding_and_the_oldest_is_always_one():
    """A graph has few places for chunks; a long prompt keeps its own against any number of short ones."""
    machine = Machine(PagedMemory(2000, 4), max_running=64, step_tokens=200, chunk_tokens=16)
    for number in range(32):
        machine.add(make(number, [number]))
    machine.step()
    machine.add(make(100, range(1000, 1048), limit=100))
    for step in range(6):
        for number in range(10):
            machine.add(make(200 + 10 * step + number, [step, number], limit=3))
        plan = machine.step()
        assert len(plan.chunks) <= MAX_CHUNKS and sum(chunk.length for chunk in plan.chunks) <= 16
        assert [chunk.length for chunk in plan.chunks if chunk.sequence.number == 100] == [4], "a quarter"


def test_forced_tokens_of_many_have_no_more_chunks_than_a_graph():
    """They are no prompts that wait, even where nobody decodes."""
    machine = Machine(PagedMemory(2000, 4), max_running=12, step_tokens=200, chunk_tokens=64)
    asked = [make(number, [number, 1], limit=100) for number in range(12)]
    for sequence in asked:
        machine.add(sequence)
    machine.step()
    for sequence in asked:
        for token in range(3):
            machine.scheduler.append(sequence, 200 + token)
    first, second = machine.step(), machine.step()
    assert not first.decodes and [chunk.length for chunk in first.chunks] == [4] * MAX_CHUNKS
    assert len(second.decodes) == MAX_CHUNKS and [chunk.length for chunk in second.chunks] == [4] * 4


def test_tenants_take_turns_whatever_they_ask_for():
    machine = Machine(PagedMemory(400, 4), max_running=2)
    for number in range(1, 21):
        machine.add(make(number, [1, 2, 3], 6, tenant="greedy"))
    machine.add(make(21, [1, 2, 3], 6, tenant="modest"))
    while not machine.delivered[21]:
        machine.step()
    assert sum(bool(machine.delivered[number]) for number in range(1, 21)) <= 3


def test_priority_goes_first_and_patience_ends_it():
    machine = Machine(PagedMemory(400, 4), max_running=1, patience=100)
    machine.add(make(0, [1], 5))
    low = make(1, [1, 2, 3], 6)
    machine.add(low)
    number = 2
    for _ in range(3000):
        if len([s for s in machine.scheduler.iterate() if s.priority]) < 3:
            machine.add(make(number, [1, 2, 3], 6, priority=1))
            number += 1
        machine.step()
        if low.state == "finished":
            break
    assert low.state == "finished", "a stream of higher priorities does not starve it"
    assert number > 10, "they went first for as long as patience lasted"


def admitted(machine):
    """The numbers of the sequences in the order in which each got its first token."""
    order = []
    while any(True for _ in machine.scheduler.iterate()):
        machine.step()
        order += [number for number, tokens in machine.delivered.items() if tokens and number not in order]
    return order


def test_later_turns_pass_first_ones_within_their_tenant_by_a_bound():
    def play(turns_ahead):
        machine = Machine(PagedMemory(400, 4), max_running=1)
        machine.scheduler.queue.turns_ahead = turns_ahead
        for number in range(1, 9):
            sequence = make(number, [1, 2, 3], 4)
            sequence.later = number in (5, 7)
            machine.add(sequence)
        return admitted(machine)

    assert play(0) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert play(3) == [1, 5, 2, 3, 7, 4, 6, 8]
    assert play(100) == [5, 7, 1, 2, 3, 4, 6, 8]


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 6))
def test_no_first_turn_is_passed_by_more_later_ones_than_the_bound(later, turns_ahead):
    machine = Machine(PagedMemory(400, 4), max_running=1)
    machine.scheduler.queue.turns_ahead = turns_ahead
    for number, each in enumerate(later):
        sequence = make(number, [1], 2)
        sequence.later = each
        machine.add(sequence)
    order = admitted(machine)
    for place, number in enumerate(order):
        passed_by = [other for other in order[:place] if other > number]
        assert len(passed_by) <= turns_ahead and all(later[other] for other in passed_by)
        assert not (later[number] and passed_by), "turns of the same kind keep their order"


def test_the_youngest_of_the_lowest_priority_makes_room():
    memory = PagedMemory(13, 4)
    machine = Machine(memory, max_running=3, step_tokens=32)
    high, old, young = make(1, range(8), 32, priority=1), make(2, range(10, 18), 24), make(3, range(20, 26), 24)
    for sequence in (high, old, young):
        machine.add(sequence)
    while not machine.scheduler.preemptions:
        machine.step()
    assert [s.state for s in (high, old, young)] == ["running", "running", "waiting"]
    machine.run()
    machine.assert_clean()


def test_a_plan_that_failed_is_undone(machine):
    one, two = make(1, [1, 2, 3], 10), make(2, range(1, 12), 20)
    machine.add(one)
    machine.step()
    machine.add(two)
    before = (list(one.tokens), one.computed)
    plan = machine.scheduler.schedule()
    machine.scheduler.undo(plan)
    assert (one.tokens, one.computed, one.pending) == (*before, 0)
    assert two.computed == 0
    machine.run()
    assert machine.delivered[1] == list(range(3, 10)) and machine.delivered[2] == list(range(11, 20))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=60), st.integers(1, 6))
def test_buddies_never_overlap_and_join_again(operations, tops):
    buddies = BuddyAllocator(8 * 16 * tops // 2, 8)
    total, held = buddies.free, []
    for take, number in operations:
        if take:
            size = 8 << number
            offset = buddies.take(size) if size <= buddies.largest else None
            if offset is not None:
                assert offset % size == 0
                held.append((offset, size))
        elif held:
            buddies.give(*held.pop(number % len(held)))
        spans = sorted(held)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
        assert buddies.free == total - sum(size for _, size in held)
    for block in held:
        buddies.give(*block)
    assert buddies.take(buddies.largest) is not None, "everything joined again"


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_common_prefix(left, right):
    end = min(len(left), len(right))
    found = common_prefix(left, right, 0, end)
    assert left[:found] == right[:found]
    assert found == end or left[found] != right[found]


@pytest.mark.parametrize("memory", ["pages", "slabs"])
def test_tenants_do_not_see_each_others_prefixes(memory):
    large = {"pages": lambda: PagedMemory(100, 4), "slabs": lambda: SlabMemory(1024, 64)}
    machine = Machine(large[memory](), step_tokens=64)
    prompt = list(range(1, 41))
    for number, tenant in ((1, "a"), (2, "b"), (3, "a")):
        machine.add(make(number, prompt, 44, tenant=tenant))
        sequence = next(machine.scheduler.iterate())
        machine.run()
        assert (sequence.cached > 0) == (number == 3)


def test_a_long_slab_is_kept_when_a_stranger_shares_its_beginning():
    memory = SlabMemory(4096, 64)
    machine = Machine(memory, step_tokens=4096)
    first = make(1, range(1, 300), 310)
    machine.add(first)
    machine.run()
    stranger = make(2, [*range(1, 101), *range(500, 600)], 250)
    machine.add(stranger)
    machine.run()
    again = make(3, [*first.tokens[:305], 9, 9], 320)
    machine.add(again)
    machine.run()
    assert (stranger.cached, again.cached) == (100, 305)


def test_a_page_with_tokens_that_were_on_their_way_is_shared_once_they_are_known(monkeypatch):
    """Two sequences say the same; the second is sent back and finds what the first wrote while its tokens were due."""
    monkeypatch.setattr(scheduler, "AGING_STEPS", 1)
    machine = Machine(MEMORIES["pages"](), in_flight=1, patience=0)
    for _ in range(22):
        machine.step()
    same = [7] * 17 + [1] * 4
    for number, (tokens, priority, shareable) in enumerate(((same, 0, True), (same, 0, True), ([1], 1, False)), 1):
        machine.add(make(number, tokens, len(tokens) + 9, "a", priority, shareable))
    machine.run()
    assert machine.scheduler.preemptions
    machine.assert_clean()


# --- places that are kept


def rounds(machine, *sequences):
    for sequence in sequences:
        machine.add(sequence)
    machine.run()


@pytest.fixture(params=["pages", "slabs"])
def roomy(request):
    """A machine with 64 tokens of room, in a memory that shares parts of prompts."""
    return Machine(PagedMemory(17, 4) if request.param == "pages" else SlabMemory(64, 8), step_tokens=64)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(slabs, "BLOCK", 4)
    monkeypatch.setattr(slabs, "HEADROOM", 0)
    monkeypatch.setattr(scheduler, "MIN_SHARED_TOKENS", 4)


def test_a_kept_place_outlives_others_that_are_used_later(roomy):
    rounds(roomy, make_filling(1, range(1, 14), "mine"))
    for number in range(6):
        rounds(roomy, make(10 + number, [50 + number] * 13, 15))
    assert roomy.memory.leases.evicted == 0
    later = make(2, [*range(1, 14), 90], 16, place="mine")
    rounds(roomy, later)
    assert later.cached == 12 and roomy.memory.leases.reused == 1
    roomy.assert_clean()


def test_without_a_lease_the_same_place_is_gone(roomy):
    rounds(roomy, make(1, range(1, 14), 14))
    for number in range(6):
        rounds(roomy, make(10 + number, [50 + number] * 13, 15))
    later = make(2, [*range(1, 14), 90], 16)
    rounds(roomy, later)
    assert later.cached == 0


def test_who_needs_the_room_gets_it_from_the_lowest_priority_first():
    roomy = Machine(PagedMemory(17, 4), step_tokens=64)
    rounds(roomy, make_filling(1, range(1, 16), "low", priority=0), make_filling(2, range(30, 45), "high", priority=1))
    assert len(roomy.memory.leases) == 2
    large = make(3, range(60, 102), 44)
    rounds(roomy, large)
    assert large.state == "finished" and roomy.scheduler.preemptions == 0
    assert list(roomy.memory.leases._by_key) == [("", "high")]
    assert roomy.memory.leases.evicted == 1
    roomy.assert_clean()


def test_a_lease_never_keeps_a_sequence_from_running(machine):
    rounds(machine, *(make_filling(number, [number] * 15, str(number)) for number in range(1, 5)))
    longest = make(9, range(1, 40), 47)
    rounds(machine, longest)
    assert machine.delivered[9] == list(range(39, 47)) and machine.scheduler.preemptions == 0
    machine.assert_clean()


def test_a_lease_ends_at_its_time_and_when_it_is_let_go(roomy):
    rounds(roomy, make_filling(1, range(1, 14), "one", until=5), make_filling(2, range(20, 33), "two", until=9))
    leases = roomy.memory.leases
    leases.expire(5)
    assert list(leases._by_key) == [("", "two")]
    leases.end(("", "two"))
    leases.end(("", "two"))
    assert leases.ended == 2 and leases.evicted == 0
    roomy.assert_clean()


def test_leases_are_kept_within_their_budget(roomy):
    roomy.memory.leases.limit(0.25)
    rounds(roomy, make_filling(1, range(1, 14), "one", until=5))
    rounds(roomy, make_filling(2, range(20, 33), "two", until=9))
    assert list(roomy.memory.leases._by_key) == [("", "two")], "the one that would end first goes"
    rounds(roomy, make_filling(3, range(40, 60), "large", until=99))
    assert roomy.memory.leases.tokens <= 16
    roomy.assert_clean()


def test_a_place_that_is_filled_again_has_one_lease(roomy):
    rounds(roomy, make_filling(1, range(1, 10), "mine"))
    rounds(roomy, make_filling(2, range(1, 20), "mine"))
    assert len(roomy.memory.leases) == 1 and roomy.memory.leases.reused == 0
    later = make(3, range(1, 22), 24, place="mine")
    rounds(roomy, later)
    assert later.cached >= 16
    roomy.assert_clean()


# --- prompts that begin alike


def computed_tokens(machine):
    """Prompt tokens that are computed until all is done."""
    computed = 0
    for _ in range(1000):
        if machine.scheduler.idle:
            return computed
        computed += sum(chunk.length for chunk in machine.step().chunks)
    raise AssertionError("not done")


def test_of_several_with_one_prompt_that_come_at_once_one_computes_it():
    machine = Machine(PagedMemory(200, 4), step_tokens=16)
    for number in range(1, 5):
        machine.add(make(number, range(1, 62), 64))
    assert computed_tokens(machine) == 61 + 3, "all but the last page is shared, which has one token"
    machine.assert_clean()


def test_a_prompt_that_begins_as_another_waits_for_the_beginning_alone():
    machine = Machine(PagedMemory(200, 4), step_tokens=16)
    first, second = make(1, [*range(1, 41), *range(100, 140)], 84), make(2, [*range(1, 41), *range(200, 210)], 60)
    stranger = make(3, range(300, 310), 320)
    for sequence in (first, second, stranger):
        machine.add(sequence)
    machine.step()
    assert (first.state, second.state, stranger.state) == ("running", "waiting", "running"), "nobody else waits"
    for _ in range(5):
        machine.step()
    assert second.cached == 40 and first.prefilling, "it went on as soon as its own part was there"
    machine.run()
    machine.assert_clean()


@pytest.mark.parametrize(("tenant", "salt"), [("b", ""), ("a", "own")])
def test_who_may_not_share_does_not_wait(tenant, salt):
    machine = Machine(PagedMemory(200, 4), step_tokens=16)
    one, other = make(1, range(1, 62), 64, tenant="a"), make(2, range(1, 62), 64, tenant=tenant)
    other.salt = salt
    machine.add(one)
    machine.add(other)
    machine.step()
    assert (one.state, other.state) == ("running", "running")
