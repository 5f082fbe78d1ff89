"""One trial end to end: start the engine, check it, load it, measure, leave nothing behind."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import httpx

from runners import effective, launch_record, sglang, workload
from runners.cause import Cause
from runners.engine_process import launch
from runners.errors import (
    CandidateRejectedError,
    InvalidMeasurementError,
    MachineFaultError,
    RunnerError,
)
from runners.gpu_memory_gate import gate_beside, memory_in_use
from runners.launch_record import launch_line, write_json
from runners.live_engine import LiveEngine, Process, Signs
from runners.load_process import LoadResult, run_load
from runners.load_watch import LoadWatch, gpu_sampler
from runners.measure import check, measurement_of
from runners.nvml_gpu import read_gpus
from runners.outcome import Faulted, Invalid, Measured, Outcome, Rejected
from runners.port_reservation import reserve
from runners.sglang_api import SGLangApi
from runners.trial_spec import TrialSpec
from search_spaces import Candidate
from search_spaces.sglang import value_problems, wrong_names

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
MOST_LAG_MS = 25.0  # of wall clock; more, and an emulated engine is slower than it claims
SHORTEST_SAMPLE_S = 0.1

Say = Callable[[str], None]


def run_trial(
    spec: TrialSpec,
    on_progress: Say = lambda _: None,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Try one candidate; engine, machine and user problems come back as outcomes.

    *on_progress* hears in a few words what is going on. When *cancelled* turns true the launch is
    broken off, which comes back as a fault: it says nothing about the candidate.
    """
    try:
        return _try(spec, on_progress, cancelled)
    except CandidateRejectedError as error:
        return Rejected(reason=str(error), cause=error.cause, directions=error.directions)
    except MachineFaultError as error:
        return Faulted(reason=str(error), lasting=error.lasting, cause=error.cause)
    except InvalidMeasurementError as error:
        return Invalid(reason=str(error))
    except OSError as error:
        return Faulted(
            reason=f"a file of the trial failed: {error}", lasting=True, cause=Cause.DISK
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """What one launch is about: who asked for what, on which port, and who wants to know."""

    spec: TrialSpec
    port: int
    say: Say
    cancelled: Callable[[], bool]

    @property
    def url(self) -> str:
        return f"http://{sglang.HOST}:{self.port}"


def _try(spec: TrialSpec, say: Say, cancelled: Callable[[], bool]) -> Outcome:
    candidate = Candidate.of(spec.candidate)
    _refuse(spec, candidate)
    spec.folder.mkdir(parents=True, exist_ok=True)
    with reserve(spec.engine.port) as port, reserve() as internal_port:
        asked = _Launch(spec=spec, port=port, say=say, cancelled=cancelled)
        return _launch_on(asked, candidate, internal_port)


def _launch_on(asked: _Launch, candidate: Candidate, internal_port: int) -> Measured:
    spec, say = asked.spec, asked.say
    command = sglang.command(spec.engine, candidate, asked.port, internal_port)
    env = sglang.environment(spec.engine, spec.environment_names)
    shown = sglang.command(spec.engine, candidate, asked.port)
    launch_record.write_launch(spec, command, env, launch_line(spec.engine, shown, asked.port))
    if spec.engine.gpus:
        gate_beside(spec.folder, os.environ.get(VISIBLE_GPUS)).wait(say, asked.cancelled)
    gpus = read_gpus() if spec.engine.gpus else []
    say("engine starting")
    try:
        return _serve(asked, command, env)
    finally:
        if gpus:
            write_json(spec.folder / "gpus.json", {"before": gpus, "after": read_gpus()})


def _refuse(spec: TrialSpec, candidate: Candidate) -> None:
    """Refuse, before anything starts, what cannot work."""
    if reserved := sglang.reserved_flags(spec.engine):
        raise MachineFaultError(
            f"engine.flags must not set what the tuner sets itself, found {', '.join(reserved)}",
            lasting=True,
            cause=Cause.BAD_FLAG,
        )
    flags = [name for name in candidate if name.startswith("--")]
    if problems := [*value_problems(candidate), *wrong_names(flags)]:
        raise CandidateRejectedError("; ".join(problems), cause=Cause.BAD_VALUE)
    if (found := workload.sha256(spec.workload_path)) != spec.workload_sha256:
        raise MachineFaultError(
            f"the workload {spec.workload_path} must have SHA-256 {spec.workload_sha256}, found "
            f"{found}: it was changed since the study began, and its trials would not compare",
            lasting=True,
        )


def _serve(asked: _Launch, command: Sequence[str], env: Mapping[str, str]) -> Measured:
    spec = asked.spec
    with ExitStack() as stack:
        api = stack.enter_context(SGLangApi(asked.url))
        memory_mib = stack.enter_context(
            memory_in_use(spec.engine.gpus, os.environ.get(VISIBLE_GPUS))
        )
        process = stack.enter_context(_launched(asked, command, env))
        stack.callback(asked.say, "engine stopping")
        live = LiveEngine(
            spec.engine,
            process,
            api,
            asked.port,
            asked.cancelled,
            signs=Signs(log_path=spec.folder / "engine.log", gpu_memory_mib=memory_mib),
        )
        startup_s = live.wait_until_ready(asked.say)
        try:
            return _measure(asked, live, api, startup_s)
        except (httpx.HTTPError, RunnerError) as error:
            raise live.blame(error) from error


def _launched(
    asked: _Launch, command: Sequence[str], env: Mapping[str, str]
) -> AbstractContextManager[Process]:
    spec = asked.spec
    if spec.engine.docker is not None:
        from runners.container_process import launch_container

        gpus = os.environ.get(VISIBLE_GPUS)
        return launch_container(spec, command, asked.port, env=env, gpus=gpus)
    return launch(
        command,
        env=env,
        log_path=spec.folder / "engine.log",
        grace_s=spec.engine.stop_grace_s,
        study_id=spec.study_id,
    )


def _measure(asked: _Launch, live: LiveEngine, api: SGLangApi, startup_s: float) -> Measured:
    spec = asked.spec
    info = live.check_ours()
    write_json(spec.folder / "server_info.json", info)
    found = _effective(spec, info)
    api.flush_cache()
    result, watch = _load(asked, live, api)
    if spec.engine.emulated:
        _check_lag(api.server_info())
    measurement = measurement_of(
        result.records,
        result.report,
        engine=watch.engine_window(),
        gpu=watch.gpu_window(),
        speed=spec.engine.speed,
        startup_s=startup_s,
    )
    write_json(spec.folder / "measurement.json", measurement.to_json())
    check(measurement, spec.workload.load)
    return Measured(
        measurement=measurement, effective=found, engine_version=str(info.get("version"))
    )


def _load(asked: _Launch, live: LiveEngine, api: SGLangApi) -> tuple[LoadResult, LoadWatch]:
    spec = asked.spec
    with gpu_sampler(spec.engine.gpus, os.environ.get(VISIBLE_GPUS)) as gpus:
        interval_s = max(SHORTEST_SAMPLE_S, 1.0 / spec.engine.speed)
        watch = LoadWatch(api=api, live=live, gpus=gpus, say=asked.say, interval_s=interval_s)
        result = run_load(
            base_url=asked.url,
            model=spec.engine.model,
            plan_path=spec.workload_path,
            load=spec.workload.load,
            folder=spec.folder,
            on_progress=watch.on_progress,
            watch=watch.watch,
        )
    return result, watch


def _effective(spec: TrialSpec, info: dict[str, Any]) -> dict[str, Any]:
    """Read back what the engine runs with, and write down what it changed."""
    candidate = Candidate.of(spec.candidate)
    found = effective.effective_configuration(info, candidate)
    write_json(
        spec.folder / "effective.json",
        {"effective": found, "changed": effective.differences(candidate, found)},
    )
    return found


def _check_lag(info: dict[str, Any]) -> None:
    """Check that an emulated engine kept up with its own clock."""
    lag_ms = info["emulation_lag"]["p99_ms"]
    if lag_ms is not None and lag_ms > MOST_LAG_MS:
        raise InvalidMeasurementError(
            f"the emulated engine must keep within {MOST_LAG_MS:g} ms of its clock, found p99 "
            f"{lag_ms:.0f} ms: lower engine.speed, or give this machine less other work"
        )
