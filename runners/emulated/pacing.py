"""Lets the engine's time pass on the wall: every token is sent when it is due, never earlier.

The schedule is absolute: emulated second t is due at start + t / speed, so that one late step
does not delay the next. While the engine is idle its time passes too. Where the machine cannot
keep up, steps follow each other without a pause until they have caught up, and the lag is noted.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable

from runners.emulated.answers import Answer
from runners.emulated.request import Request
from runners.emulated.scheduler import EngineModel, StepResult

LOOP_GRAIN_S = 0.0015  # asyncio wakes up to this much late
STEPS_PER_DECADE = 16  # resolution of the lags that are remembered


class Lag:
    """How late steps were delivered, in milliseconds of wall clock."""

    def __init__(self) -> None:
        self.max_ms = 0.0
        self._counts: Counter[int] = Counter()

    def note(self, late_s: float) -> None:
        """Count one step."""
        late_ms = max(late_s * 1e3, 1e-3)
        self.max_ms = max(self.max_ms, late_ms)
        self._counts[math.ceil(STEPS_PER_DECADE * math.log10(late_ms))] += 1

    def quantile_ms(self, share: float) -> float | None:
        """Return the lag that *share* of the steps kept below; None before the first step."""
        seen, total = 0, self._counts.total()
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= share * total:
                return min(float(10 ** (bucket / STEPS_PER_DECADE)), self.max_ms)
        return None


class Pacer:
    """Runs the engine and delivers what it produces to the answers in flight."""

    def __init__(
        self,
        engine: EngineModel,
        speed: float,
        note: Callable[[StepResult], None],
        alter: Callable[[StepResult], StepResult] = lambda result: result,
    ) -> None:
        self.lag = Lag()
        self.idle = asyncio.Event()  # set while the engine has nothing to do
        self._engine = engine
        self._speed = speed
        self._note = note
        self._alter = alter  # called with every step before its time passes; may raise
        self._now_s = 0.0  # of the engine: the end of its last step
        self._start_s = time.perf_counter()
        self._answers: dict[Request, Answer] = {}
        self._work = asyncio.Event()

    def submit(self, answer: Answer) -> None:
        """Give the answer's request to the engine."""
        self._answers[answer.request] = answer
        self._engine.submit(answer.request, max(self._wall_now_s(), self._now_s))
        self._work.set()

    def abort(self, answer: Answer) -> None:
        """Forget the answer and its request."""
        self._answers.pop(answer.request, None)
        self._engine.abort(answer.request)

    async def run(self) -> None:
        """Work for ever.

        Raises:
            EngineDeathError: a step ran out of memory.
        """
        while True:
            if not self._engine.has_work:
                self._work.clear()
                self.idle.set()
                await self._work.wait()
                self.idle.clear()
                self._now_s = max(self._now_s, self._wall_now_s())
            result = self._alter(self._engine.step(self._now_s))
            self._now_s += result.duration_s
            await self._wait_until(self._start_s + self._now_s / self._speed)
            self._note(result)
            self._deliver(result)
            for _ in range(2):  # read what has arrived: once to see it, once to have it handled
                await asyncio.sleep(0)

    def _wall_now_s(self) -> float:
        return (time.perf_counter() - self._start_s) * self._speed

    async def _wait_until(self, due_s: float) -> None:
        left_s = due_s - time.perf_counter()
        if left_s > LOOP_GRAIN_S:
            await asyncio.sleep(left_s - LOOP_GRAIN_S)
            left_s = due_s - time.perf_counter()
        if left_s > 0:
            # Blocks the loop for less than its own grain: nothing that arrives now could be
            # served before the step has ended.
            time.sleep(left_s)  # noqa: ASYNC251
        self.lag.note(time.perf_counter() - due_s)

    def _deliver(self, result: StepResult) -> None:
        answers = self._answers
        for request in result.decoded + result.prefilled:
            if (answer := answers.get(request)) is not None:
                answer.token()
        for request in result.finished:
            if (answer := answers.pop(request, None)) is not None:
                answer.finish()
