"""Slots: who may have one while workers come, leave and are lost."""

from __future__ import annotations

from pipeline.engine.sequences.slots import SequenceSlot, Slots


def slots_of(*lives, count=2):
    slots = Slots(count)
    slots.workers_are(dict(enumerate(lives)))
    return slots


def places(slots):
    return [(slot.worker, slot.number) for slot in (slots.take() for _ in range(slots.free))]


def test_the_lowest_slot_number_is_first_then_the_lowest_worker():
    assert places(slots_of(7, 8)) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_leaving_worker_becomes_vacant_with_its_last_sequence():
    slots = slots_of(7, 8, count=1)
    held = [slots.take(), slots.take()]
    slots.leave([1], held)
    assert slots.take_vacant() == []
    slots.give_back(held[1])
    assert slots.free == 0
    assert slots.take_vacant() == [1]
    assert slots.take_vacant() == [], "it is reported once"
    assert slots.workers_are({0: 7}) == {1}
    slots.give_back(held[0])
    assert places(slots) == [(0, 0)]


def test_a_leaving_worker_that_is_wanted_again_stays():
    slots = slots_of(7, 8)
    held = [slots.take(), slots.take()]
    slots.leave([0, 1], held)
    assert slots.free == 0
    slots.leave([], held)
    assert slots.take_vacant() == []
    assert places(slots) == [(0, 1), (1, 1)]


def test_a_worker_lost_while_leaving_has_no_slots_after_its_restart():
    slots = slots_of(7, 8)
    held = [slots.take(), slots.take()]
    slots.leave([1], held)
    assert slots.workers_are({0: 7}) == {1}
    slots.workers_are({0: 7, 1: 9})
    assert places(slots) == [(0, 1)]
    assert slots.take_vacant() == [1]
    slots.give_back(held[1])
    assert slots.free == 0, "of the one that was lost"


def test_a_new_worker_of_the_same_number_has_slots():
    slots = slots_of(7, 8, count=1)
    slots.leave([1], [])
    assert slots.take_vacant() == [1]
    slots.workers_are({0: 7})
    slots.workers_are({0: 7, 1: 9})
    assert [slots.take(), slots.take()] == [SequenceSlot(0, 0, 7), SequenceSlot(0, 1, 9)]
