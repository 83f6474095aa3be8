"""`dynamic`: what Triton's suites L0_batcher, L0_model_queue and L0_priority ask of a batcher, on a
virtual clock; and what they leave open."""

from __future__ import annotations

import random
import weakref

import pytest
from queueing import Queueing

from pipeline.config.batching import QueuePolicyConfig
from pipeline.engine.schedulers.base import Refusal, StartCondition
from pipeline.engine.schedulers.dynamic_batcher import EXPIRED, FULL, PolicyQueue

TEN_S = 10_000_000


def preferring(*sizes, delay=TEN_S, held=0, **more):
    """Return a batcher that distinguishes requests by their shape, as Triton does."""
    batcher = Queueing(preferred_batch_size=list(sizes), max_queue_delay_microseconds=delay, **more)
    batcher.scheduler.form = lambda item: item.inputs["x"]
    batcher.scheduler.start = StartCondition(held) if held else None
    return batcher


def send(batcher, *requests):
    """Send (time, rows) or (time, rows, shape), in order; then let all delays pass."""
    for time, *request in requests:
        batcher.at(time).ask(request[0], shape=request[1] if len(request) > 1 else 16)
    return batcher.at(100.0).sizes


# L0_batcher: name of the test there, preferred sizes, requests, (time, size) of the executions.
CASES = [
    ("static_batch_preferred", (2, 6), [(0, 2), (0, 6)], [(0, 2), (0, 6)]),
    ("static_batch_lt_any_preferred", (2, 6), [(0, 1)], [(10, 1)]),
    ("static_batch_not_preferred", (2, 6), [(0, 3)], [(10, 3)]),
    ("static_batch_gt_max_preferred", (2, 6), [(0, 7)], [(0, 7)]),
    ("multi_batch_different_shape", (2, 6), [(0, 1), (1, 1, 8)], [(1, 1), (11, 1)]),
    ("multi_batch_not_preferred", (2, 6), [(0, 1), (1, 3)], [(10, 4)]),
    (
        "multi_batch_not_preferred_different_shape",
        (2, 6),
        [(0, 1), (0, 3), (1, 1, 8)],
        [(1, 4), (11, 1)],
    ),
    (
        "multi_batch_preferred_different_shape",
        (2, 6),
        [(0, 1), (0, 3), (1, 1, 8), (1, 5, 8)],
        [(1, 4), (1, 6)],
    ),
    ("multi_batch_gt_max_preferred", (2, 6), [(0, 3), (1, 7)], [(1, 3), (1, 7)]),
    ("multi_batch_sum_gt_max_preferred", (2, 6), [(0, 3), (1, 4)], [(1, 3), (11, 4)]),
]


@pytest.mark.parametrize(("name", "sizes", "requests", "ran"), CASES, ids=[c[0] for c in CASES])
def test_cases_of_l0_batcher(name, sizes, requests, ran):
    assert send(preferring(*sizes), *requests) == ran


# The same with TRITONSERVER_DELAY_SCHEDULER: so many are there when the batcher begins.
HELD = [
    ("multi_batch_delayed_sum_gt_max_preferred", (2, 6), 2, [(0, 3), (1, 4)], [(1, 3), (11, 4)]),
    ("multi_batch_delayed_use_max_batch", (2, 6), 3, [(0, 3), (0, 4), (11, 1)], [(11, 8)]),
    (
        "multi_batch_delayed_preferred_different_shape",
        (2, 6),
        4,
        [(0, 1), (0, 3), (1, 1, 8), (1, 5, 8)],
        [(1, 4), (1, 6)],
    ),
    ("multi_batch_use_biggest_preferred", (2, 6), 6, [(0, 1)] * 6, [(0, 6)]),
    ("multi_batch_use_best_preferred", (2, 6), 3, [(0, 1), (0, 1), (1, 1)], [(1, 2), (11, 1)]),
]


