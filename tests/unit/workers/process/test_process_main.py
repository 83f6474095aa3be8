"""The main loop of a worker process, here in a thread: over real sockets and real memory."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading

import msgspec
import numpy as np
import pytest

from pipeline import Op, ProductError
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import Tensor
from pipeline.deadline import call_deadline
from pipeline.errors import PredictorUnavailableError, TooLargeError, error_from_fields
from pipeline.op import WorkerSpec, configure_op
from pipeline.workers.process.main import WorkerMain
from pipeline.workers.process.pages import StatusPage
from pipeline.workers.process.wire import (
    Init,
    Jobs,
    Unframer,
    WireItem,
    WireJob,
    WorkerReport,
    framed,
)
from pipeline.workers.shm.arena import Arena
from pipeline.workers.shm.payload import deserialize, serialize
from pipeline.workers.shm.server_memory import ServerMemory

MIB = 2**20
BIG = np.arange(64 * 1024, dtype=np.uint8)


class Echo(Op):
    """Answers with what it gets, with `hurt` done to it first."""

    def preprocess(self, input_dicts, data_id, log_id):
        return dict(input_dicts["read"]), False, None, ""


class RefusesToBeBuilt:
    """Survives pickle.dumps, not pickle.loads."""

    def __reduce__(self):
        return int, ("no number",)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not this one")


class Home:
    """The server's end of one worker that runs in a thread of this process."""

    def __init__(self, op=None, number=0, set_up=lambda op, number: None, begin=None):
        op = op or Echo("op")
        configure_op(
            op, resolve_op(op.name, op.pipeline_given, load_config(yml_dict={"rpc_port": 0}))
        )
        self.arena = Arena(MIB)
        self.memory = ServerMemory(self.arena)
        self.region = self.memory.open_region()
        self.status = StatusPage(self.arena.view(self.region))
        self.init = Init(self.region)
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(20)
        self.ended_with: list[BaseException] = []
        self.numbers = itertools.count(1)
        self.unframer = Unframer()
        self.bodies: list[bytes] = []
        self.main = WorkerMain(op, self.arena, begin or (lambda send: None), set_up)
        self.thread = threading.Thread(target=self._run, args=(theirs, number))

    def _run(self, sock, number):
        try:
            self.main(sock, number)
        except BaseException as error:
            self.ended_with.append(error)
        finally:
            sock.close()

    def __enter__(self):
        self.thread.start()
        self.sock.sendall(framed(self.init))
        return self

    def __exit__(self, *_):
        self.part()
        self.arena.close()

    def part(self):
        self.sock.close()
        self.thread.join(20)
        assert not self.thread.is_alive()

    def report(self) -> WorkerReport | None:
        """The next report; None if the worker has parted."""
        while not self.bodies:
            data = self.sock.recv(MIB)
            if not data:
                return None
            self.bodies += [bytes(body) for body in self.unframer.feed(data)]
        return msgspec.msgpack.decode(self.bodies.pop(0), type=WorkerReport)

    def ready(self) -> Home:
        assert self.report() == WorkerReport(is_ready=True)
        return self

    def job(self, *payloads, log_id=0) -> WireJob:
        number = next(self.numbers)
        samples = [
            WireItem(number * 100 + slot, log_id, {"read": self.serialized(payload)})
            for slot, payload in enumerate(payloads)
        ]
        return WireJob(number, samples)

    def serialized(self, payload):
        return serialize(payload, self.memory, self.arena)

    def send(self, *jobs, freed=()):
        self.sock.sendall(framed(Jobs(list(jobs), list(freed))))

    def results(self, count=1):
        """The results that come next, and in how many reports they came."""
        results, reports = [], 0
        while len(results) < count:
            report = self.report()
            assert report is not None, self.ended_with
            results += report.results
            reports += bool(report.results)
        return results, reports

    def opened(self, result):
        return [
            deserialize(outcome.payload, self.arena)
            if outcome.payload is not None
            else error_from_fields(outcome.error.name, outcome.error.code, outcome.error.text)
            for outcome in result.outcomes
        ]

    def ask(self, *payloads):
        self.send(self.job(*payloads))
        (result,), _ = self.results()
        return self.opened(result)


# Start ----------------------------------------------------------------------------------------


