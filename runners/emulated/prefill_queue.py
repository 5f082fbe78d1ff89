"""Who waits, and whose prompts the next step works on: SGLang's prefill-first admission. Pure."""

from random import Random

from runners.emulated.admission import CLIP_OUTPUT, PrefillBudget
from runners.emulated.death import EngineDeathError
from runners.emulated.deployment import Deployment
from runners.emulated.kv_pool import KvPool
from runners.emulated.policies import POLICIES
from runners.emulated.request import Request
from runners.emulated.running_batch import RunningBatch


class PrefillQueue:
    """The waiting requests, and the one whose prompt is in the middle of being computed."""

    def __init__(self, deployment: Deployment, pool: KvPool, rng: Random) -> None:
        self.waiting: list[Request] = []
        self.cut: Request | None = None  # its prompt goes on in the next step
        self.full = False  # nobody can be admitted until somebody leaves
        self._settings = deployment.settings
        self._most_running = deployment.max_running_requests
        self._pool = pool
        self._rng = rng
        self._order = POLICIES[deployment.policy]

    def remove(self, request: Request) -> bool:
        """Forget *request*; False when it is not here."""
        if request is self.cut:
            self.cut = None
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return False
        return True

    def assemble(self, running: RunningBatch, ratio: float, now_s: float) -> list[Request]:
        """Return the requests whose prompts this step works on, with their share in `extend`."""
        if self.cut is None and (self.full or not self.waiting):
            return []
        slots = self._most_running - len(running)
        if self.cut is None and slots <= 0:
            self.full = True
            return []
        budget = self._budget(running, ratio)
        if budget.spent:
            return []
        batch: list[Request] = []
        if self.cut is not None:
            self._plan(self.cut, budget, batch)
        if self.cut is None and not budget.spent and not self.full and self.waiting:
            self._admit(slots - len(batch), budget, batch, now_s)
        if not (batch or running.requests):
            raise EngineDeathError("RuntimeError: no waiting request fits into the empty KV pool")
        return batch

    def _budget(self, running: RunningBatch, ratio: float) -> PrefillBudget:
        decoding = len(running) if self._settings.enable_mixed_chunk else 0
        chunk = self._settings.chunked_prefill_size or 0
        promised = running.promised(ratio)
        return PrefillBudget(
            kv_tokens=self._pool.tokens - self._pool.used - promised,
            input_tokens=self._settings.max_prefill_tokens - decoding,
            chunk_tokens=chunk - decoding if chunk > 0 else None,
            page_size=self._settings.page_size,
        )

    def _admit(
        self, slots: int, budget: PrefillBudget, batch: list[Request], now_s: float
    ) -> None:
        """Take requests from the head of the queue until something runs out."""
        self._order(self.waiting, self._pool.cache, now_s, self._rng)
        taken = 0
        for request in self.waiting:
            if taken >= slots:
                self.full = True
                break
            if not self._fits(request, budget, alone=not batch):
                break
            taken += 1
            self._plan(request, budget, batch)
            if self.cut is not None or budget.spent:
                break
        del self.waiting[:taken]

    def _fits(self, request: Request, budget: PrefillBudget, *, alone: bool) -> bool:
        """Lock what is cached of *request* if it fits the budget; else leave it as it was."""
        locked = self._pool.claim(request)
        tokens = len(request.tokens) - request.computed
        output = min(request.output_tokens - request.emitted, CLIP_OUTPUT)
        slack = self._pool.slack
        if tokens + output + slack >= budget.kv_tokens - locked:
            self.full = True
        elif (alone or tokens <= budget.input_tokens) and budget.cut(tokens) > 0:
            budget.kv_tokens -= locked + slack
            self._pool.give_slack(request)
            return True
        self._pool.release(request)
        request.computed = 0
        return False

    def _plan(self, request: Request, budget: PrefillBudget, batch: list[Request]) -> None:
        left = len(request.tokens) - request.computed
        request.extend = budget.cut(left)
        whole = request.extend == left
        budget.take(request, request.extend, whole=whole)
        self.cut = None if whole else request
        batch.append(request)
