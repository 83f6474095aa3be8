"""Models of Python code: what `execute` gets, and what becomes of what it returns."""

from __future__ import annotations

import json
import sys
import time

import ml_dtypes
import msgspec
import numpy as np
import pytest

from pipeline.config.schema import OpConfig
from pipeline.config.sequences import Control, Kind
from pipeline.data import RequestContext, SequenceStep
from pipeline.engine.model_calls import ModelPart, error_in
from pipeline.errors import (
    ConflictError,
    DeadlineError,
    ErrorCode,
    InitError,
    InputError,
    NoServiceError,
    OverloadedError,
    PayloadTypeError,
    PipelineError,
    ProductError,
    UnspecifiedError,
    UserCodeError,
)
from pipeline.repository.backends.python.calls import InferenceRequest, ServerAccess
from pipeline.repository.backends.python.model_op import (
    DecoupledModelOp,
    ModelSpec,
    PythonModelOp,
)
from pipeline.repository.backends.python.tensors import (
    NamedTensor,
    TritonModelException,
    deserialize_bytes_tensor,
    dl_tensor,
    numpy_to_triton_type,
    received,
    sent,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from pipeline.repository.backends.ragged import Reshaping
from pipeline.workers.peer_calls import refused


class FakeCaller:
    def begin(self, call, feeds, on_part):
        return self


HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb

def answer(array, **more):
    return pb.InferenceResponse([pb.Tensor("OUTPUT0", np.asarray(array))], **more)

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    """An initialised Op of the code of `execute`."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    count = iter(range(100))

    def make(body, kind=PythonModelOp, controls=(), sequence=None):
        file = tmp_path / f"model{next(count)}.py"
        lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
        file.write_text(f"{HEAD}\n    def execute(self, requests):\n{lines}")
        config = json.dumps({"name": "m", "max_batch_size": 8})
        spec = ModelSpec(
            "m", 3, str(tmp_path), str(file), str(file.parent), config, ("OUTPUT0", "OUTPUT1")
        )
        op = kind(msgspec.structs.replace(spec, instances=("m_0_0", "m_0_1"), controls=controls))
        op.pipeline_config = msgspec.convert(
            {"batch_size": 8, "sequence": sequence or {}}, OpConfig
        )
        op.concurrency_idx = 1
        op.init_op()
        made.append(op)
        return op

    made = []
    yield make
    for op in made:
        op.pipeline_end()


def context_of(number=1, **said):
    return RequestContext(data_id=number, **said)


def run(op, *feeds, contexts=None):
    contexts = contexts or [context_of(number) for number, _ in enumerate(feeds)]
    return op.process([{"INPUT0": feed} for feed in feeds], context=contexts)


def test_each_request_has_its_response_in_any_shape(model):
    op = model(
        """
return [answer(pb.get_input_tensor_by_name(each, "INPUT0").as_numpy() * 2) for each in requests]
"""
    )
    one, other = run(op, np.ones((1, 2), np.float32), np.ones((3, 5), np.float32))
    assert one["OUTPUT0"].tolist() == [[2.0, 2.0]]
    assert other["OUTPUT0"].shape == (3, 5)


def test_initialize_receives_the_arguments(model):
    op = model("return []")
    assert op.model.args["model_name"] == "m"
    assert op.model.args["model_version"] == "3"
    assert op.model.args["model_instance_name"] == "m_0_1"
    assert op.model.args["model_instance_kind"] == "CPU"
    assert json.loads(op.model.args["model_config"])["max_batch_size"] == 8


def test_a_request_has_all_attributes(model):
    op = model(
        """
request, = requests
self.seen = (
    request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
    json.loads(request.parameters()), request.requested_output_names(), request.model_name(),
    request.is_cancelled(), request.preferred_memory(),
)
return [answer([1])]
"""
    )
    context = context_of(
        id="mine",
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        parameters={"a": 1, "timeout": 500, "sequence_id": 7, "sequence_start": True},
        headers={"x-me": "you"},
        outputs=("OUTPUT1",),
        is_over=lambda: True,
    )
    run(op, np.ones(1), contexts=[context])
    assert op.model.seen == (
        *("mine", 7, 3, 500),
        {"a": 1, "x-me": "you"},
        *({"OUTPUT1"}, "m", True, None),
    )


READY = Control("READY", Kind.READY, "FP32", (0.0, 1.0))
SLOTS = """
of = [{tensor.name(): tensor.as_numpy() for tensor in each.inputs()} for each in requests]
self.seen = [(each["READY"].tolist(), each["INPUT0"].tolist()) for each in of]
return [answer([[len(of) * 10 + slot]]) for slot, _ in enumerate(of)]
"""


@pytest.mark.parametrize("kept", [np.array([[5]], np.int32), np.array([[b"five"]], object)])
def test_a_request_has_the_index_of_its_slot_after_fillers(model, kept):
    op = model(SLOTS, controls=(READY,), sequence={"strategy": "direct"})
    steps = [SequenceStep(id=7, slot=3), SequenceStep(id="b", slot=1, start=True)]
    contexts = [context_of(number, sequence=step) for number, step in enumerate(steps)]
    answers = run(op, kept, kept, contexts=contexts)
    assert [answer["OUTPUT0"].tolist() for answer in answers] == [[[43]], [[41]]]
    empty = kept.tolist()[0][0].__class__()
    row = ([[1.0]], kept.tolist())
    assert op.model.seen == [([[0.0]], [[empty]]), row, ([[0.0]], [[empty]]), row]


@pytest.mark.parametrize(
    ("controls", "strategy"),
    [((READY,), "oldest"), ((Control("START", Kind.START, "FP32", (0.0, 1.0)),), "direct")],
)
def test_other_models_get_no_fillers(model, controls, strategy):
    op = model(
        "return [answer([[len(requests)]])]", controls=controls, sequence={"strategy": strategy}
    )
    context = context_of(sequence=SequenceStep(id=7, slot=3))
    assert run(op, np.ones((1, 1)), contexts=[context])[0]["OUTPUT0"].tolist() == [[1]]


def test_an_error_of_one_request_is_its_own(model):
    op = model(
        """
return [
    answer([1.0]),
    pb.InferenceResponse(error=pb.TritonError("no")),
    pb.InferenceResponse(error=pb.TritonError("wrong", pb.TritonError.INVALID_ARG)),
    pb.InferenceResponse(error=pb.TritonError("none", pb.TritonError.NOT_FOUND)),
    pb.InferenceResponse(error=pb.TritonError("later", pb.TritonError.UNAVAILABLE)),
    pb.InferenceResponse(error=pb.TritonError("odd", pb.TritonError.UNKNOWN)),
    pb.InferenceResponse(error=pb.TritonError("there", pb.TritonError.ALREADY_EXISTS)),
]
"""
    )
    good, *errors = run(op, *[np.ones(1)] * 7)
    assert good["OUTPUT0"] == [1.0]
    assert [(type(error), str(error)) for error in errors] == [
        (UserCodeError, "no"),
        (InputError, "wrong"),
        (NoServiceError, "none"),
        (OverloadedError, "later"),
        (UnspecifiedError, "odd"),
        (ConflictError, "there"),
    ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return []", "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:0"),
        ("return answer([1])", "Expected a list in the execute return"),
        ("raise KeyError('lost')", "message: KeyError: 'lost'"),
    ],
)
def test_an_error_of_execute_fails_all_requests(model, body, text):
    errors = run(model(body), np.ones(1), np.ones(1))
    assert len(errors) == 2
    for error in errors:
        assert isinstance(error, UserCodeError)
        assert str(error).startswith("Failed to process the request(s) for model 'm_0_1'")
        assert text in str(error)


@pytest.mark.parametrize("body", ["return None", "return [None]", "return ['text']"])
def test_no_response_is_an_error_of_the_request(model, body):
    (error,) = run(model(body), np.ones(1))
    assert isinstance(error, PipelineError)
    assert "Expected an 'InferenceResponse' object" in str(error)


def test_a_response_may_be_sent(model):
    op = model(
        """
for each in requests:
    each.get_response_sender().send(answer([5]), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
return None
"""
    )
    (result,) = run(op, np.ones(1))
    assert result["OUTPUT0"] == [5]


def test_a_coroutine_is_awaited(model):
    op = model("return [answer([1]) for _ in requests]")
    execute = op.model.execute

    async def awaited(requests):
        return execute(requests)

    op.model.execute = awaited
    assert run(op, np.ones(1))[0]["OUTPUT0"] == [1]


EXITS = """
if requests[0].inputs()[0].as_numpy()[0]:
    raise SystemExit("I leave")
sender = requests[0].get_response_sender()
sender.send(answer([0]))
sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("kind", [PythonModelOp, DecoupledModelOp])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_that_calls_exit_fails_its_request_and_takes_the_next(model, kind, is_async):
    op = model(EXITS, kind)
    if is_async:
        execute = op.model.execute

        async def awaited(requests):
            return execute(requests)

        op.model.execute = awaited

    def answers(number):
        return list(op.process([{"INPUT0": np.full(1, number)}], context=[context_of()]))

    for _ in range(2):
        with pytest.raises(UserCodeError, match="I leave"):
            raise next(filter(lambda each: isinstance(each, Exception), answers(1)))
        assert answers(0)[0]["OUTPUT0"].tolist() == [0]


def parts(op, context=None):
    return list(op.process([{"INPUT0": np.ones(1)}], context=[context or context_of()]))


def test_a_decoupled_model_sends_several_responses(model):
    op = model(
        """
for each in requests:
    sender = each.get_response_sender()
    for number in range(3):
        sender.send(answer([number]))
    sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        DecoupledModelOp,
    )
    assert [part["OUTPUT0"].item() for part in parts(op)] == [0, 1, 2]


def test_a_decoupled_model_sends_no_response_or_fails(model):
    silent = model(
        "requests[0].get_response_sender().send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
        DecoupledModelOp,
    )
    assert parts(silent) == []
    broken = model("raise ValueError('lost')", DecoupledModelOp)
    with pytest.raises(UserCodeError, match="ValueError: lost"):
        parts(broken)
    reported = model(
        "requests[0].get_response_sender().send("
        "pb.InferenceResponse(error=pb.TritonError('no', pb.TritonError.INVALID_ARG)), flags=1)",
        DecoupledModelOp,
    )
    with pytest.raises(InputError, match="no"):
        parts(reported)
    goes_on = model(
        """
sender = requests[0].get_response_sender()
sender.send(pb.InferenceResponse(error=pb.TritonError('no', pb.TritonError.INVALID_ARG)))
sender.send(answer([1]))
sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        DecoupledModelOp,
    )
    failed, good = parts(goes_on)
    assert isinstance(error_in(failed), InputError)
    assert good["OUTPUT0"].tolist() == [1]


def test_an_exception_of_a_decoupled_model_after_its_last_response_is_logged(model, caplog):
    op = model(
        """
requests[0].get_response_sender().send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
raise ValueError("too late")
""",
        DecoupledModelOp,
    )
    assert parts(op) == []
    op.executor.shutdown()  # which waits for `execute`
    assert "ValueError: too late" in caplog.text


def test_a_decoupled_model_of_a_cancelled_request_ends(model):
    op = model("requests[0].get_response_sender()", DecoupledModelOp)
    assert parts(op, context_of(is_over=lambda: True)) == []


def test_parts_have_the_shapes_that_callers_expect(model):
    op = model(
        """
array = pb.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()
sender = requests[0].get_response_sender()
sender.send(answer(array))
sender.send(answer(array[:, :1]), flags=1)
""",
        DecoupledModelOp,
    )
    shapes = (4,), (2, 2)
    reshaping = Reshaping(1, {"INPUT0": shapes}, {"OUTPUT0": shapes[::-1]})
    op.spec = msgspec.structs.replace(op.spec, reshaping=reshaping)
    feed = {"INPUT0": np.array([[1, 2, 3, 4]])}
    process = op.process([feed], context=[context_of()])
    assert next(process)["OUTPUT0"].tolist() == [[1, 2, 3, 4]]
    with pytest.raises(PayloadTypeError, match=r"cannot become \[1, 4\]"):
        next(process)
    reported = []
    op.pipeline_send([feed], [context_of()], [reported.append])
    assert reported[0]["OUTPUT0"].shape == (1, 4)
    assert isinstance(reported[1], PayloadTypeError)


def test_a_sender_refuses_responses_after_the_end(model):
    op = model(
        """
sender = requests[0].get_response_sender()
self.errors = []
try:
    sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
except pb.TritonModelException as error:
    self.early = str(error)
sender.send(answer([1]), pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
for args in ((answer([1]), 0), (None, 0), (answer([1]), 7)):
    try:
        sender.send(*args)
    except pb.TritonModelException as error:
        self.errors.append(str(error))
return None
"""
    )
    run(op, np.ones(1))
    assert len(op.model.errors) == 3
    assert "has been closed" in op.model.errors[0]
    assert "cannot send complete final before sending a response" in op.model.early


def test_a_sent_response_counts_and_later_results_are_ignored(model):
    op = model(
        """
requests[0].get_response_sender().send(answer([1]), pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
if requests[0].inputs()[0].as_numpy()[0]:
    raise ValueError("late")
return [answer([2]), answer([3])]
"""
    )
    first, second = run(op, np.zeros(1), np.zeros(1))
    assert (first["OUTPUT0"].tolist(), second["OUTPUT0"].tolist()) == ([1], [3])
    first, second = run(op, np.ones(1), np.ones(1))
    assert first["OUTPUT0"].tolist() == [1]
    assert "ValueError: late" in str(second)


@pytest.mark.parametrize("code", ["x = 1", "class TritonPythonModel: pass"])
def test_a_file_without_a_model_class_is_an_error(tmp_path, monkeypatch, code):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(code)
    spec = ModelSpec("m", 1, str(tmp_path), str(tmp_path / "model.py"), str(tmp_path), "{}")
    with pytest.raises(InitError, match="TritonPythonModel"):
        PythonModelOp(spec).init_op()


def test_tensors():
    own = np.array(["ä", b"\xff"], object)
    text = NamedTensor("x", own)
    assert text.as_numpy() is own, "as it was given"
    assert sent(own).tolist() == received("x", own).as_numpy().tolist() == ["ä".encode(), b"\xff"]
    assert text.triton_dtype() == numpy_to_triton_type(np.object_) == 13
    numbers = NamedTensor("x", np.arange(4, dtype=np.int32))
    assert (numbers.shape(), numbers.triton_dtype(), numbers.is_cpu()) == ([4], 8, True)
    assert NamedTensor.from_dlpack("y", numbers).as_numpy().tolist() == [0, 1, 2, 3]
    assert NamedTensor.from_dlpack("y", numbers.to_dlpack()).as_numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="expected a numpy array"):
        NamedTensor("x", [1])


def test_bfloat16_travels_by_dlpack():
    array = np.array([[1.5, -2.0, 3.0]], ml_dtypes.bfloat16)
    tensor = NamedTensor("x", array)
    assert tensor.triton_dtype() == numpy_to_triton_type(array.dtype) == 14
    assert dl_tensor(tensor.to_dlpack()).dtype.code == 4
    for lent in (tensor, tensor.to_dlpack()):
        again = NamedTensor.from_dlpack("y", lent).as_numpy()
        assert again.dtype == array.dtype
        assert again.tolist() == array.tolist()
    bits = NamedTensor("x", array.view(np.uint16))
    assert dl_tensor(bits.to_dlpack()).dtype.code == 1
    assert NamedTensor.from_dlpack("y", bits.to_dlpack()).as_numpy().dtype == np.uint16


def test_tensors_that_numpy_cannot_hold_are_refused():
    capsule = NamedTensor("x", np.zeros(2, np.uint8)).to_dlpack()
    dl_tensor(capsule).dtype.code = 10  # numbers of 8 bits with a point
    with pytest.raises(TritonModelException, match=r"numpy cannot read tensor 'y': .*memory"):
        NamedTensor.from_dlpack("y", capsule)


class HasGradient:
    def __dlpack__(self, **more):
        raise BufferError("it has a gradient.")

    def __dlpack_device__(self):
        return (1, 0)


def test_a_tensor_that_cannot_be_lent_is_refused():
    with pytest.raises(
        TritonModelException, match=r"cannot read tensor 'y': it has a gradient\. P"
    ):
        NamedTensor.from_dlpack("y", HasGradient())


def test_a_refused_capsule_is_unchanged():
    capsule = NamedTensor("x", np.zeros(2, ml_dtypes.bfloat16)).to_dlpack()
    dl_tensor(capsule).device[0] = 2  # a card
    with pytest.raises(TritonModelException, match="numpy cannot read tensor 'y'"):
        NamedTensor.from_dlpack("y", capsule)
    assert dl_tensor(capsule).dtype.code == 4
    dl_tensor(capsule).device[0] = 1


def test_types_and_bytes():
    for name in ("BOOL", "UINT8", "INT64", "FP16", "FP64", "STRING"):
        kind = triton_string_to_numpy(f"TYPE_{name}")
        assert np.dtype(triton_to_numpy_type(numpy_to_triton_type(kind))) == np.dtype(kind)
    packed = serialize_byte_tensor(np.array([b"a", "bc"], object))
    assert packed == b"\x01\0\0\0a\x02\0\0\0bc"
    assert deserialize_bytes_tensor(packed).tolist() == [b"a", b"bc"]
    assert serialize_byte_tensor(np.array([], object)) == ()
    assert serialize_byte_tensor(np.array([1])) is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("pb.Tensor(None, np.zeros(1))", TypeError),
        ("pb.Tensor('x', None)", TypeError),
        ("pb.Tensor('', np.zeros(1))", TritonModelException),
        ("pb.Tensor('x', np.zeros(1, complex))", TritonModelException),
        ("pb.Tensor('x', np.zeros(1, 'M8[s]'))", TritonModelException),
        ("pb.Tensor('x', np.zeros(1, np.longdouble))", TritonModelException),
        ("pb.Tensor('x', np.zeros(1, '>i4'))", TritonModelException),
        ("pb.Tensor.from_dlpack('', np.zeros(1))", TritonModelException),
        ("pb.Tensor.from_dlpack('x', None)", TritonModelException),
        ("pb.InferenceRequest(model_name='m', inputs=[])", TypeError),
        ("asked(model_name=None)", TypeError),
        ("asked(flags=None)", TypeError),
        ("asked(model_version=None)", TypeError),
        ("asked(correlation_id=None)", TypeError),
        ("asked(requested_output_names=[None])", TypeError),
        ("asked(parameters={'a': [1]})", TritonModelException),
        ("asked(parameters={'a': 1.5})", TritonModelException),
        ("asked(parameters={1: 1})", TritonModelException),
        ("asked(parameters=[1])", TritonModelException),
        ("pb.Logger.log('x', None)", TypeError),
        ("pb.Logger.log('x', 1)", TypeError),
        ("pb.Logger.log_info(None)", TypeError),
    ],
)
def test_arguments_of_another_type(model, wrong, error):
    op = model(
        f"""
def asked(**more):
    usual = {{"model_name": "m", "inputs": [], "requested_output_names": []}}
    return pb.InferenceRequest(**usual | more)
try:
    {wrong}
except Exception as error:
    self.raised = type(error)
return [answer([1])]
"""
    )
    run(op, np.zeros(1))
    assert op.model.raised is error


