"""The emulated engine's core: which requests each step computes, and how long it takes. Pure.

Like SGLang: prefills come first, over as many waiting requests as slots, KV pool, prefill budget
and chunk allow; what does not fit a chunk goes on in the next step; without a prefill all running
requests decode one token. When the KV pool runs out, those that have produced least go back to
the queue. Time comes in as an argument and goes out as a duration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from runners.emulated.admission import RETRACT_STEPS, NewTokenRatio
from runners.emulated.death import EngineDeathError
from runners.emulated.deployment import Deployment
from runners.emulated.kv_pool import KvPool
from runners.emulated.prefill_queue import PrefillQueue
from runners.emulated.request import Request
from runners.emulated.running_batch import RunningBatch
from runners.emulated.step_cost import Constants, StepCost

RUN_NOISE = 0.02  # standard deviation of the speed of whole runs
STEP_NOISE = 0.03  # and of single steps


class StepResult(NamedTuple):
    """What one step did. A named tuple, because one is made for every step."""

    duration_s: float
    prefilled: tuple[Request, ...]  # their prompt is computed: the first token, or one more
    decoded: tuple[Request, ...]  # got one more token
    finished: tuple[Request, ...]  # of both, those that got their last
    retracted: tuple[Request, ...]  # lost their place before the step, keep their tokens
    new_tokens: int  # prompt tokens computed
    cached_tokens: int  # prompt tokens of the newly admitted that were found in the cache
    admitted: int


@dataclass(slots=True)
class Totals:
    """Counters since the start: of finished requests, but for the last two."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    aborted: int = 0
    retracted: int = 0  # how often a request lost its place


