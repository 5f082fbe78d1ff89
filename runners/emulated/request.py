"""One request inside the engine: what was asked, and how far it has come."""

from dataclasses import dataclass

from runners.emulated.prefix_cache import Node, Tokens

OUTPUT_TOKEN = 0  # the id of every token the emulated model produces


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt and the number of tokens to produce; the rest is the scheduler's."""

    id: int
    prompt: Tokens
    output_tokens: int
    ignore_eos: bool = True
    arrived_s: float = 0.0
    # its prefill: *tokens* are to be in the KV cache before it can decode
    tokens: Tokens = ()
    computed: int = 0
    extend: int = 0  # tokens of the step in progress
    node: Node | None = None  # its locked place in the prefix cache
    private: int = 0  # KV tokens of its own, counted up to *joined*
    # what the queue's policies look at
    matched: int = 0
    matched_node: Node | None = None
    matched_at: int = -1  # the state of the cache that *matched* belongs to
    # its output
    emitted: int = 0  # tokens, counted up to *joined*
    joined: int = 0  # decode steps of the engine when it began to decode
    finishes: int = 0  # and when it will have its last token
    # what is reported about it
    cached_tokens: int | None = None  # of the prompt, when it was first admitted
    admitted_s: float | None = None
    retractions: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.prompt

    def requeue(self) -> None:
        """Go back to the queue, to compute prompt and output so far once more."""
        self.tokens = self.sequence(self.emitted)
        self.computed = 0
        self.matched_at = -1
        self.retractions += 1

    def sequence(self, emitted: int) -> Tokens:
        """Return the prompt and the first *emitted* tokens of the output."""
        return self.prompt + (OUTPUT_TOKEN,) * emitted