def test_outputs_that_are_wanted_are_a_set_and_levels_are_the_loggers(model):
    op = model(
        """
asked = pb.InferenceRequest(inputs=[], model_name="m", requested_output_names=["b", "a", "b"])
pb.Logger.log("x", pb.Logger.LogLevel.WARNING)
self.found = asked.requested_output_names(), pb.Logger.LogLevel.INFO is pb.Logger.INFO
return [answer([1])]
"""
    )
    run(op, np.zeros(1))
    assert op.model.found == ({"a", "b"}, True)


WHERE = """
import helper
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        self.found = [pb.get_model_dir(), helper.folder()]
        return [pb.InferenceResponse([]) for each in requests]
"""


def test_models_of_one_process_have_their_own_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    ops = []
    for name in ("a", "b"):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(WHERE)
        code = "import triton_python_backend_utils as pb\nfolder = lambda: pb.get_model_dir()\n"
        (folder / "helper.py").write_text(code)
        file = str(folder / "model.py")
        ops.append(
            PythonModelOp(ModelSpec(name, 1, str(folder.parent), file, str(folder), "{}", ("y",)))
        )
        ops[-1].init_op()
    for op, name in zip(ops, "ab", strict=True):
        op.process([{}], context=[context_of()])
        assert op.model.found == [str(tmp_path / name / "1")] * 2


