"""Ops that run a TritonPythonModel, in the worker; loading one of its file."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import msgspec

from pipeline.config.sequences import Control
from pipeline.data import RequestContext
from pipeline.engine.sequences.controls import Controls, filler_like, in_slots
from pipeline.engine.sequences.feeds import has_fillers
from pipeline.engine.streams.flow import ENDED
from pipeline.errors import ClosedError, InitError, PipelineError, UserCodeError, described
from pipeline.op import Op, RequestOp, WorkerSpec
from pipeline.repository.backends.python.calls import ServerAccess
from pipeline.repository.backends.python.loading import (
    MODEL_CLASS,
    LoadBesideOthers,
    LoadClass,
    ModelCode,
    load_alone,
)
from pipeline.repository.backends.python.requests import IncomingRequest, InferenceResponse
from pipeline.repository.backends.ragged import Reshaping
from pipeline.routes import Answer
from pipeline.system.event_loop import LoopThread

_LOGGER = logging.getLogger(__name__)

_IS_RESCHEDULED = attrgetter("is_rescheduled")
_NO_RESCHEDULE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not "
    "configured to handle such a flag."
)


class ModelSpec(msgspec.Struct, frozen=True):
    """A model's files and configuration, as its workers need them.

    Args:
        folder: of the model, with all its versions.
        file: of the class.
        version_folder: which has the files of the version.
        config: as JSON, in Triton's words.
        outputs: names of all outputs.
        kind: of the instances, "CPU" or "GPU".
        cards: that they take turns on.
        controls: inputs that say what a request is in its sequence.
        ragged: inputs whose shapes may differ in a batch.
        reshaping: shapes that the model has, and its callers do not see.
        is_flat: these are [1]; else [1, 1], as of a batch of one.
        is_decoupled: it sends any number of responses to a request.
        reschedules: requests may come again.
        instances: their names when the model was loaded.
    """

    name: str
    version: int
    folder: str
    file: str
    version_folder: str
    config: str
    outputs: tuple[str, ...] = ()
    kind: str = "CPU"
    cards: tuple[int, ...] = ()
    controls: tuple[Control, ...] = ()
    ragged: tuple[str, ...] = ()
    reshaping: Reshaping = Reshaping()
    is_flat: bool = False
    is_decoupled: bool = False
    reschedules: bool = False
    instances: tuple[str, ...] = ()

    def arguments(self, number: int) -> dict[str, str]:
        """Return what `initialize` of the instance with this number is given."""
        card = self.cards[number % len(self.cards)] if self.cards else 0
        return {
            "model_config": self.config,
            "model_instance_kind": self.kind,
            "model_instance_name": self._instance(number),
            "model_instance_device_id": str(card),
            "model_repository": self.folder,
            "model_version": str(self.version),
            "model_name": self.name,
        }

    def _instance(self, number: int) -> str:
        """Return the name of an instance, which may have come after the model was loaded."""
        if number < len(self.instances):
            return self.instances[number]
        group = self.instances[0].rpartition("_")[0] if self.instances else self.name
        return f"{group}_{number}"


class PythonModelOp(Op):
    """A model whose `execute` gets all requests of a batch, and returns a response to each."""

    pipeline_merges = False
    pipeline_patience_s: float = 60.0  # Triton sets no time limit for `execute`
    own_loop: LoopThread | None = None
    sends_one: bool = True
    has_failed_check: bool = False

    def __init__(self, spec: ModelSpec, load_class: LoadClass | None = None) -> None:
        super().__init__(spec.name, RequestOp())
        self.spec: ModelSpec = spec
        self.load_class: LoadClass = load_class or LoadBesideOthers()
        self.pipeline_ragged: frozenset[str] = frozenset(spec.ragged)
        self.pipeline_spec: WorkerSpec | None = WorkerSpec(
            f"{__name__}:made_op", msgspec.msgpack.encode(spec)
        )
        flat = [control.name for control in spec.controls] if spec.is_flat else ()
        self.is_reshaped: bool = bool(spec.reshaping.inputs or spec.reshaping.outputs)
        self.controls: Controls = Controls(spec.name, spec.controls, flat)
        self.pipeline_controls: Sequence[Control] = spec.controls

    def init_op(self) -> None:
        """Load the model. InitError: it has no such class."""
        number = self.concurrency_idx or 0
        self.has_fillers: bool = bool(self.spec.controls) and has_fillers(self)
        ServerAccess.caller = self.pipeline_models
        self.instance: str = self.spec.arguments(number)["model_instance_name"]
        spec = self.spec
        code = ModelCode(spec.name, spec.version, spec.file, spec.version_folder)
        self.model: Any = self.load_class(code)()
        initialize = getattr(self.model, "initialize", None)  # users' class
        if initialize is not None:
            ServerAccess.without(initialize, self.spec.arguments(number))
        if not hasattr(self.model, "execute"):
            raise InitError(f"model '{self.name}': {MODEL_CLASS} has no method execute")
        if inspect.iscoroutinefunction(self.model.execute):
            self.own_loop = LoopThread()  # before copies of the Op are made
        if hasattr(self.model, "is_ready") and self.pipeline_models is not None:
            self.pipeline_models.offer_check(self._is_ready)

    def _is_ready(self) -> bool:
        """Return whether the model says that it is ready."""
        try:
            is_ready = self.model.is_ready()
            if inspect.iscoroutine(is_ready):
                is_ready = self.loop.run(is_ready)
            if not isinstance(is_ready, bool):
                raise TypeError("is_ready() must return a boolean value")
        except BaseException as error:  # users' code, which may call sys.exit
            if not self.has_failed_check:
                _LOGGER.warning("Model '%s' is not ready: %s", self.instance, described(error))
            self.has_failed_check = True
            return False
        self.has_failed_check = False
        return is_ready

    def pipeline_end(self) -> None:
        """Let the model finish, when its worker ends."""
        finalize = getattr(self.model, "finalize", None)  # users' class
        if finalize is not None:
            ServerAccess.without(finalize)
        if self.own_loop is not None:
            self.own_loop.close()

    def process(
        self,
        feed_batch: Any,
        typical_logid: int = 0,
        *,
        context: Sequence[RequestContext] = (),
    ) -> Any:
        """Return the result, or the error, of each request of the batch."""
        if not self.spec.controls:  # nobody is refused
            return self._answers(list(map(self.request, feed_batch, context)))
        refusals = [self._refusal(request) for request in context]
        asked = [
            self.request(feed, request)
            for feed, request, refusal in zip(feed_batch, context, refusals, strict=True)
            if refusal is None
        ]
        answers = iter(self._answers(asked) if asked else ())
        return [next(answers) if refusal is None else refusal for refusal in refusals]

    def _refusal(self, context: RequestContext) -> PipelineError | None:
        """Return why a request cannot run; None: it can."""
        step = context.sequence
        return None if step is None else self.controls.refusal(step.id)

    def _answers(self, requests: Sequence[IncomingRequest]) -> list[Any]:
        """Return what `execute` has for each request; of rescheduled requests, in the end."""
        answers = self._answers_of_one(requests)
        if True not in map(_IS_RESCHEDULED, requests):  # as nearly always
            return answers
        places: Sequence[int] = [
            at for at, request in enumerate(requests) if request.is_rescheduled
        ]
        if not self.spec.reschedules:
            for place in places:
                requests[place].is_rescheduled = False
                answers[place] = UserCodeError(_NO_RESCHEDULE)
            return answers
        while places := [place for place in places if requests[place].comes_again()]:
            again = self._answers_of_one([requests[place] for place in places])
            for place, answer in zip(places, again, strict=True):
                answers[place] = answer
        return answers

    def _answers_of_one(self, requests: Sequence[IncomingRequest]) -> list[Any]:
        rows = self._in_slots(requests) if self.has_fillers else requests
        try:
            responses = self._responses(rows)
        except UserCodeError as error:  # of nobody in particular
            return [error] * len(requests)
        if self.has_fillers:
            of_rows = dict(zip(rows, responses, strict=True))
            responses = [of_rows[request] for request in requests]
        return list(map(self._result, responses, requests))

    def _in_slots(self, requests: Sequence[IncomingRequest]) -> list[IncomingRequest]:
        """Return the requests, each in the place of its slot, with fillers between them."""
        steps = {request.step: request for request in requests if request.step is not None}
        if len(steps) < len(requests):  # samples that warm the model up have no slots
            return list(requests)
        rows = in_slots(list(steps))
        return [self._filler(requests[0]) if step is None else steps[step] for step in rows]

    def _filler(self, like: IncomingRequest) -> IncomingRequest:
        """Return a filler: a request that no caller sent, with inputs shaped like `like`'s."""
        arrays = {tensor.name(): tensor.as_numpy() for tensor in like.inputs()}
        feed = {name: filler_like(array, array.shape) for name, array in arrays.items()}
        feed |= self.controls.arrays([None])
        context = RequestContext(data_id=0)
        return IncomingRequest(feed, context, self.name, self.spec.outputs, sends_one=True)

    def _responses(self, requests: Sequence[IncomingRequest]) -> list[Any]:
        """Return what `execute` returns. UserCodeError: it is not a response to each request."""
        try:
            responses = self.executed(requests)
        except UserCodeError as error:
            if not any(request.has_sent for request in requests):
                raise
            responses = [error] * len(requests)  # of the requests without a response so far
        if responses is None:
            return [None] * len(requests)
        if not isinstance(responses, list):
            raise UserCodeError(
                f"Failed to process the request(s) for model '{self.instance}', message: Expected "
                "a list in the execute return"
            )
        if len(responses) != len(requests):
            raise UserCodeError(
                f"Failed to process the request(s) for model '{self.instance}', message: Number of "
                "InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:"
                f"{len(responses)}\n"
            )
        return responses

    def request(
        self, feed: Any, context: RequestContext, put: Callable[[Any], None] | None = None
    ) -> IncomingRequest:
        """Return a request as the model gets it."""
        if self.is_reshaped:
            feed = self.spec.reshaping.fed(feed)
        if context.sequence is not None and self.spec.controls:
            feed = {**feed, **self.controls.arrays([context.sequence])}
        return IncomingRequest(feed, context, self.name, self.spec.outputs, put, self.sends_one)

    def executed(self, requests: Sequence[IncomingRequest]) -> Any:
        """Return what `execute` does. UserCodeError: it raised something, in Triton's words."""
        try:
            responses = self.model.execute(requests)
            return self.loop.run(responses) if inspect.iscoroutine(responses) else responses
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise self.raised(error) from error

    @property
    def loop(self) -> LoopThread:
        """The loop of coroutines of the model, and of what these begin and leave behind."""
        if self.own_loop is None:
            self.own_loop = LoopThread()
        return self.own_loop

    def raised(self, error: BaseException) -> UserCodeError:
        """Return what `execute` has raised, in Triton's words."""
        frames = reversed(traceback.extract_tb(error.__traceback__)[1:])
        at = "".join(f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in frames)
        return UserCodeError(
            f"Failed to process the request(s) for model '{self.instance}', message: "
            f"{type(error).__name__}: {error}\n\nAt:\n{at}"
        )

    def _result(self, response: Any, request: IncomingRequest) -> Any:
        if type(response) is InferenceResponse and not (
            request.has_sender or request.is_rescheduled or self.is_reshaped
        ):
            return response.result()  # as nearly always
        if request.is_rescheduled and response is None:
            return ClosedError("nobody waits for the response any more")  # else it comes again
        if request.is_rescheduled:
            request.is_rescheduled = False
            return UserCodeError(
                f"Failed to process the request(s) for model '{self.instance}', message: Expected "
                "a None object in the execute function return list for reschduled request, found "
                f"type '{type(response).__name__}'."
            )
        if request.has_sent or (response is None and request.has_sender):  # or will be
            response = request.sender.next()
        if isinstance(response, PipelineError):
            return response
        result = getattr(response, "result", None)
        if result is None:
            return UserCodeError(
                f"Failed to process the request(s) for model '{self.instance}', message: Expected "
                "an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response).__name__}'."
            )
        return self.answered(result())

    def answered(self, result: Any) -> Any:
        """Return a result, or an error, with outputs of the shapes that callers expect."""
        if not isinstance(result, dict):
            return result
        try:
            return self.spec.reshaping.answered(result)
        except PipelineError as error:
            return error


