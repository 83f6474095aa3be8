from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pipeline.workers.shm.arena import Arena, RegionAllocator
from pipeline.workers.shm.payload import SerializedPayload, serialize
from pipeline.workers.shm.server_memory import ServerMemory

MIB = 2**20
BIG = {"x": np.zeros(40_000, np.uint8)}


@pytest.fixture
def memory():
    memory = ServerMemory(Arena(MIB))
    yield memory
    memory.close()


def own_parcel(memory):
    return memory.payload(serialize(BIG, memory, memory.arena))


class Writer:
    """A worker process's side of its region."""

    def __init__(self, memory):
        self.region = memory.open_region()
        self.arena = memory.arena
        self.allocator = RegionAllocator(memory.arena.view(self.region), self.region)

    def serialized(self, payload=BIG):
        return serialize(payload, self.allocator, self.arena)

    def free(self, blocks):
        for block in blocks:
            self.allocator.free(block)


def test_a_block_of_the_servers_own_is_free_when_its_parcel_is_gone(memory):
    payload = own_parcel(memory)
    shared = payload
    assert memory.used == 1
    del payload
    assert memory.used == 1
    del shared
    assert memory.used == 0


def test_the_servers_own_region_is_filled_again_and_again(memory):
    for _ in range(200):
        assert own_parcel(memory).serialized.buffers
    assert memory.used == 0


def test_what_finds_no_room_travels_in_band(memory):
    payloads = [own_parcel(memory) for _ in range(40)]
    assert memory.used < 40
    assert not payloads[-1].serialized.buffers
    assert payloads[-1].open()["x"].nbytes == 40_000


def test_a_block_that_came_to_nothing_is_given_back(memory):
    block = memory.alloc(100)
    memory.free(block)
    assert memory.alloc(100) == block


def test_a_worker_is_told_once_what_of_its_region_is_free(memory):
    worker = Writer(memory)
    first, second = memory.payload(worker.serialized()), memory.payload(worker.serialized())
    assert memory.take_freed(worker.region) == []
    blocks = list(first.serialized.buffers)
    del first
    assert memory.take_freed(worker.region) == blocks
    assert memory.take_freed(worker.region) == []
    worker.free(blocks)
    del second
    worker.free(memory.take_freed(worker.region))
    assert worker.allocator.used == 0


def test_parcels_may_go_in_any_thread(memory):
    worker = Writer(memory)
    payloads = [memory.payload(worker.serialized()) for _ in range(20)]
    thread = threading.Thread(target=payloads.clear)
    thread.start()
    thread.join()
    assert len(memory.take_freed(worker.region)) == 20


def test_the_region_of_a_worker_that_ended_is_used_again(memory):
    region = memory.open_region()
    memory.close_region(region)
    assert memory.open_region() == region


def test_the_region_of_a_worker_that_ended_waits_for_its_last_parcel(memory):
    worker = Writer(memory)
    first = memory.payload(worker.serialized({"x": np.full(40_000, 7, np.uint8)}))
    second = memory.payload(worker.serialized())
    memory.close_region(worker.region)
    following = memory.open_region()
    assert following != worker.region
    del second
    assert memory.used == 1
    assert (first.open()["x"] == 7).all()
    del first
    assert memory.used == 0
    assert memory.open_region() == worker.region


def test_blocks_that_were_free_but_not_looked_at_when_the_worker_ended_count(memory):
    worker = Writer(memory)
    payload = memory.payload(worker.serialized())
    del payload  # nobody has looked
    memory.close_region(worker.region)
    memory.alloc(1)
    following = Writer(memory)
    assert following.region == worker.region
    assert memory.take_freed(following.region) == []


def test_parcels_that_outlive_the_memory_do_no_harm(memory):
    payload = own_parcel(memory)
    memory.close()
    del payload


def test_a_parcel_without_blocks_is_no_concern_of_the_memory(memory):
    payload = memory.payload(SerializedPayload(b"x"))
    assert memory.used == 0
    del payload
    assert memory.used == 0


class Lives(RuleBasedStateMachine):
    """Workers come and go, payloads live as long as they like: nothing is lost or freed twice.

    A block that is freed twice, or of another life of its region, makes the allocator of the
    worker raise; what a payload holds is looked at as long as it lives.
    """

    workers, payloads = Bundle("workers"), Bundle("payloads")

    def __init__(self):
        super().__init__()
        self.memory = ServerMemory(Arena(MIB))
        self.alive: dict[int, Writer] = {}
        self.held = 0
        self.counted: dict[int, list] = {}
        self.serial = 0

    @rule(target=workers)
    def start(self):
        worker = Writer(self.memory)
        assert worker.region not in {region for region, *_ in self.counted.values()}
        assert worker.region not in self.alive
        self.alive[worker.region] = worker
        return worker

    @rule(target=payloads, worker=workers)
    def report(self, worker):
        self.serial += 1
        fill = self.serial % 251
        if self.alive.get(worker.region) is not worker:
            return None
        serialized = worker.serialized({"x": np.full(20_000, fill, np.uint8)})
        if not serialized.buffers:
            return None
        self.counted[self.serial] = [worker.region, self.memory.payload(serialized), fill]
        return self.serial

    @rule(serial=consumes(payloads))
    def drop(self, serial):
        self.counted.pop(serial, None)

    @rule(worker=workers)
    def tell(self, worker):
        if self.alive.get(worker.region) is worker:
            worker.free(self.memory.take_freed(worker.region))

    @rule(worker=consumes(workers))
    def end(self, worker):
        if self.alive.get(worker.region) is worker:
            del self.alive[worker.region]
            self.memory.close_region(worker.region)

    @rule()
    def own(self):
        own_parcel(self.memory)

    @invariant()
    def every_block_is_accounted_for(self):
        assert self.memory.used == len(self.counted)

    @invariant()
    def every_parcel_holds_what_it_held(self):
        for _, payload, fill in self.counted.values():
            assert (payload.open()["x"] == fill).all()

    def teardown(self):
        self.counted.clear()
        assert self.memory.used == 0
        for region, worker in self.alive.items():
            worker.free(self.memory.take_freed(region))
            assert worker.allocator.used == 0
        self.memory.close()


Lives.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
