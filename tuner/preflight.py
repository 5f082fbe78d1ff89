"""What can be known to be wrong, or worth knowing, before anything starts."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import EngineSpec, Shape
from runners.sglang import environment, reserved_flags
from search_spaces import Candidate, Value, sglang
from search_spaces.corners import corners, ends
from search_spaces.flag_values import fixed_number, fixed_value
from tuner.search_table import POLICY
from tuner.study_file import StudyFile

if TYPE_CHECKING:
    from runners.memory_need import GpuMemory, Layout

MEM_FRACTION = "mem_fraction_static"
SHRINKING = ("--quantization", "--cpu-offload-gb", "--torchao-config")

ReadGpus = Callable[[], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What stands in the way of a study, what is worth knowing, and who checked the flags."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    flags_checked: str = "not checked against the installed engine"


def findings(file: StudyFile, gpus: ReadGpus | None = None) -> Findings:
    """Look at everything that can be looked at without starting an engine."""
    if found := tuple(problems(file)) or tuple(_context_problems(file)):
        return Findings(problems=found)
    if (container := _container_findings(file)).problems:
        return container
    flags, memory = flag_findings(file), _memory_findings(file, gpus)
    return Findings(
        problems=(*flags.problems, *memory.problems),
        notes=(
            *container.notes,
            *flags.notes,
            *_queue_notes(file),
            *_unchunked_notes(file, gpus),
            *memory.notes,
        ),
        flags_checked=flags.flags_checked,
    )


def problems(file: StudyFile) -> Iterator[str]:
    """Say in one sentence each what would make every launch fail."""
    yield from _command_problems(file.engine)
    yield from (f"engine.flags: {p}" for p in sglang.fixed_problems(file.engine.flags))
    yield from (f"engine.flags: {p}" for p in file.space().problems(Candidate.of({})))
    yield from (
        _emulation_problems(file.engine) if file.engine.emulated else _model_problems(file.engine)
    )
    if file.search.sampler == "gp" and find_spec("torch") is None:
        yield 'search.sampler = "gp" needs torch (pip install "sgl-tuner[gp]"), which is not here'


def resolved(engine: EngineSpec) -> EngineSpec:
    """Return *engine* with absolute paths: a launch runs in another working directory."""
    if engine.docker is not None:  # its other paths are the image's
        return engine.model_copy(update={"docker": engine.docker.with_absolute_mounts()})
    command = engine.command
    if command and "/" in command[0]:
        command = (str(Path(command[0]).expanduser().absolute()), *command[1:])
    model = Path(engine.model).expanduser()
    name = str(model.resolve()) if not engine.emulated and model.is_dir() else engine.model
    return engine.model_copy(update={"command": command, "model": name})


def flag_findings(file: StudyFile) -> Findings:
    """Ask the installed engine about the flags of the baseline and of the edges of the space."""
    from runners.flag_check import BASELINE, judge
    from runners.installed_flags import Account, NotAsked, NotInstalled, argument_list, ask
    from runners.installed_flags import cache_folder as cache

    engine, space = resolved(file.engine), file.space()
    edges = {edge: space.problems(edge) for edge in corners(space)}
    never = tuple(f"{edge} will never be launched: {p[0]}" for edge, p in edges.items() if p)
    tried = {BASELINE: Candidate.of({}), **{str(edge): edge for edge, p in edges.items() if not p}}
    settings = {name: argument_list(engine, setting) for name, setting in tried.items()}
    asking = environment(engine, tuple(os.environ))
    match ask(engine, tuple(settings.values()), environment=asking, cache=cache()):
        case NotInstalled(reason):
            return Findings(problems=(f"engine.command must run SGLang: {reason}",))
        case NotAsked(reason):
            unchecked = f"not checked against the installed engine: {reason}"
            return Findings(notes=never, flags_checked=unchecked)
        case Account() as account:
            verdict = judge(account, settings, runs_here=file.cluster.address == "local")
            return Findings(
                problems=verdict.problems,
                notes=(*never, *verdict.notes),
                flags_checked=f"checked against {account.engine} ({account.place})",
            )


def _container_findings(file: StudyFile) -> Findings:
    """Look whether the container could be made here; the image may come later, by a pull."""
    if file.engine.docker is None or file.cluster.address != "local":
        return Findings()
    from runners.container_check import container_notes, container_problems, creation_problem
    from runners.errors import MachineFaultError

    try:
        found = tuple(container_problems(file.engine.docker))
        if not found and (refused := creation_problem(file.engine)):
            found = (refused,)
        return Findings(problems=found, notes=tuple(container_notes(file.engine.docker)))
    except MachineFaultError as error:
        return Findings(problems=(f"engine.docker: {error}",))


def _queue_notes(file: StudyFile) -> Iterator[str]:
    """Name the policies that the shortest queue of the search would turn into another."""
    least = _least_running(file)
    waiting = 0 if least is None else file.workload.load.concurrency - least
    policies = [v for v in file.search.knobs.get(POLICY, ()) if v in sglang.QUEUE_BOUND_POLICIES]
    if policies and waiting > sglang.MOST_WAITING:
        yield (
            f"{', '.join(map(str, policies))}: SGLang runs fcfs instead while more than "
            f"{sglang.MOST_WAITING} requests wait, and with max_running_requests = {least} "
            f"{waiting} of {file.workload.load.concurrency} do: policies cannot differ there"
        )


def _least_running(file: StudyFile) -> int | None:
    if "max_running_requests" in file.search.knobs:
        return min(int(end) for end in ends(file.space()["max_running_requests"]))
    fixed = fixed_value(file.engine.flags, "--max-running-requests")
    return None if fixed is None else int(fixed)


def _memory_findings(file: StudyFile, gpus: ReadGpus | None) -> Findings:
    from runners.memory_need import cannot_fit, memory_notes, model_size

    folder = None if file.engine.emulated else file.engine.model_folder
    size = None if folder is None else model_size(folder)
    if size is None or file.engine.gpus == 0 or file.cluster.address != "local":
        return Findings()
    gpu = _smallest_gpu(file.engine, gpus)
    if gpu is None:
        return Findings()
    layout, longest = _layout(file), max(map(_tokens, file.workload.all_shapes()))
    too_big = cannot_fit(size, layout, gpu)
    return Findings(
        problems=() if too_big is None else (f"engine.model: {too_big}",),
        notes=tuple(memory_notes(size, layout, gpu, longest)),
    )


def _smallest_gpu(engine: EngineSpec, gpus: ReadGpus | None) -> "GpuMemory | None":
    from runners.memory_need import smallest
    from runners.nvml_gpu import read_gpus

    visible = engine.env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return smallest((gpus or read_gpus)(), visible)


def _unchunked_notes(file: StudyFile, gpus: ReadGpus | None) -> Iterator[str]:
    """Name the automatic mem_fraction_static that falls below nothing when chunking is off."""
    from runners.memory_need import host_memory, unchunked_note

    flags, engine = file.engine.flags, file.engine
    most = fixed_value(flags, "--max-prefill-tokens") or str(sglang.DEFAULT_MAX_PREFILL_TOKENS)
    unchunked = fixed_number(flags, sglang.CHUNK, 1) < 1
    automatic = unchunked and fixed_value(flags, "--mem-fraction-static") is None
    if not automatic or engine.emulated or file.cluster.address != "local":
        return
    memory = _smallest_gpu(engine, gpus) if engine.gpus else host_memory()
    if memory is not None and most.isdecimal():
        note = unchunked_note(int(most), _layout(file).gpus, memory)
        yield from () if note is None else (note,)


def _context_problems(file: StudyFile) -> Iterator[str]:
    from runners.context_length import context_length

    if "--context-length" in file.search.knobs:
        return
    context, longest = context_length(file.engine), max(map(_tokens, file.workload.all_shapes()))
    if context is not None and longest > context:
        yield (
            f"workload: a request and its answer must fit into the {context} tokens that "
            f"{file.engine.model} holds, found {longest} (input_tokens + output_tokens)"
        )


def _tokens(shape: Shape) -> int:
    return shape.input_tokens + shape.output_tokens


def _layout(file: StudyFile) -> "Layout":
    from runners.memory_need import Layout

    flags, knobs = file.engine.flags, file.search.knobs
    fixed = fixed_value(flags, "--mem-fraction-static")
    fractions: tuple[Value, ...] = () if fixed is None else (fixed,)
    if MEM_FRACTION in knobs:
        fractions = ends(file.space()[MEM_FRACTION])
    return Layout(
        gpus=_most(file, "--tp-size") * _most(file, "--pp-size"),
        mem_fractions=tuple(sorted({float(f) for f in fractions})),
        weights_shrink=any(w.partition("=")[0] in SHRINKING for w in (*flags, *knobs)),
    )


def _most(file: StudyFile, flag: str) -> int:
    if flag in file.search.knobs:
        return max(int(end) for end in ends(file.space()[flag]))
    return int(fixed_value(file.engine.flags, flag) or 1)


def _command_problems(engine: EngineSpec) -> Iterator[str]:
    if reserved := reserved_flags(engine):
        yield f"engine.flags must not set what the tuner sets itself, found {', '.join(reserved)}"
    if not engine.command or engine.docker is not None:
        return
    first = str(Path(engine.command[0]).expanduser())
    if shutil.which(first) is None:
        yield f"engine.command must begin with a program that can be run, found {first!r}"


def _model_problems(engine: EngineSpec) -> Iterator[str]:
    model = engine.model_folder
    if model is None:
        if engine.model.startswith("/"):
            yield (
                "engine.model must be a hub name, or lie inside one of engine.docker.mounts, "
                f"found {engine.model}"
            )
        return
    looks_like_path = engine.model.startswith(("/", "./", "../", "~")) or model.exists()
    if looks_like_path and not (model / "config.json").is_file():
        what = "has no config.json" if model.is_dir() else "is not a directory"
        yield f"engine.model must be a model's directory or a hub name; {engine.model} {what}"
    if not looks_like_path and os.environ.get("HF_HUB_OFFLINE") == "1":
        yield f"engine.model {engine.model!r} is a hub name, and HF_HUB_OFFLINE=1 forbids the hub"


def _emulation_problems(engine: EngineSpec) -> Iterator[str]:
    from runners.emulated.hardware import hardware_named
    from runners.emulated.models import model_named

    for look_up, name in ((hardware_named, engine.hardware or ""), (model_named, engine.model)):
        try:
            look_up(name)
        except ValueError as error:
            yield str(error)
