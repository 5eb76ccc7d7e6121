"""The front's side of the engine process: starts it, talks to it, notices its end, starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Literal

from alula.core.errors import AlulaError
from alula.core.tensor import Feeds
from alula.generate import Piece, Request
from alula.serve import opened, sequences, wire
from alula.serve.exchange import EngineAway, Exchange
from alula.serve.named import BundleReplaced, Named, by_name
from alula.serve.opened import Opened
from alula.serve.outcome import Outcome
from alula.serve.process import LOST_DEVICE, EngineProcess, Opening
from alula.serve.receiving import receive
from alula.serve.sequences import Load
from alula.serve.starts import STARTS, WINDOW_S, Starts
from alula.serve.streams import Stream, Streams
from alula.serve.wire import Kind, Message

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "restarting", "broken", "stopped"]

OPEN_S = 900.0
"""So long one more model may take to be opened."""

CLOSING_S = 0.02
"""Between two looks whether a model that is to be closed still has something to do."""

BACK_S = 10.0
"""So long work that has not begun waits for a process that is being started again."""


class Supervisor:
    """One engine process with some models in it, kept running.

    `bundles` are in the order of the numbers that `run` and `write` take; what is opened later has
    a number of its own. Where the folder of one holds another bundle once a process is started again, `replaced` is
    told of its number, and it is there no longer; without that the engine counts as broken.
    """

    def __init__(
        self,
        command: Sequence[str],
        bundles: Sequence[Named],
        opening: Opening,
        *,
        run_timeout_s: float = 120.0,
        first: EngineProcess | None = None,
    ) -> None:
        self._command = tuple(command)
        self._bundles = dict(enumerate(bundles))
        self._opening = opening
        self._run_timeout_s = run_timeout_s
        self._current = first
        self._exchange = Exchange()
        self._streams = Streams()
        self._heard = 0.0
        self._started = Starts()
        self._keeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self.loads: dict[int, Load] = {}
        self.opened: dict[int, Opened] = {}
        self.replaced: Callable[[int], None] | None = None
        self._running: Counter[int] = Counter()
        self.state: State = "starting"
        self.restarts = 0
        self.reason = ""
        self.lost = False
        self.started = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def live(self) -> bool:
        """Whether the engine is up or may come up by itself; of a device that was lost that is to be shown first."""
        return self.state in {"starting", "ready", "restarting"} and not self.lost

    @property
    def pid(self) -> int | None:
        """The engine process, for those who watch it."""
        return self._current.process.pid if self._current else None

    @property
    def device(self) -> str:
        """The GPU that the engine process is left to see; empty where none was named."""
        return self._opening.device

    @property
    def running(self) -> int:
        """Batches that run or are on their way there and back, of all models."""
        return self._running.total()

    async def start(self) -> None:
        """Start, and open every model; the first failure is raised, since a restart would not cure it."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name="engine keeper")
        self._watcher = asyncio.create_task(self._watch(), name="engine watcher")

    async def run(self, model: int, feeds: Feeds, wanted: Sequence[str] | None = None) -> Outcome:
        """Run one batch; only `wanted` outputs come back, all where it is None.

        Raises what the engine raised, or `EngineAway` if it died; waits for one that comes back.
        """
        meta = {"model": model, **({} if wanted is None else {"wanted": [*wanted]})}
        self._running[model] += 1
        try:
            current = await self._back()
            if model not in self._bundles:
                raise EngineAway("the model was unloaded")
            message = Message(kind=Kind.RUN, number=self._exchange.next(), meta=meta, arrays=feeds)
            (answer,) = await self._ask(current, [message])
        finally:
            self._running[model] -= 1
        return Outcome(
            outputs=answer.arrays,
            seconds=answer.meta.get("seconds"),
            replayed=answer.meta.get("replayed"),
        )

    async def write(
        self,
        model: int,
        requests: Sequence[Request],
        within_s: float,
        observe: Callable[[int, Piece], None],
        later_s: float = 0.0,
    ) -> Stream:
        """Put answers in the line, all of them or none; whoever has the stream must `leave` it at last.

        Raises what the model refused one for, or `EngineAway` if the process died.
        """
        current = await self._back()
        stream = Stream(model, [self._exchange.next() for _ in requests], observe)
        if not self._streams:
            self._heard = monotonic()
        self._streams.open(stream)
        try:
            await self._ask(
                current,
                [
                    sequences.asking(number, model, request, within_s, later_s)
                    for number, request in zip(stream.numbers, requests, strict=True)
                ],
            )
        except BaseException:
            self.leave(stream)
            raise
        return stream

    def leave(self, stream: Stream) -> int:
        """Take no more from a stream, and have what is not ended cancelled; gives how many answers that were."""
        stream.close()
        return self._cancel(stream)

    async def open(self, number: int, bundle: Named) -> None:
        """Open one more model beside the work of the others. Raises why it could not be."""
        current = await self._back()
        (answer,) = await self._ask(current, [opened.opening(number, bundle)], OPEN_S)
        self.opened[number] = Opened.of(answer)
        self._bundles[number] = bundle

    async def close(self, model: int) -> None:
        """Close a model that nobody asks any more, once all that it was asked for is answered."""
        while self._running[model] or self._streams.count(model):
            await asyncio.sleep(CLOSING_S)
        for known in (self._bundles, self.opened, self.loads, self._running):
            known.pop(model, None)
        if self.state == "ready" and self._current:
            await self._ask(self._current, [opened.closing(self._exchange.next(), model)])

    def writing(self, model: int) -> int:
        """How many answers of a model are being written, wait, or are to be cancelled."""
        return self._streams.count(model)

    def restart(self, why: str) -> None:
        """Have the process ended and another one started in its place."""
        if self.state == "ready" and self._current:
            log.error("engine process is started again: %s", why)
            self._gone(why)
            self._current.process.kill()

    def give_up(self, why: str) -> None:
        """No process is started any more: only a new server may help."""
        log.error("engine process is given up: %s", why)
        self._enter("broken", why)
        if self._current:
            self._current.process.kill()

    async def stop(self) -> None:
        """End the process; safe to call twice."""
        self._enter("stopped", self.reason)
        for task in (self._keeper, self._watcher):
            if task:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self._end()

    async def _keep(self) -> None:
        """Start the process again whenever it ends, until it ends too often."""
        while self._reader and self._trying():
            # Not `await self._reader`: who cancels this must not cancel that.
            await asyncio.wait({self._reader})
            code = await self._end()
            if not self._trying():
                return
            self.restarts += 1
            self.lost = self.lost or code == LOST_DEVICE
            self._enter(
                "restarting", "the device was lost" if self.lost else f"the last one ended with {code}"
            )
            on = f" on GPU {self.device}" if self.device else ""
            log.error("engine process%s ended with %s; starting it again", on, code)
            while self._trying() and not await self._again():
                pass

    async def _again(self) -> bool:
        """One more start, or the verdict that there were enough; true once it is ready."""
        pause_s = self._started.pause_s(monotonic())
        if pause_s is None:
            self._enter("broken", self.reason)
            log.error("engine process started %d times within %g s: given up", STARTS, WINDOW_S)
            return False
        await asyncio.sleep(pause_s)
        try:
            await self._launch()
        except (AlulaError, OSError) as error:
            self.reason = by_name(str(error), [each.root for each in self._bundles.values()])
            log.error("engine process could not be started: %s", error)  # noqa: TRY400 - the text says it
            if isinstance(error, BundleReplaced):
                self._enter("broken", self.reason)
            if await self._end() == LOST_DEVICE:
                self.lost = True
            return False
        return True

    async def _launch(self) -> None:
        opening = replace(self._opening, again=bool(self._started))
        bundles = dict(self._bundles)
        current = self._current or EngineProcess.start(self._command, bundles, opening)
        self._current = current
        self._started.begun(monotonic())
        answers = [self._exchange.expect(model) for model in bundles]
        self._reader = asyncio.create_task(self._read(current), name="engine reader")
        for model, answer in zip(bundles, await asyncio.gather(*answers), strict=True):
            self._take_in(model, answer)
        self._exchange.forget()
        for model in bundles.keys() - self._bundles.keys():  # closed while this process was started
            self._exchange.send_later(current, opened.closing(self._exchange.next(), model))
        self.lost = False
        self._enter("ready", "")
        self.started.set()

    def _take_in(self, model: int, answer: Message) -> None:
        try:
            self.opened[model] = Opened.of(answer)
        except BundleReplaced:
            if self.replaced is None or not self.restarts:
                raise
            self._bundles.pop(model, None)
            self.replaced(model)

    def _trying(self) -> bool:
        """Whether a process that ends is followed by another one."""
        return self.state not in {"broken", "stopped"}

    def _enter(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        if state == "restarting":
            self._settled.clear()
        else:
            self._settled.set()

    async def _back(self) -> EngineProcess:
        """The process; one that is being started again is waited for, but not for long."""
        if self.state == "restarting":
            # Not wait_for, which before Python 3.12 goes on where it settles together with a cancellation.
            settled = asyncio.ensure_future(self._settled.wait())
            try:
                await asyncio.wait({settled}, timeout=BACK_S)
            finally:
                settled.cancel()
        if self.state != "ready" or self._current is None:
            raise EngineAway(f"the engine is {self.state}{self.reason and ': '}{self.reason}")
        return self._current

    async def _ask(
        self, current: EngineProcess, messages: Sequence[Message], within_s: float | None = None
    ) -> list[Message]:
        """The answers to some messages, in their order; a process that is later with them counts as hung."""
        try:
            return await self._exchange.ask(current, messages, within_s or self._run_timeout_s)
        except asyncio.TimeoutError:
            self._hung()
            raise EngineAway(f"the engine gave no answer within {self._run_timeout_s:g} s") from None

    def _cancel(self, stream: Stream) -> int:
        unended = self._streams.unended(stream)
        for number in unended:
            if self._current:
                self._exchange.send_later(self._current, sequences.cancelling(number, stream.model))
        return len(unended)

    async def _read(self, current: EngineProcess) -> None:
        """Hand answers to those who wait, until the process is gone; then tell everybody."""
        try:
            while message := await receive(current.connection):
                self._heard = monotonic()
                self._got(message)
        except (OSError, wire.WireError, ValueError) as error:
            log.error("engine process cannot be read: %s", error)  # noqa: TRY400 - the text says it
        self._gone("it just ended")
        self._exchange.fail(lambda: EngineAway("the engine process ended during the run"))
        self._streams.fail(lambda: EngineAway("the engine process ended while it wrote the answer"))
        self.loads.clear()

    def _got(self, message: Message) -> None:
        if message.kind is Kind.PIECES:
            self.loads[message.number] = sequences.load(message)
            for full in self._streams.deliver(sequences.pieces(message)):
                self._cancel(full)
            return
        if message.kind is Kind.FAILED:
            self._streams.forget(message.number)
        self._exchange.answered(message)

    async def _watch(self) -> None:
        """End a process that writes and says nothing for too long; batches are timed one by one."""
        while True:
            await asyncio.sleep(self._run_timeout_s / 4)
            if self._streams and monotonic() - self._heard > self._run_timeout_s:
                self._hung()

    def _hung(self) -> None:
        self.restart(f"it gave no answer within {self._run_timeout_s:g} s")

    async def _end(self) -> int | None:
        """End the current process without holding up the loop, and give its exit code."""
        current, self._current = self._current, None
        if current is None:
            return None
        # The reader must be done with the socket before it is closed under it.
        with contextlib.suppress(OSError):
            current.connection.shutdown(socket.SHUT_RDWR)
        if self._reader:
            await asyncio.wait({self._reader})
        await asyncio.get_running_loop().run_in_executor(None, current.end)
        return current.process.returncode

    def _gone(self, reason: str) -> None:
        """Take no more for a process that is ending; the keeper does the rest."""
        if self.state == "ready":
            self._enter("restarting", reason)