@pytest.mark.parametrize(
    ("name", "sizes", "held", "requests", "ran"), HELD, ids=[c[0] for c in HELD]
)
def test_cases_of_l0_batcher_that_collect_first(name, sizes, held, requests, ran):
    assert send(preferring(*sizes, held=held), *requests) == ran


@pytest.mark.parametrize(("count", "ran"), [(4, [4]), (5, [4, 1]), (7, [6, 1]), (3, [3])], ids=str)
def test_without_a_delay_no_batch_waits_for_a_preferred_size(count, ran):
    """L0_batcher's preferred_batch_only_*: preferred sizes 4 and 6."""
    batcher = preferring(4, 6, delay=0, held=count)
    for _ in range(count):
        batcher.ask()
    assert batcher.sizes == [(0, size) for size in ran]


def test_a_batch_grows_while_the_instances_are_busy():
    """L0_batcher's max_queue_delay_only_default: the rest of 12 is the second batch."""
    batcher = Queueing(batch_size=32, run_s=0.1)
    for _ in range(12):
        batcher.ask()
    assert [size for _, size in batcher.at(1.0).sizes] == [1, 11]


def test_all_of_several_shapes_run_in_order():
    batcher = preferring(4, delay=0, held=6)
    for shape in (8, 8, 16, 16, 8, 8):
        batcher.ask(shape=shape)
    assert batcher.order == [[1, 2], [3, 4], [5, 6]]


def test_observed_of_triton_preferred_four_of_three_four_and_five():
    """3 requests ran together after 300 ms; 4 at once; 5: 4 at once and 1 after 300 ms."""
    for count, ran in ((3, [(0.3, 3)]), (4, [(0, 4)]), (5, [(0, 4), (0.3, 1)])):
        batcher = preferring(4, delay=300_000)
        for _ in range(count):
            batcher.ask()
        assert batcher.at(1.0).sizes == ran
    batcher = preferring(4, delay=300_000)
    assert send(batcher, (0, 3), (0, 3)) == [(0, 3), (0.3, 3)]


def test_a_request_is_never_split_and_a_batch_never_too_large():
    batcher = Queueing(batch_size=8, run_s=0.1)
    for _ in range(4):
        batcher.ask(rows=3)
    assert [size for _, size in batcher.at(1.0).sizes] == [3, 6, 3]


def test_a_batch_has_at_most_the_samples_that_the_model_accepts():
    batcher = Queueing(batch_size=32, max_queue_delay_microseconds=TEN_S)
    batcher.load.max_rows = 4
    for _ in range(5):
        batcher.ask()
    assert batcher.at(100.0).sizes == [(0, 4), (10, 1)]


def test_a_batch_is_cut_at_once_when_the_engine_is_full():
    batcher = preferring(8)
    batcher.load.is_full = True
    batcher.ask(3)
    assert batcher.sizes == [(0, 3)]


def test_batches_are_bounded_by_the_room_of_the_next_op():
    batcher = Queueing(batch_size=8)
    batcher.load.max_items = 0
    for _ in range(5):
        batcher.ask()
    assert batcher.sizes == []
    batcher.load.max_items = 3
    batcher.load.workers = 0
    batcher.cut()
    assert batcher.sizes == []
    batcher.load.workers = 1
    batcher.cut()
    assert batcher.order == [[1, 2, 3], [4, 5]]


# L0_model_queue --------------------------------------------------------------------------------


def test_max_queue_size():
    """8 samples run; of 10 requests behind them 8 wait, and 2 are refused at once."""
    batcher = Queueing(
        batch_size=32,
        run_s=5.0,
        preferred_batch_size=[4, 8],
        default_queue_policy={"max_queue_size": 8},
    )
    batcher.ask(8)
    for _ in range(9):
        batcher.at(0.5).ask()
    batcher.ask(id="mine")
    assert batcher.refused == {
        10: (f"[request id: <id_unknown>] {FULL}", 0.5),
        11: (f"[request id: mine] {FULL}", 0.5),
    }
    assert batcher.at(100.0).sizes == [(0, 8), (5, 8)]