def test_the_module_has_the_name_of_its_compiled_part_too(model):
    op = model(
        """
import c_python_backend_utils
self.found = c_python_backend_utils is pb, pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU).type
return [answer([1])]
"""
    )
    run(op, np.zeros(1))
    assert op.model.found == (True, 0)


def test_errors_have_codes():
    assert OverloadedError("").code == ErrorCode.OVERLOADED
    assert issubclass(TritonModelException, Exception)


@pytest.mark.parametrize(("timeout", "text"), [(1, "Request timeout expired"), (10**9, "an Op's")])
def test_only_its_own_timeout_is_that_of_a_call(monkeypatch, timeout, text):
    monkeypatch.setattr(ServerAccess, "caller", FakeCaller())
    request = InferenceRequest(
        inputs=[], requested_output_names=[], model_name="m", timeout=timeout
    )
    request.begin(False, print)
    ends = request._ends
    monkeypatch.setattr(time, "monotonic", lambda: ends if timeout == 1 else ends - 1)
    error = DeadlineError("an Op's")  # of several requests
    assert request.response(ModelPart(error=error)).error().message() == text
    assert str(error) == "an Op's"


def test_an_error_of_several_requests_stays_when_a_call_is_refused():
    error = OverloadedError("full", retry_after_s=3)
    own = refused("m", error)
    assert str(own) == "Model m - Error when running inference: full"
    assert (type(own), own.retry_after_s, str(error)) == (OverloadedError, 3, "full")
    assert str(refused("m", ProductError(51, "no"))).endswith(": no")
