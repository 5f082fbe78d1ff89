"""Acts out the faults of an engine where it meets the world; the engine's model knows none of it.

Every method is called at one place of the server, whether there are faults or not.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import orjson

from runners.emulated import log
from runners.emulated.answers import DONE, Answer
from runners.emulated.asks import Ask
from runners.emulated.death import EngineDeathError
from runners.emulated.deployment import Deployment
from runners.emulated.exchange import END_OF_STREAM, STREAM_HEAD, Exchange, event
from runners.emulated.faults import (
    BusyFor,
    Clamp,
    CrashAtRequest,
    DieAtStart,
    EatMemory,
    ErrorInStream,
    Fault,
    FillLog,
    HangDying,
    HangInStartup,
    LeaveSharedMemory,
    ListenLate,
    NeverReady,
    OomAtConcurrency,
    Orphan,
    OtherModel,
    ShortOutput,
    SlowLeak,
    StallStream,
    find,
)
from runners.emulated.request import Request
from runners.emulated.scheduler import StepResult

DEAF = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "while True: time.sleep(1)\n"
)
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where SGLang puts it
FILLING = "an OSError that nobody will miss, "
MIB = 1024 * 1024
STEPS_PER_FACTOR = 100
LONG_S = 3600.0
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
CRASH = (
    '  File "torch/cuda/streams.py", line 227, in synchronize\n'
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
)
ERROR = {"error": {"object": "error", "message": "the stream broke on purpose", "code": 500}}


class Misbehaviour:
    """What goes wrong with one launch."""

    def __init__(self, faults: Sequence[Fault], stop: asyncio.Event) -> None:
        self._faults = faults
        self._stop = stop
        self._requests = self._streams = self._steps = 0
        self._crash = find(faults, CrashAtRequest)
        self._oom = find(faults, OomAtConcurrency)
        self._dying = find(faults, HangDying)
        self._leak = find(faults, SlowLeak)
        self._hunger = find(faults, EatMemory)
        self._eaten = b""

    async def start(self) -> None:
        """Misbehave before anything is loaded.

        Raises:
            EngineDeathError: that was the fault.
        """
        for fault in self._faults:
            log.say(f"fault on purpose: {fault}")
        for fault in self._faults:
            await self._start(fault)

    async def _start(self, fault: Fault) -> None:
        match fault:
            case DieAtStart(after=after, code=code):
                await self._pass(after)
                raise EngineDeathError(f"ended on purpose: {fault}", code)
            case HangInStartup():
                await self._stop.wait()
            case HangDying(requests=0):
                log.say(EngineDeathError(CRASH).log)
                await self._stop.wait()
            case ListenLate(after=after):
                await self._pass(after)
            case FillLog(mib=mib, width=width):
                _fill_log(mib, width)
            case Orphan():
                await asyncio.to_thread(_leave_orphan)
            case LeaveSharedMemory():
                _hold_shared_memory()
            case _:
                pass  # its time comes later

    def deployed(self, deployment: Deployment) -> Deployment:
        """Return what really runs, or what is said of it."""
        if (clamp := find(self._faults, Clamp)) is not None:
            most = min(clamp.max_running_requests, deployment.max_running_requests)
            deployment = replace(deployment, max_running_requests=most)
        if find(self._faults, OtherModel) is not None:
            other = replace(deployment.settings, model_path="another-model")
            deployment = replace(deployment, settings=other)
        return deployment

    async def warm_up(self) -> None:
        """Listen, and be busy."""
        if find(self._faults, NeverReady) is not None:
            await self._stop.wait()
        if (busy := find(self._faults, BusyFor)) is not None:
            await self._pass(busy.seconds)

    def asked(self, ask: Ask) -> Ask:
        """Count *ask*; return what will be answered."""
        self._requests += 1
        self._streams += ask.stream
        short = find(self._faults, ShortOutput)
        if short is None or not self._hit(ask, short.every):
            return ask
        return replace(ask, output_tokens=min(short.tokens, ask.output_tokens))

    def spoils(self, exchange: Exchange, ask: Ask) -> bool:
        """True when *ask* was answered, with an error that only its stream tells."""
        error = find(self._faults, ErrorInStream)
        if error is None or not self._hit(ask, error.every):
            return False
        exchange.write(STREAM_HEAD + event(orjson.dumps(ERROR)) + DONE + END_OF_STREAM)
        exchange.close()
        return True

    def answer(self, exchange: Exchange, ask: Ask, request: Request, interval: int) -> Answer:
        """Return the answer to *ask*, which may fall silent."""
        stall = find(self._faults, StallStream)
        if stall is None or not self._hit(ask, stall.every):
            return Answer(exchange, ask, request, interval)
        return _Stalling(exchange, ask, request, interval, stall.tokens)

    def step(self, result: StepResult) -> StepResult:
        """Return what became of a step.

        Raises:
            EngineDeathError: the engine.
        """
        self._steps += 1
        if self._crash is not None and self._requests >= self._crash.number:
            raise EngineDeathError(CRASH)
        if self._dying is not None and 0 < self._dying.requests <= self._requests:
            log.say(EngineDeathError(CRASH).log)
            time.sleep(LONG_S)
        if self._oom is not None and len(result.decoded) >= self._oom.running:
            raise EngineDeathError(OOM)
        if self._hunger is not None and self._requests >= self._hunger.number:
            self._eaten = self._eaten or b"x" * (self._hunger.mib * MIB)
        if self._leak is None:
            return result
        factor = self._leak.factor ** (self._steps / STEPS_PER_FACTOR)
        return result._replace(duration_s=result.duration_s * factor)

    def _hit(self, ask: Ask, every: int) -> bool:
        return ask.stream and self._streams % every == 0

    async def _pass(self, seconds: float) -> None:
        """Wait, but not after the order to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


class _Stalling(Answer):
    """An answer that says nothing after its first tokens, not even that it has ended."""

    def __init__(
        self, exchange: Exchange, ask: Ask, request: Request, interval: int, tokens: int
    ) -> None:
        super().__init__(exchange, ask, request, interval)
        self._left = tokens

    def token(self) -> None:
        """Take one token, and perhaps send it."""
        self._left -= 1
        if self._left >= 0:
            super().token()

    def finish(self) -> None:
        """Say nothing."""


def _leave_orphan() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", DEAF], check=True)


def _fill_log(mib: int, width: int) -> None:
    line = (FILLING * (width // len(FILLING) + 1))[:width] + "\n"
    for _ in range(mib):
        sys.stderr.write(line * max(1, MIB // len(line)))


def _hold_shared_memory() -> None:
    """Keep a file open for as long as the process lives."""
    name = f"sglang_loads_emulated_{os.getpid()}.shm"
    os.open(SHARED_MEMORY / name, os.O_CREAT | os.O_RDWR, 0o600)
