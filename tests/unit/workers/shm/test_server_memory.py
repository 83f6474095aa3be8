from __future__ import annotations

import contextlib
import os
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from same_payload import assert_same

from pipeline.engine.run.payload import ALIGNMENT, LOCAL
from pipeline.errors import OverloadedError, PayloadTypeError
from pipeline.workers.shm.arena import Arena, RegionAllocator, address_of
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


def test_a_block_of_the_server_is_free_after_its_payload(memory):
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


def test_data_without_room_is_refused_until_there_is_room(memory):
    count = (MIB - 4096) // BIG["x"].nbytes
    payloads = [own_parcel(memory) for _ in range(count)]
    with pytest.raises(OverloadedError, match=r"have no room.*dag\.shared_memory_mib"):
        own_parcel(memory)
    del payloads[-1]
    assert own_parcel(memory).open()["x"].nbytes == 40_000


def test_an_unused_block_can_be_freed(memory):
    block = memory.alloc(100)
    memory.free(block)
    assert memory.alloc(100) == block


def test_a_worker_receives_freed_blocks_once(memory):
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


def test_payloads_may_be_released_in_any_thread(memory):
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


def test_freed_blocks_that_were_not_taken_are_free_at_the_end_of_the_worker(memory):
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


def test_a_payload_without_blocks_does_not_touch_the_memory(memory):
    payload = memory.payload(SerializedPayload(b"x"))
    assert memory.used == 0
    del payload
    assert memory.used == 0


# Bodies that are received there -----------------------------------------------------------


def region_of(memory):
    return np.frombuffer(memory.arena.view(memory.own_region), np.uint8)


@pytest.mark.parametrize("aligned_at", [0, 1, 64, 117])
def test_a_body_has_a_place_where_its_arrays_are_aligned(memory, aligned_at):
    for domain in (memory, LOCAL):
        body = domain.place(1000, aligned_at)
        assert body.nbytes == 1000
        assert body.flags.writeable
        assert address_of(body[aligned_at:]) % ALIGNMENT == 0
        assert np.shares_memory(body, region_of(memory)) == (domain is memory)


def test_an_array_in_the_arena_is_not_copied(memory):
    body = memory.place(40_000 + 7, 7)
    body[:] = 5
    image = body[7:].view(np.float32).reshape(100, 100)
    payload = memory.serialize({"image": image})
    (block,) = payload.serialized.buffers
    assert memory.used == 1
    assert np.shares_memory(np.frombuffer(memory.arena.read(block), np.uint8), body)
    del body, image
    assert memory.used == 1
    assert (payload.open()["image"].view(np.uint8) == 5).all()
    del payload
    assert memory.used == 0


@pytest.mark.parametrize(
    "payload_of",
    [lambda x: x, lambda x: {"x": x, "n": 3}, lambda x: {"x": [x]}, lambda x: {"x": x.T}],
    ids=["alone", "beside a number", "further down", "in another order"],
)
def test_a_placed_body_is_found_anywhere_in_a_payload(memory, payload_of):
    body = memory.place(40_000)
    body[:] = np.arange(40_000) % 251
    sent = payload_of(body.reshape(200, 200))
    payload = memory.serialize(sent)
    assert memory.used == 1
    assert_same(sent, payload.open())


def test_a_strided_view_is_copied(memory):
    body = memory.place(80_000)
    body[:] = 1
    payload = memory.serialize({"x": body[::2]})
    assert memory.used == 2
    del body
    assert memory.used == 1
    assert payload.open()["x"].sum() == 40_000


def test_a_body_sent_twice_stays_until_both_payloads_are_released(memory):
    body = memory.place(40_000)
    first, second = memory.serialize({"x": body}), memory.serialize([body, body])
    del body, first
    assert memory.used == 1
    del second
    assert memory.used == 0


def test_a_failed_payload_does_not_lose_a_placed_body(memory):
    body = memory.place(40_000)
    with pytest.raises(PayloadTypeError):
        memory.serialize({"y": b"y" * 40_000, "x": body, "z": (i for i in ())})
    assert memory.used == 1
    assert memory.serialize({"y": np.ones(40_000, np.uint8)})._kept == {}
    del body
    assert memory.used == 0


def test_bodies_get_half_of_the_room_and_heap_memory_beyond(memory):
    bodies = [memory.place(MIB // 4) for _ in range(3)]
    region = region_of(memory)
    assert [np.shares_memory(body, region) for body in bodies] == [True, True, False]
    assert memory.used == 2
    del bodies
    assert memory.used == 0
    assert np.shares_memory(memory.place(MIB // 2), region)


def test_an_untouched_body_uses_no_memory():
    memory = ServerMemory(Arena(64 * MIB))
    body = memory.place(30 * MIB)
    body[:5000] = 1
    assert os.fstat(memory.arena.fd).st_blocks * 512 <= MIB
    del body, memory


def test_an_answer_that_is_only_looked_at_is_held_by_its_arrays(memory):
    worker = Writer(memory)
    answer = {"x": np.full(40_000, 7, np.uint8), "n": 1, "deep": [{"y": np.full(30_000, 8.0)}]}
    payload = memory.payload(worker.serialized(answer))
    result = payload.open(copy=False)
    del payload
    assert memory.used == 2
    again = memory.serialize({"x": result["x"]})
    assert memory.used == 2
    memory.close_region(worker.region)
    assert_same(answer, result, is_private=False)
    del result
    assert memory.used == 2  # those of one answer go together
    assert (again.open()["x"] == 7).all()
    del again
    assert memory.used == 0


def test_an_array_outlives_the_memory():
    memory = ServerMemory(Arena(MIB))
    body = memory.place(40_000)
    body[:] = 3
    memory.close()
    assert body.sum() == 120_000
    del body
    assert memory.place(10).nbytes == 10


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
        try:
            serialized = worker.serialized({"x": np.full(20_000, fill, np.uint8)})
        except OverloadedError:
            return None
        self.counted[self.serial] = [worker.region, self.memory.payload(serialized), fill]
        return self.serial

    @rule(target=payloads, size=st.integers(20_000, 200_000))
    def receive(self, size):
        self.serial += 1
        fill = self.serial % 251
        body = self.memory.place(size)
        body[:] = fill
        try:
            payload = self.memory.serialize({"x": body})
        except OverloadedError:
            return None
        self.counted[self.serial] = [self.memory.own_region, payload, fill]
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
        with contextlib.suppress(OverloadedError):
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