def test_the_op_is_prepared_before_init_op_and_ready_is_reported_after_it():
    class Loads(Echo):
        def init_op(self):
            seen.append((self.concurrency_idx, self.client))

    seen = []
    with Home(Loads("op"), 5, set_up=lambda op, number: setattr(op, "client", number)) as home:
        home.ready()
        assert seen == [(5, 5)]


@pytest.mark.parametrize("error", [ValueError("no file"), SystemExit("no file")])
def test_an_exception_in_init_op_is_reported_and_the_worker_ends(error):
    class Broken(Echo):
        def init_op(self):
            raise error

    with Home(Broken("op")) as home:
        report = home.report()
        assert not report.is_ready
        assert report.failure.startswith(f"{type(error).__name__}: no file\n")
        assert "in init_op" in report.failure
        assert home.report() is None
        home.thread.join(20)
        assert home.ended_with == []


def test_an_exception_without_text_is_reported():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("mute")

    class Broken(Echo):
        def init_op(self):
            raise Mute

    with Home(Broken("op")) as home:
        assert "Mute" in home.report().failure


def made(argument):
    class Made(Echo):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"made_of": argument, "batch_size": self.pipeline_config.batch_size}, None, ""

    return Made("made")


def test_a_worker_without_an_op_makes_the_one_of_its_spec():
    home = Home()
    home.main = WorkerMain(None, home.arena, lambda send: None, lambda op, number: None)
    home.init = Init(home.region, 0, spec=WorkerSpec(f"{__name__}:made", b"it"))
    home.init.config = resolve_op("made", {"batch_size": 3}, load_config(yml_dict={"rpc_port": 0}))
    with home:
        assert home.ready().ask({"x": 1}) == [{"made_of": b"it", "batch_size": 3}]


def test_a_worker_that_cannot_make_its_op_reports_it():
    home = Home()
    home.main = WorkerMain(None, home.arena, lambda send: None, lambda op, number: None)
    home.init = Init(home.region, 0, spec=WorkerSpec("pipeline.no_such:made", b""))
    home.init.config = resolve_op("made", {}, load_config(yml_dict={"rpc_port": 0}))
    with home:
        assert "no_such" in home.report().failure


def test_async_methods_run_on_one_loop_and_it_ends_with_the_worker():
    class Async(Echo):
        async def init_op(self):
            loops.append(asyncio.get_running_loop())

        async def preprocess(self, input_dicts, data_id, log_id):
            loops.append(asyncio.get_running_loop())
            return input_dicts["read"], False, None, ""

    loops = []
    with Home(Async("op")) as home:
        assert home.ready().ask({"x": 1}) == [{"x": 1}]
        assert loops[0] is loops[1]
        home.part()
        assert loops[0].is_closed()


def test_a_worker_without_a_server_ends_quietly():
    home = Home()
    home.sock.close()
    home.thread.start()
    home.thread.join(20)
    assert home.ended_with == []
    home.arena.close()


def test_log_records_are_sent_to_the_server():
    with Home(begin=lambda send: send(b"a record")) as home:
        assert home.report() == WorkerReport(records=[b"a record"])
        home.ready()


# Batches ------------------------------------------------------------------------------------


def test_every_sample_is_answered_in_order_and_the_times_rise():
    with Home() as home:
        home.ready()
        home.send(home.job({"x": 1}, {"x": 2}, {"x": 3}))
        (result,), _ = home.results()
        assert result.number == 1
        assert home.opened(result) == [{"x": 1}, {"x": 2}, {"x": 3}]
        times = [result.start_ns, result.preprocess_end_ns, result.process_end_ns, result.end_ns]
        assert times == sorted(times)
        assert times[0] > 0


def test_a_batch_in_several_calls_reports_its_executions():
    class Bounded(Echo):
        input_tensors = (Tensor("x", "FP32", ()),)
        max_batch_size = 4

        def process(self, feed_batch, typical_logid):
            return feed_batch[0]

    with Home(Bounded("op")) as home:
        home.ready()
        home.send(home.job(*({"x": np.zeros(count)} for count in (3, 3, 1))))
        (result,), _ = home.results()
        assert (result.rows, result.executions) == ([3, 3, 1], [0, 1, 1])
        times = [result.preprocess_end_ns, *result.execution_ends_ns, result.process_end_ns]
        assert times == sorted(times)


def test_the_ids_of_a_request_reach_the_user():
    class Ids(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"ids": [data_id, log_id]}, False, None, ""

    with Home(Ids("op")) as home:
        home.ready().send(home.job({}, log_id=2**64 - 1))
        (result,), _ = home.results()
        assert home.opened(result) == [{"ids": [100, 2**64 - 1]}]