class DecoupledModelOp(PythonModelOp):
    """A model that sends any number of responses to a request, when it likes."""

    pipeline_merges = True  # in a thread there is one request at a time
    sends_one = False

    def init_op(self) -> None:
        """Load the model, which executes one request after the other."""
        super().init_op()
        self.executor: ThreadPoolExecutor = ThreadPoolExecutor(1)

    def process(
        self,
        feed_batch: Any,
        typical_logid: int = 0,
        *,
        context: Sequence[RequestContext] = (),
    ) -> Iterator[Any]:
        """Yield the responses to one request, as they are sent."""
        refusal = self._refusal(context[0]) if self.spec.controls else None
        if refusal is not None:
            raise refusal
        request = self.request(feed_batch[0], context[0])
        self.executor.submit(self._execute, [request])
        while (response := request.sender.next()) is not None:
            part = self._part(response)
            if isinstance(part, PipelineError):
                raise part
            yield part

    def pipeline_send(
        self,
        feeds: Sequence[Any],
        contexts: Sequence[RequestContext],
        tells: Sequence[Callable[[Any], None]],
    ) -> None:
        """Have the model take requests; a `tell` gets what it sends then and later, and ENDED."""
        requests = []
        for feed, context, tell in zip(feeds, contexts, tells, strict=True):
            refusal = self._refusal(context) if self.spec.controls else None
            if refusal is None:
                requests.append(self.request(feed, context, self._putting(tell)))
            else:
                tell(refusal)
        if requests:
            self._execute(requests)

    def _putting(self, tell: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return what takes the responses of one sender, and None behind the last."""
        return lambda response: tell(ENDED if response is None else self._part(response))

    def _part(self, response: Any) -> Any:
        """Return what is sent on of a response; an error ends the others, as the last part does."""
        if isinstance(response, PipelineError):
            return response
        part = self.answered(response.part())
        return Answer(part) if response.is_last and not isinstance(part, PipelineError) else part

    def _execute(self, requests: Sequence[IncomingRequest]) -> None:
        """Have the model take requests, and those again that it wants to.

        A coroutine runs concurrently with the next ones.
        """
        try:
            while requests:
                returned = self.model.execute(requests)
                if inspect.iscoroutine(returned):
                    asyncio.run_coroutine_threadsafe(
                        self._awaited(returned, requests), self.loop.loop
                    )
                    return
                requests = self._again(returned, requests)
        except BaseException as error:  # users' code, which may call sys.exit
            _fail(requests, self.raised(error))

    async def _awaited(self, coroutine: Any, requests: Sequence[IncomingRequest]) -> None:
        try:
            while requests := self._again(await coroutine, requests):
                coroutine = self.model.execute(requests)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            _fail(requests, self.raised(error))

    def _again(
        self, returned: Any, requests: Sequence[IncomingRequest]
    ) -> Sequence[IncomingRequest]:
        """Return the requests to run again after an `execute`, which has returned `returned`."""
        if returned is not None:
            text = (
                f"Python model '{self.instance}' is using the decoupled mode and the execute "
                "function must return None."
            )
            _fail(requests, UserCodeError(text))
            return ()
        if not self.spec.reschedules:
            refused = [request for request in requests if request.is_rescheduled]
            if refused:
                _fail(refused, UserCodeError(_NO_RESCHEDULE))
            return ()
        return [request for request in requests if request.comes_again()]


def _fail(requests: Sequence[IncomingRequest], error: UserCodeError) -> None:
    """End those of some requests with an error that have not ended; if none has, log it."""
    failures = [request.sender.fail(error) for request in requests]
    if not any(failures):
        _LOGGER.error("%s", error)


def made_op(argument: bytes) -> PythonModelOp:
    """Return the Op of a ModelSpec, which a worker receives; its code sees no arguments."""
    del sys.argv[1:]  # those of the server: Triton's stub has none
    return model_op(msgspec.msgpack.decode(argument, type=ModelSpec), load_alone)


def model_op(spec: ModelSpec, load_class: LoadClass | None = None) -> PythonModelOp:
    """Return the Op of a model, as it answers."""
    kind = DecoupledModelOp if spec.is_decoupled else PythonModelOp
    return kind(spec, load_class)
