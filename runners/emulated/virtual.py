"""The emulated engine under a closed-loop load, in virtual time: no server, no waiting.

Every slot sends its planned requests one after the other, each when the one before it has ended;
when its plan is through it goes on with fillers until the last measured request of all slots has
ended. A request without a token or an end in time is given up, for a policy may starve it. The
same input gives the same output, always.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from runners.emulated.deployment import Deployment, deploy
from runners.emulated.flight import CUT_SHORT, Flight, Patience, refused
from runners.emulated.request import Request
from runners.emulated.scheduler import EngineModel, StepResult
from runners.emulated.settings import Settings
from runners.emulated.step_cost import Constants
from runners.fillers import endless, fresh
from runners.records import MEASURED, UNFINISHED, RequestRecord
from runners.windows import EngineWindow
from runners.workload import PlannedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """What the client and the engine saw; times are emulated seconds from the first request."""

    deployment: Deployment
    records: tuple[RequestRecord, ...]  # in the order in which the requests ended
    window: EngineWindow  # from the first measured request sent to the last one ended
    steps: int  # forward passes in all


def emulate(
    settings: Settings,
    plan: Iterable[PlannedRequest],
    *,
    seed: int | None = 0,
    constants: Constants | None = None,
    first_token_timeout_s: float = 120.0,
    total_timeout_s: float = 600.0,
) -> VirtualRun:
    """Deploy *settings* and send *plan*; without a *seed* the steps have no noise.

    The time-outs are in emulated seconds.

    Raises:
        EngineDeathError: the engine did not start, or died under the load.
        ValueError: model or hardware are not in the tables, or nothing in the plan is measured.
    """
    deployment = deploy(settings)
    patience = (
        Patience("timeout_first_token", first_token_timeout_s, first_token_only=True),
        Patience("timeout_total", total_timeout_s, first_token_only=False),
    )
    load = _Load(EngineModel(deployment, seed, constants), plan, patience)
    steps = load.run()
    return VirtualRun(
        deployment=deployment,
        records=tuple(load.records),
        window=load.window(),
        steps=steps,
    )


class _Load:
    """The slots, the engine between them, and the clock."""

    def __init__(
        self,
        engine: EngineModel,
        plan: Iterable[PlannedRequest],
        patience: Sequence[Patience],
    ) -> None:
        self._patience = patience
        self.records: list[RequestRecord] = []
        self._engine = engine
        self._interval = max(engine.settings.stream_interval, 1)
        planned = sorted(plan, key=lambda p: (p.round, p.slot))
        self._left = sum(p.phase == MEASURED for p in planned)
        if not self._left:
            raise ValueError("a plan must hold at least one measured request, found none")
        self._most_refusals = 1 + max(p.round for p in planned)
        self._slots = _slots(planned)
        self._flights: dict[Request, Flight] = {}
        self._decoded_s: list[float] = []  # when each decode step ended
        self._peaks = _Peaks()

    def run(self) -> int:
        """Run until all that is measured has ended; return the number of steps."""
        now_s, steps = 0.0, 0
        for slot in self._slots:
            self._send(slot, now_s)
        while self._left:
            result = self._engine.step(now_s)
            now_s += result.duration_s
            steps += 1
            self._note(result, now_s)
            for patience in self._patience:
                for flight in patience.overdue(now_s):
                    self._give_up(flight, now_s, patience.kind)
        self._cut(now_s)
        return steps

    def _send(self, slot: int, now_s: float) -> None:
        """Send the slot's next request; one that is too long is refused and the next one sent.

        A slot with nothing but refusals to come gives up.
        """
        for refusals, planned in enumerate(self._slots[slot], start=1):
            prompt = planned.prompt
            refusal = self._engine.refusal(len(prompt))
            if planned.phase == MEASURED:
                self._peaks.begin(self._engine)
            if refusal is None:
                request = Request(
                    id=planned.id, prompt=prompt, output_tokens=planned.output_tokens
                )
                flight = self._flights[request] = Flight(planned, request, now_s)
                for patience in self._patience:
                    patience.flights.append(flight)
                self._engine.submit(request, now_s)
                return
            self.records.append(refused(planned, now_s, refusal))
            self._left -= planned.phase == MEASURED
            if not self._left or refusals >= self._most_refusals:
                return

    def _note(self, result: StepResult, now_s: float) -> None:
        flights, decoded_s = self._flights, self._decoded_s
        for request in result.retracted:
            times_s = flights[request].times_s
            times_s.extend(decoded_s[len(decoded_s) - (request.emitted - len(times_s)) :])
        if result.decoded:
            decoded_s.append(now_s)
        for request in result.prefilled:
            flights[request].times_s.append(now_s)
        self._peaks.look(self._engine, len(result.decoded))
        for request in result.finished:
            flight = flights.pop(request)
            missing = request.emitted - len(flight.times_s)
            if missing:
                flight.times_s.extend(decoded_s[-missing:])
            short = request.emitted != flight.planned.output_tokens
            self._end(flight, now_s, CUT_SHORT if short else None)

    def _give_up(self, flight: Flight, now_s: float, why: str) -> None:
        self._catch_up(flight)
        del self._flights[flight.request]
        self._engine.abort(flight.request)
        self._end(flight, now_s, why)

    def _end(self, flight: Flight, now_s: float, failure: str | None) -> None:
        flight.ended = True
        self.records.append(flight.record(now_s, failure, self._interval))
        self._left -= flight.planned.phase == MEASURED
        if self._left:
            self._send(flight.planned.slot, now_s)

    def _cut(self, now_s: float) -> None:
        """Write down what was still in flight at the end, through no fault of its own."""
        for flight in self._flights.values():
            self._catch_up(flight)
            self.records.append(flight.record(now_s, UNFINISHED, self._interval))

    def _catch_up(self, flight: Flight) -> None:
        """Note the tokens that a request in mid-decode has had."""
        running = self._engine.running
        if flight.request in running.requests:
            missing = running.emitted(flight.request) - len(flight.times_s)
            flight.times_s.extend(self._decoded_s[len(self._decoded_s) - missing :])

    def window(self) -> EngineWindow:
        """Return the engine's counters over the measured part."""
        measured = [r for r in self.records if r.phase == MEASURED and r.ok]
        return EngineWindow(
            prompt_tokens=sum(r.prompt_tokens or 0 for r in measured),
            cached_tokens=sum(r.cached_tokens or 0 for r in measured),
            retractions=self._engine.totals.retracted - self._peaks.retracted_before,
            running_peak=self._peaks.running,
            queued_peak=self._peaks.queued,
            kv_usage_peak=self._peaks.used_tokens / self._engine.pool.tokens,
            kv_pool_tokens=self._engine.pool.tokens,
        )