def test_large_data_is_a_writable_copy_from_shared_memory():
    class Hurts(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            picture = input_dicts["read"]["x"]
            picture += 1
            return {"x": picture}, False, None, ""

    with Home(Hurts("op")) as home:
        job = home.ready().job({"x": BIG})
        home.send(job)
        (result,), _ = home.results()
        assert [block.region for block in result.outcomes[0].payload.buffers] == [home.region]
        assert (home.opened(result)[0]["x"] == BIG + 1).all()
        assert (deserialize(job.items[0].inputs["read"], home.arena)["x"] == BIG).all()


def test_blocks_that_the_server_has_freed_are_used_again():
    with Home() as home:
        home.ready()
        freed = []
        seen = set()
        for _ in range(50):  # 3 MiB through a region of 1 MiB
            payload = home.memory.payload(home.serialized({"x": BIG}))
            job = WireJob(next(home.numbers), [WireItem(1, 0, {"read": payload.serialized})])
            home.send(job, freed=freed)
            (result,), _ = home.results()
            freed = result.outcomes[0].payload.buffers
            assert freed, "there was room"
            seen.update(freed)
        assert len(seen) <= 2


def test_an_answer_without_room_fails_alone():
    with Home() as home:
        home.ready()
        payload = home.memory.payload(home.serialized({"x": BIG}))
        opened = []
        for _ in range(20):
            home.send(WireJob(next(home.numbers), [WireItem(1, 0, {"read": payload.serialized})]))
            (result,), _ = home.results()
            opened += home.opened(result)
        assert (opened[0]["x"] == BIG).all()
        assert isinstance(opened[-1], TooLargeError)  # final: the Op has run
        assert "[op] " in str(opened[-1])


def test_an_answer_that_no_pickle_takes_fails_alone():
    class Odd(Echo):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"odd": Unpicklable()} if fetch_data["x"] == 2 else fetch_data, None, ""

    with Home(Odd("op")) as home:
        good, bad, other = home.ready().ask({"x": 1}, {"x": 2}, {"x": 3})
        assert (good, other) == ({"x": 1}, {"x": 3})
        assert bad.code == 7000
        assert str(bad).startswith("[op] payload['odd']")


def test_an_input_that_cannot_be_built_again_fails_alone():
    with Home() as home:
        good, bad = home.ready().ask({"x": 1}, {"odd": RefusesToBeBuilt()})
        assert good == {"x": 1}
        assert bad.code == 7000
        assert str(bad).startswith("[op] ")
        (bad,) = home.ask({"odd": RefusesToBeBuilt()})
        assert bad.code == 7000
        assert home.ask({"x": 2}) == [{"x": 2}]


