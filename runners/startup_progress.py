"""Whether a starting engine still gets on, and what it is doing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MIB = 1024**2
READ_STEP = 16 * MIB  # less may be answers to our own questions
GPU_STEP_MIB = 64
Limit = Literal["startup_timeout_s", "startup_stall_s"]

# The last line that matches says what it is doing; SGLang's words.
PHASES = (
    (re.compile(r"Load weight begin|Loading .*checkpoint|Loading weights"), "loading weights"),
    (re.compile(r"Load weight end|KV Cache is allocated|KV cache"), "allocating KV cache"),
    (re.compile(r"Captur\w+ .*graph|Capturing batches", re.I), "capturing CUDA graphs"),
    (
        re.compile(r"max_total_num_tokens=|Application startup|Uvicorn running|warm ?up", re.I),
        "warming up",
    ),
)
OUR_QUESTION = re.compile(r'HTTP/1\.[01]" \d{3}')  # a log that only answers us does not move


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen of a starting engine at one moment."""

    new_lines: Sequence[str] = ()
    read_bytes: int = 0  # by its processes so far
    gpu_memory_mib: int | None = None


class StartupProgress:
    """Follows a start against two limits: the whole time, and the time in which nothing moved."""

    def __init__(self, begun_s: float, *, limit_s: float, stall_s: float) -> None:
        self._begun_s = self._moved_s = begun_s
        self._limits: dict[Limit, float] = {
            "startup_timeout_s": limit_s,
            "startup_stall_s": stall_s,
        }
        self._read_bytes = 0
        self._gpu_memory_mib: int | None = None
        self.phase = "starting"

    def observe(self, seen: Observation, now_s: float) -> None:
        """Take what was seen at *now_s*."""
        if self._moved(seen):
            self._moved_s = now_s
            self._read_bytes = seen.read_bytes
            self._gpu_memory_mib = seen.gpu_memory_mib
        for line in seen.new_lines:
            self.phase = _phase(line) or self.phase

    def exceeded(self, now_s: float) -> Limit | None:
        """Return the limit that is over at *now_s*, by its field's name."""
        if now_s - self._begun_s > self._limits["startup_timeout_s"]:
            return "startup_timeout_s"
        if now_s - self._moved_s > self._limits["startup_stall_s"]:
            return "startup_stall_s"
        return None

    def _moved(self, seen: Observation) -> bool:
        return (
            any(line.strip() and not OUR_QUESTION.search(line) for line in seen.new_lines)
            or abs(seen.read_bytes - self._read_bytes) >= READ_STEP
            or self._gpu_moved(seen.gpu_memory_mib)
        )

    def _gpu_moved(self, now_mib: int | None) -> bool:
        if now_mib is None:
            return False
        before = self._gpu_memory_mib
        return before is None or abs(now_mib - before) >= GPU_STEP_MIB


def _phase(line: str) -> str | None:
    return next((phase for pattern, phase in PHASES if pattern.search(line)), None)