@dataclass(slots=True)
class _Peaks:
    """The highest that was seen since the first measured request."""

    measuring: bool = False
    retracted_before: int = 0
    running: int = 0
    queued: int = 0
    used_tokens: int = 0

    def begin(self, engine: EngineModel) -> None:
        if not self.measuring:
            self.measuring = True
            self.retracted_before = engine.totals.retracted

    def look(self, engine: EngineModel, decoded: int) -> None:
        if not self.measuring:
            return
        self.running = max(self.running, engine.active, decoded)
        self.queued = max(self.queued, len(engine.waiting))
        self.used_tokens = max(self.used_tokens, engine.pool.used)


def _slots(planned: Sequence[PlannedRequest]) -> dict[int, Iterator[PlannedRequest]]:
    """Return each slot's requests, then fillers without end."""
    by_slot: dict[int, list[PlannedRequest]] = {}
    for request in planned:
        by_slot.setdefault(request.slot, []).append(request)
    return {slot: map(_turned, endless(mine, lambda p: p.phase)) for slot, mine in by_slot.items()}


def _turned(repeat: tuple[PlannedRequest, int]) -> PlannedRequest:
    planned, times = repeat
    prompt = fresh(planned.prompt, planned.prefix_tokens, times)
    return replace(planned, prompt=prompt) if times else planned