@pytest.mark.parametrize(
    ("raised", "code", "kind"),
    [
        (ProductError(51, "no face"), 51, "ProductError"),
        (ProductError(2**70, "no face"), 50, "ProductError"),
        (ProductError(51, "\udcff"), 51, "ProductError"),
        (ValueError("x"), 10000, "UserCodeError"),
        (SystemExit(3), 10000, "UserCodeError"),
    ],
)
def test_a_users_error_is_reported_and_the_worker_continues(raised, code, kind):
    class Raises(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            if "bad" in input_dicts["read"]:
                raise raised
            return input_dicts["read"], False, None, ""

    logging.getLogger("pipeline.engine.run.stages").setLevel(logging.CRITICAL)
    with Home(Raises("op")) as home:
        error, good = home.ready().ask({"bad": 1}, {"x": 1})
        assert (error.code, type(error).__name__) == (code, kind)
        assert good == {"x": 1}
        assert home.ask({"x": 2}) == [{"x": 2}]


def test_an_error_that_may_be_retried_keeps_its_class():
    class Away(Echo):
        def process(self, feed_batch, typical_logid):
            raise PredictorUnavailableError("peer gone")

    with Home(Away("op")) as home:
        (error,) = home.ready().ask({"x": 1})
        assert type(error) is PredictorUnavailableError


# When messages are sent -------------------------------------------------------------------------


def test_jobs_of_one_frame_are_all_answered_in_order():
    with Home() as home:
        home.ready()
        home.send(*[home.job({"x": number}) for number in range(200)])
        results, reports = home.results(200)
        assert [result.number for result in results] == list(range(1, 201))
        assert [home.opened(result) for result in results] == [[{"x": n}] for n in range(200)]
        assert reports <= 200


def test_a_result_is_sent_before_the_worker_waits():
    with Home() as home:
        home.ready()
        for number in range(5):
            assert home.ask({"x": number}) == [{"x": number}], "each comes without the next"


def test_a_slow_job_is_reported_before_the_next_one_starts():
    class Slow(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            if "wait" in input_dicts["read"]:
                assert release.wait(20)
            else:
                ages = [0]
                while len(ages) < 30_000:  # more than the 0.1 ms that may wait for company
                    ages.append(len(ages))
            return input_dicts["read"], False, None, ""

    release = threading.Event()
    with Home(Slow("op")) as home:
        home.ready().send(home.job({"x": 1}), home.job({"wait": 1}))
        (first,), _ = home.results()
        assert first.number == 1
        release.set()
        (second,), _ = home.results()
        assert second.number == 2


def test_the_status_page_names_the_job_until_its_result_is_sent():
    class Watches(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            self.seen = [home.status.job, home.status.call_started]
            return input_dicts["read"], False, None, ""

        def process(self, feed_batch, typical_logid):
            self.seen += [home.status.job, home.status.call_started]
            return {"x": 1}

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            self.seen += [home.status.job, home.status.call_started]
            return {"seen": self.seen, "began": home.status.job_started}

    with Home(Watches("op")) as home:
        ((answer,),) = [home.ready().ask({"x": np.zeros(1)})]
        job, none, again, call_started, last, ended = answer["seen"]
        assert (job, again, last) == (1, 1, 1)
        assert none is ended is None
        assert call_started >= answer["began"]
        home.part()
        assert home.status.job == 0


def test_jobs_that_were_recalled_are_skipped_and_reported():
    class Waits(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            entered.set()
            assert release.wait(20)
            return input_dicts["read"], False, None, ""

    entered, release = threading.Event(), threading.Event()
    with Home(Waits("op")) as home:
        home.ready().send(*[home.job({"x": number}) for number in range(4)])
        assert entered.wait(20)
        assert home.status.revoke(3) == 1
        release.set()
        results, skipped = [], []
        while len(results) + len(skipped) < 4:
            report = home.report()
            results += [result.number for result in report.results]
            skipped += report.skipped
        assert (results, skipped) == ([1, 4], [2, 3])


def test_a_worker_that_dies_while_sending_a_result_is_at_that_job():
    """Else the job would count as not begun, and go from worker to worker, killing each."""

    class Waits(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            assert release.wait(20)
            return input_dicts["read"], False, None, ""

    release = threading.Event()
    with Home(Waits("op")) as home:
        home.ready().send(home.job({}))
        home.sock.shutdown(socket.SHUT_RD)
        release.set()
        home.thread.join(20)
        assert home.status.job == 1


def test_received_jobs_are_finished_and_then_the_worker_ends_quietly():
    class Counts(Echo):
        def preprocess(self, input_dicts, data_id, log_id):
            done.append(data_id)
            assert release.wait(20)
            return input_dicts["read"], False, None, ""

    done, release = [], threading.Event()
    with Home(Counts("op")) as home:
        home.ready().send(home.job({}))
        home.sock.close()
        release.set()
        home.thread.join(20)
        assert done == [100]
        assert home.ended_with == []


def test_a_result_does_not_wait_behind_a_job_of_unknown_length():
    class Waits(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            if input_dicts["read"]["x"] == "slow":
                released.wait(20)
            return {}, False, None, ""

    released = threading.Event()
    with Home(Waits("op")) as home:
        home.ready()
        home.send(home.job({"x": "quick"}), home.job({"x": "slow"}))
        try:
            (quick,), _ = home.results()
            assert quick.number == 1
        finally:
            released.set()
        (slow,), _ = home.results()
        assert slow.number == 2


def test_a_request_has_its_deadline_in_the_worker():
    class Deadline(Op):
        def process(self, feed_batch, typical_logid):
            return {"ends": [call_deadline()]}, 0, ""

    with Home(Deadline("op")) as home:
        serialized = home.ready().serialized({"x": [1]})
        home.send(WireJob(1, [WireItem(1, 0, {"read": serialized}, 1234.5)]))
        (result,), _ = home.results()
        assert home.opened(result)[0] == {"ends": [1234.5]}
