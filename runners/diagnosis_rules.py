"""The table of what a text in a dying engine's log means: a verdict for each."""

import re
from dataclasses import dataclass, replace

from runners.cause import Cause
from runners.ending import Ending, short
from runners.errors import RunnerError
from runners.machine_rules import CONTAINER, DEVICE, INSTALLATION, MODEL
from runners.memory_verdicts import (
    asked_for_more_than_free,
    host_memory_full,
    no_room_for_cache,
    out_of_memory,
)
from runners.verdicts import (
    Row,
    Verdict,
    ambiguous,
    links,
    refused_value,
    reject,
    retry,
    stop,
    unknown_flags,
    unknown_policy,
    worker_killed,
)

HARMLESS = re.compile(r"^.*(?:Ignore import error when loading|Fail to set RLIMIT).*$", re.M)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a text in the log means."""

    pattern: re.Pattern[str]
    verdict: Verdict


def known(ending: Ending) -> RunnerError | None:
    """Return the verdict of the first rule that the log of *ending* meets."""
    return _first(RULES, ending)


def echo(ending: Ending) -> RunnerError | None:
    """Return the verdict for words that are mostly the echo of another worker's end."""
    return _first(ECHOES, ending)


def _first(rules: tuple[Rule, ...], ending: Ending) -> RunnerError | None:
    ending = replace(ending, log=HARMLESS.sub("", ending.log))
    for rule in rules:
        if (match := rule.pattern.search(ending.log)) is not None:
            return rule.verdict(match, ending)
    return None


def _rules(table: tuple[Row, ...]) -> tuple[Rule, ...]:
    return tuple(Rule(re.compile(pattern, re.M), verdict) for pattern, verdict in table)


COMMAND_LINE: tuple[Row, ...] = (
    (r"error: unrecognized arguments: (.+)$", unknown_flags),
    (r"error: ambiguous option: (\S+) could match (.+)$", ambiguous),
    (r"error: argument (\S+): (.+)$", refused_value),
    (
        r"^emulated engine: error: (the emulated (?:hardware|model) must be .*)$",
        stop(Cause.BAD_VALUE, "{}"),
    ),
)
MEMORY: tuple[Row, ...] = (
    (
        r"Loaded weights leave no GPU memory.*|Not enough memory\. Please try to increase.*|"
        r"No available memory for the cache blocks|is less than requested memory for kv",
        no_room_for_cache,
    ),
    (
        r"(The model's max seq len .* KV cache \(\d+\)|"
        r"To serve at least one request with the models?'?s max seq len.*?KV cache memory)",
        reject(
            Cause.KV_MEMORY,
            "the KV cache is too small for one request of the longest context ({})",
            mem_fraction_static="raise",
        ),
    ),
    (
        r"(state cache is too small to serve any requests)",
        reject(
            Cause.KV_MEMORY,
            "the engine's {}",
            mem_fraction_static="raise",
            max_running_requests="lower",
        ),
    ),
    (
        r"(?:Free|Available) memory on \S+(?: \d+)? \(([\d.]+)/([\d.]+) GiB\) on startup is less",
        asked_for_more_than_free,
    ),
    (
        r"(?:Value|Runtime)Error: (The memory capacity is unbalanced)",
        retry(
            Cause.GPU_HELD,
            "other processes hold memory of the GPUs ({}): end them, or name other GPUs",
        ),
    ),
    (
        r"Not enough host memory.*",
        lambda match, _: host_memory_full(f"the engine stopped ({short(match[0])})"),
    ),
    (
        r"out of memory occurred when (warming up sampler with \d+ dummy requests)",
        reject(
            Cause.LOAD_MEMORY,
            "the engine ran out of memory {}",
            mem_fraction_static="lower",
            max_running_requests="lower",
        ),
    ),
    (
        r"((?:Prefill|Decode) out of memory)\. Try to lower your batch size",
        reject(
            Cause.KV_MEMORY,
            "the KV cache could not hold the running requests ({})",
            mem_fraction_static="raise",
            schedule_conservativeness="raise",
            max_running_requests="lower",
        ),
    ),
    (
        r"(alloc_req_slots runs out of memory)",
        reject(
            Cause.KV_MEMORY,
            "the engine had no slot for a running request ({})",
            max_running_requests="lower",
        ),
    ),
    (
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|"
        r"Cuda failure(?: \d+)? 'out of memory'|can't allocate memory|"
        r"Failed to allocate memory for \S+",
        out_of_memory,
    ),
)

REFUSALS: tuple[Row, ...] = (
    (r"Unknown schedule_policy: policy='(.+?)'", unknown_policy),
    (
        r"Capture cuda graph failed:? *((?!.*(?:closed by peer|NCCL error)).+)$",
        reject(
            Cause.GRAPH_CAPTURE,
            "the engine could not capture its CUDA graphs, and memory was not the reason: {}",
        ),
    ),
    (
        r"^ +(Value error, .+?|Input should be .+?)(?: \[type=.*)?$",
        reject(Cause.BAD_VALUE, "the engine refused the setting: {}"),
    ),
)

WORKERS: tuple[Row, ...] = (
    (
        r"[Aa]ddress already in use|EADDRINUSE",
        retry(Cause.PORT, "the engine's port was taken by another process while it started"),
    ),
    (
        r"scheduler died during initialization \(exit code: -9\)|crashed with exit code -9\b|"
        r"Rank \d+ scheduler is dead.*\n.*Exit code: -9\b|Failed core proc\(s\): \{.*-9\}",
        worker_killed,
    ),
    (
        r"NCCL error.*|ncclSystemError.*|ncclInternalError.*|"
        r"Watchdog caught collective operation timeout.*",
        links,
    ),
    (
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=([\d.]+)(?!.*soft=True)",
        reject(
            Cause.CRASH,
            "the engine hung: its scheduler made no step in {} s; its engine.log says where",
        ),
    ),
)
# The first that matches wins: what was set and what is installed, memory, and only then workers
# and links, whose complaints may follow from any of it.
RULES = _rules(
    (*COMMAND_LINE, *CONTAINER, *INSTALLATION, *MODEL, *DEVICE, *MEMORY, *REFUSALS, *WORKERS)
)
ECHOES = _rules(
    (
        (
            r"(?:CUDA error: |cudaError\w*: )(an illegal memory access|misaligned address|"
            r"device-side assert|unspecified launch failure|an illegal instruction).*$",
            reject(
                Cause.CRASH,
                "the engine crashed on the GPU ({}), a fault of its own under this setting",
            ),
        ),
        (r"^.*(?:Connection closed by peer|ncclRemoteError|that didn't finish loading).*", links),
        (
            r"((?:exit code: |exit code |Exit code: )-(?:4|6|11))\b",
            reject(Cause.CRASH, "a worker of the engine crashed ({}); its engine.log says where"),
        ),
    )
)
