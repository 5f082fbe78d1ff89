"""How many tokens the engine dares to promise: new-token ratio and prefill budget. Pure."""

from dataclasses import dataclass

from runners.emulated.request import Request

INITIAL_RATIO = 0.7  # of the output that running requests may still ask for, kept free
FLOOR = 0.14  # the ratio sinks to this share of its initial value
DECAY_STEPS = 600
CLIP_OUTPUT = 4096  # no more output than this is foreseen for one new request
RETRACT_STEPS = 20  # decode steps that must fit after requests were retracted


class NewTokenRatio:
    """The share of the possible output that is held back; requests with ignore_eos count whole."""

    def __init__(self, conservativeness: float) -> None:
        self._initial = min(INITIAL_RATIO * conservativeness, 1.0)
        self._least = self._initial * FLOOR
        self._step = (self._initial - self._least) / DECAY_STEPS
        self.value = self._initial

    def decay(self) -> None:
        """Dare a little more after a decode step that had room."""
        if self.value > self._least:
            self.value = max(self.value - self._step, self._least)

    def reset(self) -> None:
        """Begin anew, when the engine is idle."""
        self.value = self._initial

    def raise_after_retraction(self, emitted: int, running: int, asked: int) -> None:
        """Take the share that the running requests have really used, and some steps more."""
        self.value = min((emitted + RETRACT_STEPS * running) / max(asked, 1), 1.0)


@dataclass(slots=True, kw_only=True)
class PrefillBudget:
    """What one prefill batch may still take: KV tokens, prompt tokens, and its chunk."""

    kv_tokens: float
    input_tokens: int
    chunk_tokens: int | None  # None: prompts are not cut
    page_size: int

    @property
    def spent(self) -> bool:
        """True when nothing more fits."""
        no_chunk = self.chunk_tokens is not None and self.chunk_tokens < self.page_size
        return self.kv_tokens <= 0 or self.input_tokens <= 0 or no_chunk

    def cut(self, tokens: int) -> int:
        """Return how many of *tokens* the chunk allows: all, or whole pages."""
        if self.chunk_tokens is None or tokens <= self.chunk_tokens:
            return tokens
        return self.chunk_tokens // self.page_size * self.page_size

    def take(self, request: Request, tokens: int, *, whole: bool) -> None:
        """Spend *tokens*; a prompt that is computed *whole* is promised its output as well."""
        output = min(request.output_tokens - request.emitted, CLIP_OUTPUT) if whole else 0
        self.kv_tokens -= tokens + output
        self.input_tokens -= tokens
        if self.chunk_tokens is not None:
            self.chunk_tokens -= tokens
