"""The load client's process: reads its orders from stdin, sends the plan, writes the records.

It runs alone in its process, because a busy thread beside it would be read as a slow engine. One
line on stdin says what to do; stdin then stays open, and its end means that whoever started us is
gone. Each change of phase, and progress once a second, is one JSON line on stdout.
"""

import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson

from runners.client_spec import ClientSpec
from runners.fillers import endless
from runners.load_jobs import Job, read_jobs, target_of
from runners.load_slot import Patience, Slot
from runners.records import (
    MEASURED,
    UNFINISHED,
    WARMUP,
    ClientReport,
    RequestRecord,
    write_records,
)

HEARTBEAT_S = 0.02
BEATS_PER_CHECK = 5  # of the time-outs
BEATS_PER_PROGRESS = 50
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # after a failure
FAILURES_IN_A_ROW = 50  # or one per slot, if that is more: we end early
FAILURES_AT_THE_START = 5  # or one per slot, if that is more, and not one success
PARENT_GONE = 3  # exit status
STDIN, STDOUT = 0, 1

Result = TypeVar("Result")


class Load:
    """The closed loop: every slot sends its requests one by one until all have been measured."""

    def __init__(
        self,
        slots: Sequence[Slot],
        jobs: Sequence[Sequence[Job]],
        clock: Callable[[], float],
        say: Callable[[str, int, int], None],
    ) -> None:
        self.records: list[RequestRecord] = []
        self.gave_up: str | None = None
        self.meter = Meter(clock)
        self._slots = slots
        self._jobs = jobs
        self._clock = clock
        self._say = say
        self._of = sum(job.phase == MEASURED for mine in jobs for job in mine)
        self._done = 0
        self._answered = False  # at least one request succeeded
        self._streak = 0  # failures in a row
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Warm up, measure, and return when the last measured request has ended."""
        await asyncio.gather(*(slot.connect() for slot in self._slots))
        self._say(WARMUP, 0, self._of)
        async with asyncio.TaskGroup() as group:
            for slot, jobs in zip(self._slots, self._jobs, strict=True):
                group.create_task(self._work(slot, jobs))
            group.create_task(self._beat())
            await self._over.wait()
            self.meter.stop()
            for slot in self._slots:
                slot.cut()

    async def _work(self, slot: Slot, jobs: Sequence[Job]) -> None:
        pause_s = FIRST_PAUSE_S
        for job in _endless(jobs):
            if self._over.is_set():
                return
            if job.phase == MEASURED and not self.meter.running:
                self.meter.start()
                self._say("measuring", 0, self._of)
            record = await slot.ask(job)
            self._note(record)
            if record.ok:
                pause_s = FIRST_PAUSE_S
            else:
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _note(self, record: RequestRecord) -> None:
        self.records.append(record)
        if record.failure == UNFINISHED:
            return
        self._answered = self._answered or record.ok
        self._streak = 0 if record.ok else self._streak + 1
        self._done += record.phase == MEASURED
        if self._done == self._of:
            self._over.set()
        elif self._hopeless():
            self.gave_up = (
                f"{self._streak} requests failed in a row, the last one with "
                f"{record.failure}: {record.detail}"
            )
            self._over.set()

    def _hopeless(self) -> bool:
        allowed = FAILURES_IN_A_ROW if self._answered else FAILURES_AT_THE_START
        return self._streak >= max(allowed, len(self._slots))

    async def _pause(self, seconds: float) -> None:
        """Let a failing engine breathe, but not after the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    async def _beat(self) -> None:
        """Measure how late the loop wakes us; look for overdue requests; tell how far we are."""
        beats = 0
        while not self._over.is_set():
            asleep_s = self._clock()
            await asyncio.sleep(HEARTBEAT_S)
            now_s = self._clock()
            self.meter.lag(now_s - asleep_s - HEARTBEAT_S)
            beats += 1
            if beats % BEATS_PER_CHECK == 0:
                for slot in self._slots:
                    slot.give_up_if_overdue(now_s)
            if beats % BEATS_PER_PROGRESS == 0 and self.meter.running:
                self._say("measuring", self._done, self._of)


class Meter:
    """Measures the client itself from the first measured request to the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.running = False
        self._clock = clock
        self._wall_s = self._cpu_s = 0.0
        self._lags_s: list[float] = []

    def start(self) -> None:
        """Begin to count."""
        self.running = True
        self._wall_s, self._cpu_s = self._clock(), time.process_time()

    def stop(self) -> None:
        """Stop counting."""
        if self.running:
            self._wall_s = self._clock() - self._wall_s
            self._cpu_s = time.process_time() - self._cpu_s

    def lag(self, seconds: float) -> None:
        """Note how late the loop was."""
        if self.running:
            self._lags_s.append(max(seconds, 0.0))

    def report(self, connections: int, gave_up: str | None) -> ClientReport:
        """Return what was counted."""
        lags = sorted(self._lags_s)
        return ClientReport(
            wall_s=self._wall_s,
            cpu_s=self._cpu_s,
            loop_lag_p99_ms=1000 * lags[int(0.99 * (len(lags) - 1))] if lags else 0.0,
            connections=connections,
            gave_up=gave_up,
        )


async def send_plan(
    spec: ClientSpec, clock: Callable[[], float]
) -> tuple[list[RequestRecord], ClientReport]:
    """Send the plan of *spec*; return a record of each request, and a report on ourselves."""
    asyncio.get_running_loop().add_reader(STDIN, _leave_if_stdin_ended)
    patience = Patience(
        first_token_s=spec.first_token_timeout_s,
        stall_s=spec.stall_timeout_s,
        total_s=spec.total_timeout_s,
    )
    target = target_of(spec.base_url)
    slots = [Slot(target, patience, clock) for _ in range(spec.concurrency)]
    load = Load(slots, read_jobs(spec), clock, _say)
    gc.collect()
    gc.freeze()
    gc.disable()
    await load.run()
    connections = sum(slot.connections for slot in slots)
    return load.records, load.meter.report(connections, load.gave_up)


def main() -> None:
    """Read the orders from stdin, carry them out, and write what came of it."""
    start_s = time.perf_counter()
    spec = ClientSpec.from_line(sys.stdin.buffer.readline())
    _allow_files(4 * spec.concurrency + 64)
    records, report = _run(send_plan(spec, lambda: time.perf_counter() - start_s))
    write_records(Path(spec.records_path), records)
    Path(spec.report_path).write_bytes(orjson.dumps(report))
    _say("drained", len(records), len(records))


def _endless(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield the planned jobs, then the fillers over and over, never quite the same."""
    for job, times in endless(jobs, lambda job: job.phase):
        yield replace(job, payload=job.again(times)) if times else job


def _say(phase: str, done: int, of: int) -> None:
    line = orjson.dumps({"phase": phase, "done": done, "of": of}, option=orjson.OPT_APPEND_NEWLINE)
    os.write(STDOUT, line)


def _leave_if_stdin_ended() -> None:
    if not os.read(STDIN, 4096):
        os._exit(PARENT_GONE)


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


if __name__ == "__main__":
    main()