def test_policy_delay():
    batcher = preferring(
        *(4, 8),
        batch_size=32,
        default_queue_policy={"timeout_action": "delay", "default_timeout_microseconds": 100_000},
    )
    batcher.ask(1)
    batcher.at(0.2).ask(2)
    batcher.ask(2)
    assert batcher.at(100.0).batches == [(0.2, [2, 2], [2, 3]), (10.0, [1], [1])]
    assert batcher.refused == {}


def test_policy_reject():
    batcher = preferring(
        *(4, 8), batch_size=32, default_queue_policy={"default_timeout_microseconds": 100_000}
    )
    batcher.ask(1)
    batcher.at(0.2).ask(2)
    batcher.ask(2)
    assert batcher.refused == {1: (EXPIRED, 0.1)}
    assert batcher.at(100.0).batches == [(0.2, [2, 2], [2, 3])]


@pytest.mark.parametrize("way_out", ["remove", "overflow", "expire"])
def test_an_empty_queue_has_nothing_of_its_requests(way_out):
    class Request:
        pass

    policy = QueuePolicyConfig(default_timeout_microseconds=100_000, max_queue_size=1)
    queue, request = PolicyQueue(policy), Request()
    gone = weakref.ref(request)
    queue.add(request, 0.0)
    if way_out == "overflow":
        other = Request()
        queue.add(other, 0.0)
        assert queue.overflow() is other
    if way_out == "expire":
        queue.expire(1.0)
    else:
        queue.remove(request)
    del request
    assert len(queue) == 0
    assert gone() is None


@pytest.mark.parametrize(
    ("timeout", "refused_at", "ran_at"),
    [(100_000, 0.1, 0.2), (TEN_S, 1.0, 1.0), (0, 1.0, 1.0)],
    ids=["shorter", "longer", "none"],
)
def test_timeout_override(timeout, refused_at, ran_at):
    policy = {"allow_timeout_override": True, "default_timeout_microseconds": 1_000_000}
    batcher = preferring(4, 8, batch_size=32, default_queue_policy=policy)
    batcher.ask(1, timeout=timeout)
    batcher.at(0.2).ask(2)
    batcher.ask(2)
    batcher.at(100.0)
    assert batcher.refused == {1: (EXPIRED, refused_at)}
    assert batcher.batches == [(ran_at, [2, 2], [2, 3])]


@pytest.mark.parametrize("policy", [{"allow_timeout_override": True}, {}], ids=["allowed", "not"])
def test_without_a_default_timeout_the_timeout_of_a_request_is_ignored(policy):
    batcher = preferring(4, default_queue_policy=policy)
    batcher.ask(1, timeout=1)
    assert batcher.at(100.0).sizes == [(10.0, 1)]
    assert batcher.refused == {}


@pytest.mark.parametrize(
    ("levels", "default"), [(2, 2), (2**64 - 1, 2**32)], ids=["priority", "max_priority"]
)
def test_priority_levels(levels, default):
    batcher = preferring(
        4, 8, batch_size=32, priority_levels=levels, default_priority_level=default
    )
    batcher.ask(2)
    batcher.at(0.1).ask(1, priority=default)
    batcher.at(0.3).ask(2, priority=1)
    assert batcher.at(100.0).batches == [(0.3, [2, 2], [3, 1]), (10.1, [1], [2])]


