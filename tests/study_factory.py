"""Writes the folder of a made-up study, seeded, through the journal itself."""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from objectives import Interval, Measurement
from runners import Faulted, Invalid, Measured, Outcome, Rejected
from runners.records import RequestRecord, write_records
from search_spaces import Candidate, Value
from tuner.journal import Closed, Journal, Opened
from tuner.trial import Launch

START = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)
OUT_OF_MEMORY = "CUDA out of memory while the KV cache was allocated"
DEFAULTS: dict[str, Value] = {
    "schedule_policy": "fcfs",
    "max_running_requests": 256,
    "token_budget": 8192,
    "mem_fraction_static": 0.88,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One launch of a made-up study: what was asked and, unless it is known, what came of it."""

    stage: str
    values: Mapping[str, Value] = field(default_factory=dict)
    outcome: Outcome | None = None  # None: measured by the model below
    lost: bool = False
    pending: bool = False


def usual_steps(launches: int, seed: int = 0) -> list[Step]:
    """Return a baseline, a stage on policies and one on the rest, with every kind of failure."""
    rng = random.Random(seed)
    steps = [Step(stage="baseline")]
    at = {"max_running_requests": 128}
    steps += [
        Step(stage="policy", values={"schedule_policy": policy, **at})
        for policy in ("fcfs", "lpm", "lof")
    ]
    while len(steps) < launches:
        values: dict[str, Value] = {
            "schedule_policy": "lpm",
            "max_running_requests": rng.choice([32, 64, 96, 128, 192, 256, 384]),
            "token_budget": rng.choice([2048, 4096, 8192]),
            "mem_fraction_static": round(rng.uniform(0.6, 0.95), 2),
        }
        steps.append(Step(stage="capacity", values=values, outcome=_fate(len(steps), values)))
    return steps


def infeasible_steps() -> list[Step]:
    """Return a study in which every setting is too slow."""
    crowd: tuple[dict[str, Value], ...] = (
        {},
        {"max_running_requests": 384},
        {"max_running_requests": 320},
    )
    return [Step(stage="capacity" if v else "baseline", values=v) for v in crowd]


def rejected_steps() -> list[Step]:
    """Return a study in which no engine starts."""
    return [Step(stage="baseline", outcome=Rejected(reason=OUT_OF_MEMORY)) for _ in range(3)]


def write_study(  # one argument for each thing a test varies
    folder: Path,
    steps: list[Step],
    *,
    emulated: bool = False,
    closed: bool = True,
    requests: int = 200,
    ttft_limit_ms: float = 2000.0,
) -> Path:
    """Write a study's folder as the tuner would and return it."""
    folder.mkdir(parents=True)
    with Journal(folder / "journal.jsonl") as journal:
        journal.opened(_opened(folder.name, ttft_limit_ms, emulated=emulated))
        for number, step in enumerate(steps):
            _write_launch(folder, journal, number, step, requests)
        if closed:
            at = START + timedelta(minutes=10 * len(steps))
            journal.closed(Closed(at=_text(at), verdict="found", reason="all launches are used"))
    (folder / "study.toml").write_text(f'[study]\nname = "{folder.name}"\n', encoding="utf-8")
    (folder / "workload.jsonl").write_text('{"id": 0}\n', encoding="utf-8")
    (folder / "environment.txt").write_text("machine.cpus: 8\n", encoding="utf-8")
    environment = {
        "taken_at": _text(START),
        "tuner": {"version": "0.1.0", "commit": "abc123"},
        "engine": {"python": "3.12", "packages": ["sglang==0.5.23", "torch==2.9.1"]},
        "machine": {"cpu": "Made-up CPU", "cpus": 8, "memory_gib": 64.0, "kernel": "6.1"},
        "gpus": [
            {"index": 0, "name": "Made-up GPU", "driver": "570.1", "memory_total_mib": 81920}
        ],
        "variables": {},
    }
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    return folder


def spec(name: str, *, ttft_limit_ms: float = 2000.0, emulated: bool = False) -> dict[str, Any]:
    """Return a study file as plain data."""
    engine = {"kind": "sglang", "model": "made-up/model-8b"}
    if emulated:
        engine = {"kind": "emulated", "model": "made-up/model-8b", "hardware": "made-up"}
    return {
        "study": {"name": name},
        "engine": engine,
        "workload": {
            "kind": "fixed",
            "input_tokens": 512,
            "output_tokens": 256,
            "load": {"concurrency": 256, "rounds": 4},
        },
        "objective": {"limits": {"ttft_p95_ms": ttft_limit_ms, "tpot_p95_ms": 60.0}},
        "search": {
            "knobs": {
                "schedule_policy": ["fcfs", "lpm", "lof"],
                "max_running_requests": {"low": 32, "high": 384, "step": 32},
                "token_budget": [2048, 4096, 8192],
                "mem_fraction_static": {"low": 0.6, "high": 0.95},
            },
            "launches": 30,
        },
    }


def measured(values: Mapping[str, Value], seed: int, **more: Any) -> Measured:
    """Return what the made-up engine makes of *values*."""
    full = {**DEFAULTS, **values}
    noise = random.Random(seed)
    running = int(full["max_running_requests"])
    pool = 300 * float(full["mem_fraction_static"])
    effective = {**full, "max_running_requests": min(running, int(pool))}
    busy = int(effective["max_running_requests"])
    speed = 4200 * (1 - math.exp(-busy / 90)) * noise.uniform(0.985, 1.015)
    speed *= 1.04 if full["schedule_policy"] == "lpm" else 1.0
    tpot = (14 + busy * 0.18) * noise.uniform(0.98, 1.02)
    ttft = (300 + max(0, 256 - busy) * 9 + int(full["token_budget"]) * 0.02 + busy * 4.5) * (
        noise.uniform(0.97, 1.03)
    )
    numbers: dict[str, Any] = {
        "output_tokens_per_s": speed,
        "requests_per_s": speed / 256,
        **_spread("ttft", ttft),
        **_spread("tpot", tpot),
        **_spread("e2e", ttft + 256 * tpot),
        "measured_requests": 1024,
        "failed_requests": 0,
        "failed_share": 0.0,
        "warmup_requests": 256,
        "window_s": 1024 * 256 / speed,
        "prompt_tokens": 1024 * 512,
        "output_tokens": 1024 * 256,
        "client_cpu_share": 0.21,
        "client_loop_lag_p99_ms": 1.9,
        "achieved_concurrency": 251.0,
        "prefix_cache_hit_rate": 0.12,
        "gpu_memory_peak_gib": 80 * float(full["mem_fraction_static"]),
        "startup_s": 48.0,
        "intervals": {
            "output_tokens_per_s": _interval(speed, 0.02, "batch means"),
            "ttft_p95_ms": _interval(ttft, 0.05, "order statistics"),
            "tpot_p95_ms": _interval(tpot, 0.03, "order statistics"),
        },
    }
    return Measured(
        measurement=Measurement(**{**numbers, **more}),
        effective=effective,
        engine_version="0.5.23",
    )


def _fate(number: int, values: Mapping[str, Value]) -> Outcome | None:
    if float(values["mem_fraction_static"]) > 0.91:
        return Rejected(reason=OUT_OF_MEMORY)
    if number == 7:
        return Faulted(reason="port 30000 is taken by another process")
    if number == 9:
        return Invalid(reason="the load client used 97 % of its core: the client was the limit")
    return None


def _write_launch(folder: Path, journal: Journal, number: int, step: Step, requests: int) -> None:
    at = START + timedelta(minutes=10 * number)
    candidate = Candidate.of(step.values)
    journal.launched(Launch(number=number, stage=step.stage, candidate=candidate), at=_text(at))
    launch = folder / "launches" / f"{number:03d}"
    launch.mkdir(parents=True)
    (launch / "engine.log").write_text("the engine says hello\n", encoding="utf-8")
    if step.lost:
        journal.lost(number, at=_text(at + timedelta(minutes=9)))
    if step.lost or step.pending:
        return
    outcome = step.outcome or measured(step.values, number)
    if isinstance(outcome, Measured):
        flags = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in step.values.items())
        command = f"python -m sglang.launch_server --model-path made-up/model-8b {flags}\n"
        (launch / "launch.txt").write_text(command, encoding="utf-8")
        write_records(launch / "requests.jsonl", records(outcome.measurement, number, requests))
    took_s = 300.0 + 7 * number if isinstance(outcome, Measured) else 45.0
    journal.finished(number, outcome, took_s=took_s, at=_text(at + timedelta(seconds=took_s)))


