"""What a study would run, in words: knobs, ranges, stages, launches, time, first command."""

from collections.abc import Iterator
from typing import Any

from runners.launch_record import launch_line
from runners.sglang import command
from search_spaces import Candidate
from tuner.preflight import Findings, resolved
from tuner.progress import duration
from tuner.study_file import StudyFile

PORT = 30000  # any free one is taken; this is what the explanation shows
STARTUP_S = {"sglang": 90.0, "emulated": 3.0}  # assumed until the first launch has shown it
TOKEN_S = 0.03  # a token under load, assumed likewise


def explanation(file: StudyFile, found: Findings) -> dict[str, Any]:
    """Return plain data about what *file* would run, and what was *found* before that."""
    load, space = file.workload.load, file.space()
    engine = resolved(file.engine)
    launch_s = expected_launch_s(file)
    return {
        "study": file.study.name,
        "folder": str(file.folder()),
        "engine": {"kind": engine.kind, "model": engine.model, "gpus": engine.gpus},
        "emulated": engine.emulated,
        "first_command": launch_line(engine, command(engine, Candidate.of({}), PORT), PORT),
        "workload": {
            "shapes": [shape.model_dump() for shape in file.workload.all_shapes()],
            "concurrency": load.concurrency,
            "measured_requests": load.concurrency * load.rounds,
            "warmup_requests": load.concurrency * load.warmup_rounds,
        },
        "maximize": file.objective.maximize,
        "limits": [str(limit) for limit in file.objective.objective().limits],
        "knobs": {parameter.name: str(parameter) for parameter in space.parameters},
        "stages": [
            {"name": s.name, "knobs": list(s.knobs), "launches": s.launches, "at": dict(s.at)}
            for s in file.stages()
        ],
        "launches": file.search.launches,
        "hours": file.search.hours,
        "expected_launch_s": round(launch_s, 1),
        "expected_s": round(min(launch_s * file.search.launches, file.search.hours * 3600), 1),
        "tracking": file.tracking.uri if file.tracking.enabled else None,
        "flags_checked": found.flags_checked,
        "notes": list(found.notes),
    }


def expected_launch_s(file: StudyFile) -> float:
    """Return a rough duration of one launch, by assumptions that `as_text` states."""
    load, shapes = file.workload.load, file.workload.all_shapes()
    total = sum(shape.share for shape in shapes)
    tokens = sum(shape.output_tokens * shape.share for shape in shapes) / total
    rounds = load.rounds + load.warmup_rounds
    return STARTUP_S[file.engine.kind] + rounds * tokens * TOKEN_S / file.engine.speed


def as_text(explained: dict[str, Any]) -> str:
    """Return the explanation for people."""
    return "\n".join(_lines(explained))


def _lines(e: dict[str, Any]) -> Iterator[str]:
    if e["emulated"]:
        yield "EMULATED ENGINE: no figure of this study is a measurement of real hardware"
    yield f"study      {e['study']}, in {e['folder']}"
    gpus = f"{e['engine']['gpus']} GPU(s) a launch" if e["engine"]["gpus"] else "no GPU"
    yield f"engine     {e['engine']['kind']}, {e['engine']['model']}, {gpus}"
    work = e["workload"]
    yield (
        f"workload   {work['measured_requests']} requests measured after "
        f"{work['warmup_requests']} thrown away, {work['concurrency']} at a time"
    )
    for shape in work["shapes"]:
        yield f"           {_shape(shape)}"
    yield f"objective  most {e['maximize']} with {', '.join(e['limits'])}"
    for name, values in e["knobs"].items():
        yield f"knob       {name}: {values}"
    yield "stage      baseline: the engine's defaults, 1 launch"
    for stage in e["stages"]:
        at = "".join(f", {name} held at {value}" for name, value in stage["at"].items())
        yield (
            f"stage      {stage['name']}: {', '.join(stage['knobs'])}, "
            f"up to {stage['launches']} launches{at}"
        )
    yield (
        f"budget     {e['launches']} launches, {e['hours']:g} hours of engine time; "
        f"{duration(e['expected_s'])} if a launch takes {e['expected_launch_s']:.0f} s "
        f"(assumed: {TOKEN_S * 1000:.0f} ms a token; the first launch will tell)"
    )
    yield f"MLflow     {e['tracking'] or 'off'}"
    yield f"command    {e['first_command']}"
    yield f"flags      {e['flags_checked']}"
    for note in e["notes"]:
        yield f"note       {note}"


def _shape(shape: dict[str, Any]) -> str:
    text = f"{shape['input_tokens']} tokens in, {shape['output_tokens']} out"
    if shape["prefix_groups"]:
        text += (
            f", the first {shape['prefix_tokens']} shared within {shape['prefix_groups']} groups"
        )
    return f"{text} (share {shape['share']:g})"
