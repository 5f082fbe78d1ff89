"""Talks to a running SGLang server about itself; the load goes another way."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from runners.cause import Cause
from runners.errors import InvalidMeasurementError, MachineFaultError
from runners.windows import EngineWindow

SMOKE_PROMPT, SMOKE_TOKENS = [10, 11, 12], 2  # ids that every vocabulary has
OK, SERVER_ERROR = 200, 500
IDLE_LIMIT_S = 60.0
NOT_YET = (408, 425, 429)
# A counter appears with its first event. Until then the gauge beside it, which is there from the
# start, tells that the engine counts such events and has seen none.
COUNTERS = {
    "prompt_tokens": ("sglang:prompt_tokens_total", "sglang:num_running_reqs"),
    "cached_tokens": ("sglang:cached_tokens_total", "sglang:cache_hit_rate"),
    "retractions": ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The engine's running totals; None where it does not count."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    retractions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLoad:
    """What the engine is doing at this moment, over all its ranks."""

    running: float
    queued: float
    kv_usage: float  # 0 to 1, of the fullest rank
    kv_pool_tokens: int


class SGLangApi:
    """The control plane of one server; close it, or use it in a `with` statement.

    Its methods raise httpx.HTTPError when the server does not answer as it should.
    """

    def __init__(self, base_url: str, timeout_s: float = 10.0) -> None:
        # No proxy of the environment: the server is on this machine.
        self._client = httpx.Client(base_url=base_url, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def completes(self, model: str, timeout_s: float) -> bool:
        """True when the server answers a real request; False while it is not ready.

        Raises:
            MachineFaultError: it is up, and refuses a plain request for good.
        """
        body = {
            "model": model,
            "prompt": SMOKE_PROMPT,
            "max_tokens": SMOKE_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            answer = self._client.post("/v1/completions", json=body, timeout=timeout_s)
        except httpx.TransportError:
            return False
        if answer.status_code in NOT_YET or answer.status_code >= SERVER_ERROR:
            return False
        if answer.status_code != OK:
            raise MachineFaultError(
                "the engine must answer a completion of two tokens with HTTP 200, found "
                f"{answer.status_code}: {answer.text[:200]}",
                lasting=True,
                cause=Cause.UNUSABLE_ANSWERS,
            )
        return bool(answer.json()["choices"])

    def warmed_up(self, timeout_s: float) -> bool:
        """True when the server has finished the warm-up it does by itself once it can answer."""
        try:
            return self._client.get("/health", timeout=timeout_s).status_code == OK
        except httpx.TransportError:
            return False

    def server_info(self) -> dict[str, Any]:
        """Return everything the server says about its own settings."""
        return dict(self._get("/server_info").json())

    def flush_cache(self) -> None:
        """Empty the prefix cache, waiting until the server is idle.

        Raises:
            InvalidMeasurementError: it stays busy.
        """
        deadline = time.monotonic() + IDLE_LIMIT_S
        while (answer := self._client.post("/flush_cache")).status_code != OK:
            if time.monotonic() > deadline:
                raise InvalidMeasurementError(
                    f"the engine must be idle before the load, but would not flush its cache for "
                    f"{IDLE_LIMIT_S:g} s (HTTP {answer.status_code}); does somebody else send it "
                    "requests?"
                )
            time.sleep(0.1)

    def counters(self) -> Counters:
        """Return the engine's totals so far, summed over its ranks."""
        totals = _totals(self._get("/metrics").text)
        return Counters(
            **{
                field: int(totals.get(counter, 0))
                for field, (counter, gauge) in COUNTERS.items()
                if counter in totals or gauge in totals
            }
        )

    def live_load(self) -> LiveLoad | None:
        """Return the engine's load now, None when it is too busy to say or does not know how.

        Its Prometheus gauges would lag behind by up to 40 steps.
        """
        try:
            ranks = self._get("/v1/loads", timeout_s=2.0).json()["loads"]
        except httpx.HTTPError:
            return None
        return LiveLoad(
            running=sum(rank["num_running_reqs"] for rank in ranks),
            queued=sum(rank["num_waiting_reqs"] for rank in ranks),
            kv_usage=max(rank["token_usage"] for rank in ranks),
            kv_pool_tokens=sum(rank["max_total_num_tokens"] for rank in ranks),
        )

    def _get(self, path: str, timeout_s: float | None = None) -> httpx.Response:
        timeout = self._client.timeout if timeout_s is None else httpx.Timeout(timeout_s)
        return self._client.get(path, timeout=timeout).raise_for_status()


def window(before: Counters, after: Counters, loads: Iterable[LiveLoad]) -> EngineWindow:
    """Return what happened between two readings, with the peaks of the *loads* seen between."""
    seen = list(loads)
    return EngineWindow(
        prompt_tokens=_rise(before.prompt_tokens, after.prompt_tokens),
        cached_tokens=_rise(before.cached_tokens, after.cached_tokens),
        retractions=_rise(before.retractions, after.retractions),
        running_peak=max((load.running for load in seen), default=None),
        queued_peak=max((load.queued for load in seen), default=None),
        kv_usage_peak=max((load.kv_usage for load in seen), default=None),
        kv_pool_tokens=seen[-1].kv_pool_tokens if seen else None,
    )


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _totals(text: str) -> Mapping[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals
