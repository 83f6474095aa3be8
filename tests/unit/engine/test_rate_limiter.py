"""RateLimiter: the order in which batches get resources that they share; and Ops with one."""

from __future__ import annotations

import asyncio

import pytest
from doubles import Engine, Tag, answers, settle, virtual

from pipeline import RequestOp
from pipeline.engine.op.limiter import open_limits
from pipeline.engine.op.rate_limiter import ANY_DEVICE, SHARED, Needs, RateLimiter
from pipeline.errors import ConfigError


class Run:
    """A run that any worker takes, or the one with a number."""

    is_superseded = False

    def __init__(self, name, worker=None):
        self.name, self.worker = name, worker


class Model:
    """A model at a limiter, which notes what begins."""

    def __init__(self, limiter, begun, *needs):
        self._runs: list[Run] = []
        self._begun = begun
        self.limited = limiter.add(needs, self._start)

    def _start(self, run):
        self._begun.append(run.name)
        self._runs.append(run)

    def ask(self, name, worker=None):
        self.limited.ask(Run(name, worker))

    def end(self):
        """The first run that is under way ends."""
        self.limited.release(self._runs.pop(0))

    @property
    def is_working(self):
        return bool(self._runs)


def needs(priority=1, device=0, **resources):
    return Needs({(device, name): count for name, count in resources.items()}, priority)


def test_instances_that_need_the_same_run_one_after_the_other():
    begun: list[str] = []
    limiter = RateLimiter()
    one, other = (Model(limiter, begun, needs(r=2)) for _ in range(2))
    one.ask("a")
    other.ask("b")
    assert begun == ["a"]
    one.end()
    assert begun == ["a", "b"]


def test_abundant_resources_are_shared():
    begun: list[str] = []
    limiter = RateLimiter({(ANY_DEVICE, "r"): 4})
    one, other = (Model(limiter, begun, needs(r=2)) for _ in range(2))
    one.ask("a")
    other.ask("b")
    assert begun == ["a", "b"]


def test_a_model_without_resources_waits_only_for_its_instances():
    begun: list[str] = []
    limiter = RateLimiter()
    busy, free = Model(limiter, begun, needs(r=1)), Model(limiter, begun, needs())
    busy.ask("a")
    free.ask("b")
    free.ask("c")
    assert begun == ["a", "b"], "it has one instance"
    free.end()
    assert begun == ["a", "b", "c"]


@pytest.mark.parametrize("priority", [2, 3])
def test_priorities_share_out_the_executions(priority):
    begun: list[str] = []
    limiter = RateLimiter()
    often, seldom = Model(limiter, begun, needs(r=1)), Model(limiter, begun, needs(priority, r=1))
    for _ in range(60):
        often.ask("often")
        seldom.ask("seldom")
    while len(begun) < 60:
        (often if often.is_working else seldom).end()
    assert abs(begun.count("often") - priority * begun.count("seldom")) <= priority


def test_a_large_need_is_not_overtaken_forever():
    begun: list[str] = []
    limiter = RateLimiter({(ANY_DEVICE, "r"): 4})
    small, large = Model(limiter, begun, *[needs(r=2)] * 2), Model(limiter, begun, needs(r=4))
    for _ in range(6):
        small.ask("small")
    large.ask("large")
    small.end()
    assert begun == ["small", "small"], "there is room for another small one, which waits"
    small.end()
    assert begun == ["small", "small", "large"]


def test_a_new_model_does_not_make_up_for_missed_runs():
    begun: list[str] = []
    limiter = RateLimiter()
    old = Model(limiter, begun, needs(r=1))
    for _ in range(50):
        old.ask("old")
        old.end()
    new = Model(limiter, begun, needs(r=1))
    begun.clear()
    for _ in range(10):
        old.ask("old")
        new.ask("new")
    while len(begun) < 10:
        (old if old.is_working else new).end()
    assert 4 <= begun.count("new") <= 6


def test_a_run_for_one_worker_waits_for_its_own_instance():
    begun: list[str] = []
    model = Model(RateLimiter(), begun, needs(), needs())
    model.ask("a", worker=1)
    model.ask("b", worker=1)
    model.ask("c", worker=0)
    assert begun == ["a", "c"]
    model.end()
    assert begun == ["a", "c", "b"]