def test_priority_with_policy():
    timeouts = {"allow_timeout_override": True, "default_timeout_microseconds": 11_000_000}
    batcher = preferring(
        *(4, 8, 32),
        batch_size=32,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy={"timeout_action": "delay", **timeouts},
        priority_queue_policy=[{"level": 2, "timeout_action": "reject", **timeouts}],
    )
    for place, (rows, priority, timeout) in enumerate(
        [(2, 1, 0), (1, 1, 1_000_000), (2, 1, 0), (2, 2, 2_000_000), (3, 2, 0), (6, 2, 0)]
    ):
        batcher.at(place / 5).ask(rows, priority=priority, timeout=timeout)
    batcher.at(100.0)
    assert batcher.batches == [
        (pytest.approx(1.2), [2, 2], [1, 3]),
        (pytest.approx(2.6), [1, 3], [2, 5]),
        (pytest.approx(11.0), [6], [6]),
    ]
    assert batcher.refused == {4: (EXPIRED, pytest.approx(2.6))}


# Beyond them ------------------------------------------------------------------------------------


def test_a_level_has_strict_priority_and_is_first_in_first_out_as_in_triton():
    batcher = Queueing(batch_size=1, run_s=1.0, priority_levels=3, default_priority_level=2)
    for level in (2, 3, 3, 1, 2, 1, 2):
        batcher.ask(priority=level)
    assert batcher.at(100.0).order == [[1], [4], [6], [5], [7], [2], [3]]


@pytest.mark.parametrize("priority", [0, 4, 2**63])
def test_a_priority_outside_the_levels_becomes_the_default_level(priority):
    batcher = Queueing(batch_size=1, run_s=1.0, priority_levels=3, default_priority_level=2)
    batcher.ask()
    batcher.ask(priority=3)
    batcher.ask(priority=priority)
    batcher.ask(priority=1)
    assert batcher.at(100.0).order == [[1], [4], [3], [2]]


def test_without_levels_a_priority_is_ignored():
    batcher = Queueing(batch_size=1, run_s=1.0)
    for priority in (5, 3, 1):
        batcher.ask(priority=priority)
    assert batcher.at(100.0).order == [[1], [2], [3]]


def test_a_request_of_higher_priority_displaces_others_from_a_waiting_batch():
    batcher = Queueing(
        batch_size=4,
        max_queue_delay_microseconds=TEN_S,
        priority_levels=2,
        default_priority_level=2,
    )
    for rows, priority in ((1, 2), (1, 2), (1, 1), (2, 1)):
        batcher.ask(rows, priority=priority)
    assert batcher.order == [[3, 4, 1]]


def test_each_level_has_its_own_queue_size():
    batcher = Queueing(
        batch_size=1,
        run_s=1.0,
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy={"max_queue_size": 2},
        priority_queue_policy=[{"level": 2, "max_queue_size": 1}],
    )
    for priority in (1, 1, 1, 1, 2, 2):
        batcher.ask(priority=priority)
    assert sorted(batcher.refused) == [4, 6], "the first one runs"
    assert batcher.at(100.0).order == [[1], [2], [3], [5]]


def test_a_timeout_is_reported_in_time_while_all_instances_are_busy():
    policy = {"default_timeout_microseconds": 150_000}
    batcher = Queueing(batch_size=1, run_s=5.0, default_queue_policy=policy)
    batcher.ask()
    batcher.at(0.1).ask()
    batcher.at(100.0)
    assert batcher.refused == {2: (EXPIRED, 0.25)}
    assert batcher.order == [[1]], "its time is that in the queue, not that of its run"


def test_a_single_late_request_does_not_wait_while_an_instance_is_idle():
    policy = {"timeout_action": "delay", "default_timeout_microseconds": 100_000}
    batcher = Queueing(batch_size=1, run_s=1.0, default_queue_policy=policy)
    for _ in range(3):
        batcher.ask()
    batcher.at(0.95).ask()
    assert batcher.at(100.0).batches == [
        (time, [1], [number]) for time, number in ((0, 1), (1, 4), (2, 2), (3, 3))
    ]


