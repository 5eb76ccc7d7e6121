"""gRPC beside HTTP: the same server, in the same loop, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any

# Engine processes are started with a program of their own; what gRPC does before a fork would only disturb that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from alula.core.errors import InputError
from alula.serve import deadlines, grpc_repository, grpc_tensors
from alula.serve.deadlines import Deadline
from alula.serve.errors import Failure, Refused, failure_of
from alula.serve.front import CUT_OFF_S, HEAD_S
from alula.serve.grpc_admission import Admitting, identified
from alula.serve.grpc_messages import HEALTH, HEALTH_MESSAGES, INFERENCE, classes, parsed
from alula.serve.grpc_tensors import MESSAGES
from alula.serve.inference import described, found, infer, server_metadata
from alula.serve.observed import DEGRADED, record_of, request_id_of
from alula.serve.records import Record, current
from alula.serve.server import Server

SERVICE = f"{INFERENCE}.GRPCInferenceService"
OPEN = frozenset(f"/{SERVICE}/{name}" for name in ("ServerLive", "ServerReady"))
WITH_CONTEXT = frozenset(
    f"/{SERVICE}/{name}"
    for name in ("ModelInfer", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
)
"""Methods that ask who calls."""
HEALTHS = classes(HEALTH, HEALTH_MESSAGES)
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
WATCH_S = 0.25
"""How often those who watch the health are looked after."""

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""What statuses of HTTP are over gRPC; any other is INTERNAL."""

MOST_SAID = 600
"""Characters of an error, of 12 bytes at most: metadata, of which clients refuse more than 8 KiB at random."""


