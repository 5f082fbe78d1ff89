"""Small loads for the emulated engine, and what came of them in the tests' words."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runners.emulated.settings import Settings
from runners.emulated.virtual import VirtualRun, emulate
from runners.records import MEASURED, RequestRecord
from runners.spec import LoadSpec, WorkloadSpec
from runners.workload import PlannedRequest, plan


def settings(**wanted: Any) -> Settings:
    return Settings(**{"model_path": "Llama-3.1-8B", "emulated_hardware": "A100-80G", **wanted})


def fixed_plan(
    concurrency: int,
    *,
    rounds: int = 3,
    lengths: tuple[int, int] = (256, 48),
    prefixes: tuple[int, int] = (0, 0),
) -> list[PlannedRequest]:
    """Requests of one shape; *prefixes* are the number of groups and their length."""
    spec = WorkloadSpec(
        kind="fixed",
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        prefix_groups=prefixes[0],
        prefix_tokens=prefixes[1],
        load=LoadSpec(concurrency=concurrency, rounds=rounds),
    )
    return plan(spec, 32_000)


@dataclass(frozen=True)
class Seen:
    """What users would have felt."""

    tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    tpot_p95_s: float
    hit_rate: float


def run(requests: Iterable[PlannedRequest], **wanted: Any) -> VirtualRun:
    return emulate(settings(**wanted), requests)


def seen(ran: VirtualRun) -> Seen:
    measured = [r for r in ran.records if r.phase == MEASURED]
    assert all(r.ok for r in measured)
    ttft = sorted(ttft_s(r) for r in measured)
    tpot = sorted(tpot_s(r) for r in measured)
    begin, end = min(r.sent_s for r in measured), max(r.end_s for r in measured)
    tokens = sum(begin < t <= end for r in ran.records for t in r.chunk_times_s)
    return Seen(
        tokens_per_s=tokens / (end - begin),
        ttft_p50_s=ttft[len(ttft) // 2],
        ttft_p95_s=ttft[int(0.95 * len(ttft))],
        tpot_p95_s=tpot[int(0.95 * len(tpot))],
        hit_rate=(ran.window.cached_tokens or 0) / (ran.window.prompt_tokens or 1),
    )


def ttft_s(record: RequestRecord) -> float:
    assert record.first_token_s is not None
    return record.first_token_s - record.sent_s


def tpot_s(record: RequestRecord) -> float:
    assert record.first_token_s is not None
    assert record.last_token_s is not None
    assert record.output_tokens is not None
    return (record.last_token_s - record.first_token_s) / (record.output_tokens - 1)