def test_without_limits_a_full_batch_is_sent_ahead_to_a_busy_instance():
    batcher = Queueing(batch_size=2, run_s=1.0)
    batcher.load.service_s = 0.5
    for _ in range(6):
        batcher.ask()
    assert batcher.sizes == [(0, 1), (0, 2)]
    limited = Queueing(batch_size=2, run_s=1.0, default_queue_policy={"max_queue_size": 9})
    limited.load.service_s = 0.5
    for _ in range(6):
        limited.ask()
    assert limited.sizes == [(0, 1)], "who is limited is in the queue until it runs"


def test_a_cancelled_request_occupies_no_place_and_causes_no_delay():
    policy = {"default_timeout_microseconds": 1_000_000, "max_queue_size": 2}
    batcher = preferring(8, default_queue_policy=policy)
    first, second = batcher.ask(), batcher.ask()
    scheduler = batcher.scheduler
    assert scheduler.drop(batcher.items[first].request) == [batcher.items[first]]
    assert scheduler.drop(batcher.items[first].request) == []
    batcher.ask(2)
    assert not batcher.refused
    batcher.at(0.5).ask()
    assert batcher.refused.keys() == {4}
    assert scheduler.clear() == [batcher.items[second], batcher.items[3]]
    assert batcher.at(100.0).sizes == []
    assert not len(scheduler)


def test_arbitrary_priorities_do_not_accumulate_queues():
    batcher = Queueing(batch_size=1, priority_levels=2**64 - 1, default_priority_level=1)
    for priority in range(1, 1000):
        batcher.ask(priority=priority)
    assert len(batcher.batches) == 999
    assert len(vars(batcher.scheduler)["_queues"]) <= 65


def test_limits_of_finished_requests_are_removed():
    policy = {"default_timeout_microseconds": 3600_000_000}
    batcher = Queueing(batch_size=1, default_queue_policy=policy)
    for _ in range(1000):
        batcher.ask()
    (queue,) = vars(batcher.scheduler)["_queues"].values()
    assert len(vars(queue)["_limits"]) <= 70


@pytest.mark.parametrize("seed", range(20))
def test_each_request_runs_once_or_is_refused_and_batches_are_legal(seed):
    """Random requests and times: each batch is cut from the queue independently of earlier ones."""
    random_ = random.Random(seed)
    action = random_.choice(["reject", "delay"])
    batching = {
        "preferred_batch_size": random_.choice([[], [2], [2, 6], [4, 8]]),
        "max_queue_delay_microseconds": random_.choice([0, 50_000, 200_000]),
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": {
            "timeout_action": action,
            "default_timeout_microseconds": random_.choice([0, 100_000]),
            "allow_timeout_override": True,
            "max_queue_size": random_.choice([0, 5]),
        },
    }
    batcher = Queueing(batch_size=8, instances=2, run_s=random_.choice([0.0, 0.03]), **batching)
    batcher.scheduler.form = lambda item: item.inputs["x"]
    for _ in range(200):
        time = batcher.now + random_.choice([0, 0, 0.001, 0.04])
        rows, priority = random_.randint(1, 5), random_.randint(0, 4)
        timeout, shape = random_.choice([0, 20_000]), random_.choice([8, 8, 16])
        number = batcher.at(time).ask(rows, priority, timeout, shape)
        if random_.random() < 0.05 and number in batcher.items:
            for item in batcher.scheduler.drop(batcher.items[number].request):
                batcher.refused[item.data_id] = "left", batcher.now
    batcher.at(1000.0)
    ran = [number for numbers in batcher.order for number in numbers]
    assert sorted([*ran, *batcher.refused]) == list(range(1, 201))
    for _, rows, numbers in batcher.batches:
        assert sum(rows) <= 8
        assert len({batcher.items[number].inputs["x"] for number in numbers}) == 1
    assert not batcher.scheduler.drop(batcher.items[max(batcher.items)].request)
    if action == "delay":
        assert EXPIRED not in {text for text, _ in batcher.refused.values()}
    assert not isinstance(batcher.cut(), Refusal | float)