class GrpcFront:
    """Listens as long as its block lasts."""

    def __init__(self, server: Server, port: int) -> None:
        options = server.options
        self._server = server
        self._closing = asyncio.Event()
        host = f"[{options.host}]" if ":" in options.host else options.host
        self._grpc = grpc.aio.server(
            # Larger messages are refused by the length that stands before them. What the models that are served take
            # of that is known once they are loaded.
            options=(
                ("grpc.max_receive_message_length", max(options.max_body_bytes, options.max_image_bytes)),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", int(HEAD_S * 1_000)),
                ("grpc.max_connection_idle_ms", options.keep_alive_s * 1_000),
            ),
            maximum_concurrent_rpcs=options.max_connections,
            interceptors=(Admitting(server.admission, _is_open, self._refused),),
        )
        self._grpc.add_generic_rpc_handlers((self._inference(), self._health()))
        try:
            self._grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise InputError(f"cannot listen on {host}:{port}; name another port with --grpc-port") from error

    async def __aenter__(self) -> GrpcFront:
        await self._grpc.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let answers be finished, and stop listening."""
        self._closing.set()
        await self._grpc.stop(CUT_OFF_S)

    def _inference(self) -> Any:
        server = self._server

        async def live(request: Any) -> Any:
            return MESSAGES["ServerLiveResponse"](live=server.live)

        async def ready(request: Any) -> Any:
            return MESSAGES["ServerReadyResponse"](ready=server.ready)

        async def model_ready(request: Any) -> Any:
            server.gate.refuse_unless_open()
            found(server.catalogue, request.name, request.version)
            return MESSAGES["ModelReadyResponse"](ready=server.ready)

        async def metadata(request: Any) -> Any:
            return MESSAGES["ServerMetadataResponse"](**{**server_metadata(), "extensions": []})

        async def model_metadata(request: Any) -> Any:
            return grpc_tensors.metadata(described(found(server.catalogue, request.name, request.version)))

        told = {
            "ServerLive": live,
            "ServerReady": ready,
            "ModelReady": model_ready,
            "ServerMetadata": metadata,
            "ModelMetadata": model_metadata,
        }
        methods = {
            name: self._unary(self._seen(f"/{SERVICE}/{name}", tell), name) for name, tell in told.items()
        }
        for name, change in grpc_repository.methods(server).items():
            methods[name] = self._unary(self._seen(f"/{SERVICE}/{name}", self._identified(change)), name)
        methods["ModelInfer"] = self._unary(self._seen(f"/{SERVICE}/ModelInfer", self._infer), "ModelInfer")
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=_parsed("ModelInferRequest"),
            response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _seen(self, path: str, answer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """A method whose errors are statuses, and which is counted and logged as requests over HTTP are."""

        async def method(request: Any, context: Any) -> Any:
            with self._observed(path, context) as record:
                trailing = (("x-request-id", record.id),)
                try:
                    asked = _whole(request)
                    made = await (answer(asked, context) if path in WITH_CONTEXT else answer(asked))
                except Exception as error:  # the edge of the process: whatever it is becomes a status
                    failure = failure_of(error)
                    record.status = failure.status
                    return await _end(context, failure, trailing)
                record.status = 200
                because = ((DEGRADED, record.because),) if record.because else ()
                context.set_trailing_metadata((*trailing, *because))
                return made

        return method

    def _identified(self, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """A method that is answered in the name of who has its key, and is finished before the server ends."""
        server = self._server

        async def method(request: Any, context: Any) -> Any:
            caller = identified(server.admission, context.invocation_metadata())
            with server.admission.passed(caller):
                server.gate.enter()
                try:
                    return await answer(request)
                finally:
                    server.gate.leave()

        return method

    async def _infer(self, request: Any, context: Any) -> Any:
        """`ModelInfer`: let in, answered, and told, as over HTTP."""
        server, began = self._server, monotonic()
        caller = identified(server.admission, context.invocation_metadata())
        with server.admission.passed(caller), server.bodies.held() as take:
            server.gate.refuse_unless_open()
            if (size := request.ByteSize()) > server.largest_tensors:
                raise Refused(
                    f"the message has {size} bytes; at most {server.largest_tensors} are taken", status=413
                )
            take(size)
            server.gate.enter()
            current().body(request.SerializeToString() if current().digests else b"")
            current().body_bytes = size
            try:
                asked = grpc_tensors.asked(request)
                within_s = deadlines.allowed(_left(context), asked.within_s, default=server.options.timeout_s)
                answered = await _in_time(
                    server.answered(lambda: infer(server.catalogue, asked)),
                    Deadline.after(within_s, began),
                )
                return grpc_tensors.response(answered)
            finally:
                server.gate.leave()

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """`ModelStreamInfer`: one request after the other, in their order; an error is that of one of them."""
        path = f"/{SERVICE}/ModelStreamInfer"
        async for request in requests:
            made = MESSAGES["ModelStreamInferResponse"]()
            with self._observed(path, context) as record:
                try:
                    made.infer_response.CopyFrom(await self._infer(_whole(request), context))
                    record.status = 200
                except Exception as error:  # as above
                    failure = failure_of(error)
                    record.status = failure.status
                    made.error_message = failure.message
                    made.infer_response.id = getattr(request, "id", "")
            yield made

    def _health(self) -> Any:
        request, response = HEALTHS["HealthCheckRequest"], HEALTHS["HealthCheckResponse"]

        async def check(requests: AsyncIterator[Any], context: Any) -> Any:
            asked = await self._told(requests, context)
            status = self._status(asked.service)
            if status == SERVICE_UNKNOWN:
                await context.abort(
                    grpc.StatusCode.NOT_FOUND, f"no service {asked.service[:MOST_SAID]!r}"[:MOST_SAID]
                )
            return response(status=status)

        async def watch(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            asked, told = await self._told(requests, context), None
            while not self._closing.is_set():
                if (status := self._status(asked.service)) != told:
                    told = status
                    yield response(status=status)
                await _within(self._closing.wait(), WATCH_S)

        return grpc.method_handlers_generic_handler(
            f"{HEALTH}.Health",
            {
                "Check": grpc.stream_unary_rpc_method_handler(
                    check, request.FromString, response.SerializeToString
                ),
                "Watch": grpc.stream_stream_rpc_method_handler(
                    watch, request.FromString, response.SerializeToString
                ),
            },
        )

    def _unary(self, method: Callable[..., Awaitable[Any]], name: str) -> Any:
        """A method of one message. As a stream: nobody but its handler could wait for it so long and no longer."""

        async def once(requests: AsyncIterator[Any], context: Any) -> Any:
            return await method(await self._message(requests), context)

        return grpc.stream_unary_rpc_method_handler(
            once,
            request_deserializer=_parsed(f"{name}Request"),
            response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
        )

    async def _message(self, requests: AsyncIterator[Any]) -> Any:
        """The one message of a call, or the error that says that it did not come."""
        within_s = self._server.options.body_timeout_s
        try:
            return await asyncio.wait_for(requests.__anext__(), within_s)
        except asyncio.TimeoutError:
            return Refused(f"the message was not there in full within {within_s:g} s", status=408)
        except StopAsyncIteration:
            return InputError("the call ended before its message")

    async def _told(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """The one message of a call that is not counted; without it the call ends here."""
        asked = await self._message(requests)
        if isinstance(asked, InputError):
            failure = failure_of(asked)
            await _end(context, failure)
        return asked

    def _status(self, service: str) -> int:
        """Of the server, of the service, or of a model by its name."""
        if service not in {"", SERVICE}:
            try:
                found(self._server.catalogue, service)
            except Refused:
                return SERVICE_UNKNOWN
        return SERVING if self._server.ready else NOT_SERVING

    def _observed(self, path: str, context: Any) -> contextlib.AbstractContextManager[Record]:
        """A call that is counted and logged as requests over HTTP are."""
        scope = _scope(path, context)
        record = record_of(scope, path, request_id_of(scope).decode())
        return self._server.observer.observed(record)

    async def _refused(self, error: Exception, path: str, context: Any) -> None:
        """End a call that is not let in."""
        failure = failure_of(error)
        with self._observed(path, context) as record:
            record.status = failure.status
            await _end(context, failure, (("x-request-id", record.id),))


async def _end(context: Any, failure: Failure, trailing: tuple[tuple[str, str], ...] = ()) -> None:
    """End a call with what went wrong, in as many characters as travel, and when to try again."""
    await context.abort(_code(failure), failure.message[:MOST_SAID], (*trailing, *_again(failure)))


def _parsed(name: str) -> Callable[[bytes], Any]:
    """Bytes as a message; those that are none become the error that says so, since raised here it would be nameless."""

    def parse(content: bytes) -> Any:
        try:
            return parsed(MESSAGES[name], content)
        except InputError as error:
            return error

    return parse


def _whole(request: Any) -> Any:
    """The message, or its error raised."""
    if isinstance(request, InputError):
        raise request
    return request


def _scope(path: str, context: Any) -> dict[str, Any]:
    """What the log wants to know of a request, as it does of those over HTTP."""
    given = context.invocation_metadata() or ()
    headers = [(key.encode(), value.encode() if isinstance(value, str) else value) for key, value in given]
    return {"method": "GRPC", "path": path, "headers": headers, "client": (context.peer(),)}


def _code(failure: Failure) -> Any:
    return CODES.get(failure.status, grpc.StatusCode.INTERNAL)


def _again(failure: Failure) -> tuple[tuple[str, str], ...]:
    """When to try again, as metadata."""
    return (("retry-after", failure.retry_after),) if "retry-after" in failure.headers else ()


def _is_open(path: str) -> bool:
    """Whether a method is answered without a key: those that watch the health."""
    return path in OPEN or path.startswith(f"/{HEALTH}.")


def _left(context: Any) -> float | None:
    """Seconds that the client waits, if it says so, and no more than anybody may wait."""
    left: float | None = context.time_remaining()
    return None if left is None else min(max(left, 0.001), deadlines.LONGEST_S)


async def _in_time(work: Awaitable[Any], deadline: Deadline) -> Any:
    """The answer; nothing more is done for who left or whose time is over."""
    deadlines.set_until(deadline)
    try:
        return await asyncio.wait_for(work, deadline.left(monotonic()))
    except asyncio.TimeoutError:
        raise deadline.missed(current().done, current().rows) from None


async def _within(event: Awaitable[object], seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event, seconds)