class EngineModel:
    """A deployed engine; *seed* fixes its noise, without one every step takes its nominal time."""

    def __init__(
        self, deployment: Deployment, seed: int | None, constants: Constants | None = None
    ) -> None:
        settings = deployment.settings
        self.deployment = deployment
        self.settings = settings
        self.totals = Totals()
        self.running = RunningBatch()
        self.ratio = NewTokenRatio(settings.schedule_conservativeness)
        self.pool = KvPool(
            tokens=deployment.memory.kv_pool_tokens,
            page_size=settings.page_size,
            shares=not settings.disable_radix_cache,
        )
        self._cost = StepCost.of(
            deployment.model, deployment.hardware, settings.tp_size, constants
        )
        self._rng = Random(seed)
        self._noise = 0.0 if seed is None else STEP_NOISE
        self._pace = 1.0 if seed is None else max(1 + self._rng.gauss(0.0, RUN_NOISE), 0.5)
        self._queue = PrefillQueue(deployment, self.pool, self._rng)

    @property
    def waiting(self) -> list[Request]:
        """Requests that have no place yet, in the order in which they were last looked at."""
        return self._queue.waiting

    @property
    def has_work(self) -> bool:
        """True when a step would do something."""
        return bool(self.running.requests or self.waiting or self._queue.cut)

    @property
    def active(self) -> int:
        """Requests that have a place, the one in mid-prefill included."""
        return len(self.running) + (self._queue.cut is not None)

    @property
    def decodes(self) -> int:
        """Decode steps since the start."""
        return self.running.steps

    def refusal(self, prompt_tokens: int) -> str | None:
        """Say why a prompt of this length cannot be taken, None when it can."""
        longest = self.deployment.longest_prompt
        if prompt_tokens <= longest:
            return None
        return (
            f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length "
            f"({longest} tokens). Use a shorter input or enable --allow-auto-truncate."
        )

    @property
    def queue_is_full(self) -> bool:
        """True when --max-queued-requests forbids one more."""
        most = self.settings.max_queued_requests
        return most is not None and len(self.waiting) >= most

    def submit(self, request: Request, now_s: float) -> None:
        """Put *request* at the end of the queue; its output is cut to what fits at all."""
        if not self.has_work:
            self.ratio.reset()
        request.arrived_s = now_s
        most = self.deployment.longest_request - len(request.prompt) - 1
        request.output_tokens = max(1, min(request.output_tokens, most))
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget *request*, wherever it is; one that has finished is left alone."""
        if request in self.running.requests:
            self.running.leave(request)
        elif not self._queue.remove(request):
            return
        self.pool.release(request)
        self.totals.aborted += 1
        self._queue.full = False

    def flush(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while there is work."""
        if self.has_work:
            return False
        self.pool.cache.clear()
        return True

    def step(self, now_s: float) -> StepResult:
        """Compute one batch that starts at *now_s*.

        Raises:
            EngineDeathError: the step ran out of memory, and with it the engine.
        """
        batch = self._queue.assemble(self.running, self.ratio.value, now_s)
        new = sum(request.extend for request in batch)
        retracted: tuple[Request, ...] = ()
        if not batch or self.settings.enable_mixed_chunk:
            retracted = self._make_room(new)
            decoded = tuple(self.running.requests)
        elif self.pool.make_room(new):
            decoded = ()
        else:
            raise EngineDeathError("RuntimeError: Prefill out of memory. Lower your batch size.")
        cached, admitted = self._note_admissions(batch, now_s) if batch else (0, 0)
        duration = self._duration(batch, new, len(decoded))
        finished = self._advance(decoded) if decoded else []
        prefilled = self._complete(batch, finished) if batch else ()
        return StepResult(
            duration, prefilled, decoded, tuple(finished), retracted, new, cached, admitted
        )

    def _note_admissions(self, batch: Sequence[Request], now_s: float) -> tuple[int, int]:
        fresh = [request for request in batch if request.admitted_s is None]
        for request in fresh:
            request.admitted_s = now_s
            request.cached_tokens = request.computed
        return sum(request.computed for request in fresh), len(fresh)

    def _duration(self, batch: Sequence[Request], new: int, decoding: int) -> float:
        """Return the seconds of a step that fits the memory."""
        attended = sum(r.extend * (r.computed + r.extend / 2) for r in batch)
        sampled = decoding + len(batch) - (self._queue.cut is not None)
        self.deployment.memory.check_step(new + decoding, sampled)
        seconds = self._cost.seconds(
            new_tokens=new,
            attended=attended,
            decode_requests=decoding,
            context_tokens=self.running.context_tokens if decoding else 0,
            sampled=sampled,
            graph=not batch and decoding <= self.deployment.graph_requests,
        )
        if self._noise:
            seconds *= self._pace * max(1 + self._rng.gauss(0.0, self._noise), 0.5)
        return seconds

    def _advance(self, decoded: Sequence[Request]) -> list[Request]:
        self.pool.private += len(decoded)
        self.ratio.decay()
        finished = self.running.advance()
        for request in finished:
            self._finish(request)
        return finished

    def _complete(self, batch: Sequence[Request], finished: list[Request]) -> tuple[Request, ...]:
        """Keep what was computed; whole prompts give a token and join those that decode."""
        for request in batch:
            request.computed += request.extend
            self.pool.keep(request)
        done = tuple(request for request in batch if request is not self._queue.cut)
        for request in done:
            request.emitted += 1
            if request.emitted < request.output_tokens:
                self.running.join(request)
            else:
                self._finish(request)
                finished.append(request)
        return done

    def _finish(self, request: Request) -> None:
        self.pool.finish(request)
        self._queue.full = False
        totals = self.totals
        totals.requests += 1
        totals.prompt_tokens += len(request.prompt)
        totals.cached_tokens += request.cached_tokens or 0
        totals.generation_tokens += request.emitted

    def _make_room(self, new: int) -> tuple[Request, ...]:
        """Retract requests, least output first, until all that stay have room to go on."""
        if self.pool.make_room(new + len(self.running)):
            return ()
        emitted = self.running.emitted
        order = sorted(self.running.requests, key=lambda r: (emitted(r), -len(r.prompt)))
        retracted: list[Request] = []
        for request in order[:-1]:
            self.running.leave(request)
            self.pool.release(request)
            request.requeue()
            retracted.append(request)
            if self.pool.make_room(new + RETRACT_STEPS * len(self.running)):
                break
        if not self.pool.make_room(new + len(self.running)):
            raise EngineDeathError(
                "RuntimeError: Decode out of memory: one request fills the pool"
            )
        self._after_retraction(retracted)
        return tuple(retracted)

    def _after_retraction(self, retracted: list[Request]) -> None:
        self.waiting.extend(retracted)
        self.totals.retracted += len(retracted)
        self._queue.full = False
        emitted = sum(map(self.running.emitted, self.running.requests))
        asked = sum(request.output_tokens for request in self.running.requests)
        self.ratio.raise_after_retraction(emitted, len(self.running), asked)
