"""What the engine and the GPUs did while the load ran: read at both ends, sampled in between."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from runners.gpu_sampler import GpuSampler
from runners.live_engine import LiveEngine
from runners.sglang_api import Counters, LiveLoad, SGLangApi, window
from runners.windows import EngineWindow, GpuWindow

MEASURING, DRAINED = "measuring", "drained"


@dataclass(kw_only=True)
class LoadWatch:
    """Follows one load from its phases; tells us if the engine dies under it."""

    api: SGLangApi
    live: LiveEngine
    gpus: GpuSampler | None
    say: Callable[[str], None]
    interval_s: float = 1.0  # between two samples
    _before: Counters | None = None
    _after: Counters | None = None
    _gpu: GpuWindow | None = None
    _loads: list[LiveLoad] = field(default_factory=list)
    _next_sample: float = 0.0

    def on_progress(self, phase: str, done: int, total: int) -> None:
        """Take a phase of the load, with how many of its requests are done."""
        if phase == MEASURING and self._before is None:
            self._before = self.api.counters()
            if self.gpus is not None:
                self.gpus.reset()
        if phase == DRAINED and self._after is None:
            self._after = self.api.counters()
            self._gpu = None if self.gpus is None else self.gpus.window()
        self.say(f"{phase} {done}/{total}")

    def watch(self) -> None:
        """Look at the engine; raises the reason when it has died."""
        self.live.check_alive()
        now = time.monotonic()
        if self._before is None or self._after is not None or now < self._next_sample:
            return
        self._next_sample = now + self.interval_s
        if (load := self.api.live_load()) is not None:
            self._loads.append(load)

    def engine_window(self) -> EngineWindow:
        """Return the engine's counters over the measured window; nothing without both ends."""
        if self._before is None or self._after is None:
            return EngineWindow()
        return window(self._before, self._after, self._loads)

    def gpu_window(self) -> GpuWindow | None:
        """Return what the GPUs did over the measured window, None without GPUs."""
        return self._gpu


def gpu_sampler(gpus: int, visible: str | None) -> AbstractContextManager[GpuSampler | None]:
    """Return a sampler of the *visible* GPUs, or nothing for an engine that needs none."""
    if gpus == 0:
        return nullcontext()
    return GpuSampler(None if visible is None else visible.split(","))