def test_a_closed_model_releases_its_resources():
    begun: list[str] = []
    limiter = RateLimiter()
    one, other = (Model(limiter, begun, needs(r=2)) for _ in range(2))
    one.ask("a")
    one.ask("never")
    other.ask("b")
    one.limited.close()
    assert begun == ["a", "b"]


def test_instances_that_can_run_at_once_are_counted():
    limiter = RateLimiter()
    shared = Needs({(0, "r"): 2, (SHARED, "s"): 2}, 2)
    model = Model(limiter, [], needs(r=4), shared)
    assert model.limited.at_once == 1
    plenty = RateLimiter({(ANY_DEVICE, "r"): 6, (ANY_DEVICE, "s"): 2})
    assert Model(plenty, [], needs(r=4), shared).limited.at_once == 2


@pytest.mark.parametrize(
    ("limits", "count"),
    [({(ANY_DEVICE, "r"): 1}, 1), ({(10, "r"): 9}, 0), ({(ANY_DEVICE, "other"): 9}, 0)],
)
def test_too_few_resources_are_refused_with_tritons_message(limits, count):
    limiter = RateLimiter(limits)
    text = (
        f'Resource count for "r" is limited to {count} which will prevent scheduling of one or '
        "more model instances, the minimum required count is 4"
    )
    with pytest.raises(ConfigError, match=text):
        limiter.add([needs(r=4)], print)
    if count:
        limiter.add([needs(r=1)], print)


def test_a_resource_is_of_each_device_or_of_all():
    limiter = RateLimiter()
    limiter.add([needs(r=1)], print)
    with pytest.raises(ConfigError, match="present as both global and device-specific"):
        limiter.add([Needs({(SHARED, "r"): 1})], print)


NEED = {"resources": [{"name": "r", "count": 1}]}


@virtual
async def test_ops_that_need_the_same_do_not_work_at_the_same_time():
    source = RequestOp()
    left, right = Tag("left", [source]), Tag("right", [source])
    config = {"op": {name: {"rate_limiter": NEED} for name in ("left", "right")}}
    times = {"left": 1.0, "right": 1.0}
    async with Engine(Tag("join", [left, right]), config, times) as there:
        limiter = RateLimiter()
        open_limits(limiter, there.nodes.values(), asyncio.get_running_loop())
        started = [there.ask(path=str(n)) for n in range(3)]
        await settle()
        responses = [answers(await item) for item in started]
        assert [response["path"] for response in responses] == [
            f"({n}>left|{n}>right)>join" for n in range(3)
        ]
        assert there.executor._loop.time() == 1006.0, "each of six took its second alone"


@virtual
async def test_a_lost_batch_releases_its_resources():
    config = {"op": {"only": {"rate_limiter": NEED, "timeout": 1000}}}
    async with Engine(Tag("only", [RequestOp()]), config, {"only": None}) as there:
        open_limits(RateLimiter(), there.nodes.values(), asyncio.get_running_loop())
        late = there.ask(timeout_s=2.0, path="a")
        await late
        (node,) = there.nodes.values()
        assert there.executor.inside == 0
        assert not node.filters[-1].model._waiting


@virtual
async def test_a_model_with_more_work_queues_behind_the_waiting_ones():
    source = RequestOp()
    often, seldom = Tag("often", [source]), Tag("seldom", [source])
    seldom_needs = {**NEED, "priority": 2}
    config = {"op": {"often": {"rate_limiter": NEED}, "seldom": {"rate_limiter": seldom_needs}}}
    async with Engine(Tag("join", [often, seldom]), config, {"often": 1.0, "seldom": 1.0}) as there:
        open_limits(RateLimiter(), there.nodes.values(), asyncio.get_running_loop())
        tasks = [there.ask(path=str(n)) for n in range(12)]
        await asyncio.sleep(9.5)
        taken = {op.name: node.links.answered for op, node in there.nodes.items()}
        assert (taken["often"], taken["seldom"]) == (6, 3)
        await asyncio.gather(*tasks)