def records(measurement: Measurement, seed: int, count: int) -> list[RequestRecord]:
    """Return requests whose latencies spread around those of *measurement*."""
    rng = random.Random(seed)
    ttft = (measurement.ttft_p50_ms or 1.0) / 1000
    tpot = (measurement.tpot_p50_ms or 1.0) / 1000
    return [_record(i, rng.lognormvariate(0, 0.3), rng, ttft, tpot) for i in range(count)]


def _record(
    number: int, luck: float, rng: random.Random, ttft: float, tpot: float
) -> RequestRecord:
    sent = number * 0.05
    first = sent + ttft * luck
    last = first + 255 * tpot * rng.uniform(0.9, 1.15)
    return RequestRecord(
        id=number,
        phase="warmup" if number < 10 else "measured",
        slot=number % 16,
        round=number // 16,
        shape=0,
        sent_s=sent,
        first_token_s=first,
        last_token_s=last,
        end_s=last,
        chunk_times_s=(first, last),
        status=200,
        finish_reason="length",
        prompt_tokens=512,
        cached_tokens=64,
        output_tokens=256,
        asked_tokens=256,
    )


def _opened(name: str, ttft_limit_ms: float, *, emulated: bool) -> Opened:
    return Opened(
        study_id=f"{name}-0001",
        at=_text(START),
        spec=spec(name, ttft_limit_ms=ttft_limit_ms, emulated=emulated),
        workload_sha256="5d41402abc4b2a76b9719d911017c592" * 2,
        prefix_sharing=0.12,
        tuner_version="0.1.0",
    )


def _spread(kind: str, p95_ms: float) -> dict[str, float]:
    shares = {"mean": 0.62, "p50": 0.6, "p95": 1.0, "p99": 1.2}
    return {f"{kind}_{name}_ms": p95_ms * share for name, share in shares.items()}


def _interval(value: float, half: float, method: str) -> Interval:
    return Interval(
        low=value * (1 - half), high=value * (1 + half), confidence=0.95, method=method
    )


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
