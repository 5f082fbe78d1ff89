"""The requests that decode. All advance together, so their progress is a few sums.

A decode step costs the same for one request as for hundreds: each request remembers at which step
it joined, and is filed under the step that gives it its last token.
"""

from dataclasses import dataclass

from runners.emulated.request import Request


@dataclass(slots=True)
class Outstanding:
    """Output that some of the requests may still ask for; each gets one token at every step."""

    requests: int = 0
    tokens: int = 0


class RunningBatch:
    """Everyone who gets a token at the next decode step, in the order of joining."""

    def __init__(self) -> None:
        self.requests: dict[Request, None] = {}
        self.steps = 0  # decode steps since the start
        self.context_tokens = 0  # KV tokens that a decode step reads
        self._endings: dict[int, list[Request]] = {}
        self._certain = Outstanding()  # of requests that ignore end-of-sequence tokens
        self._possible = Outstanding()  # of the others

    def __len__(self) -> int:
        return len(self.requests)

    def emitted(self, request: Request) -> int:
        """Return how many tokens *request* has had."""
        return request.emitted + self.steps - request.joined

    def promised(self, ratio: float) -> float:
        """Return the KV tokens to hold back; *ratio* of what may end early, all of the rest."""
        return self._certain.tokens + self._possible.tokens * ratio

    def join(self, request: Request) -> None:
        """Take in *request*, whose prompt has been computed."""
        left = request.output_tokens - request.emitted
        request.joined = self.steps
        request.finishes = self.steps + left
        self.requests[request] = None
        self._endings.setdefault(request.finishes, []).append(request)
        self.context_tokens += len(request.tokens)
        sums = self._sums(request)
        sums.requests += 1
        sums.tokens += left

    def advance(self) -> list[Request]:
        """Give everyone one token; return those that got their last, who are out."""
        self.steps += 1
        self.context_tokens += len(self.requests)
        self._certain.tokens -= self._certain.requests
        self._possible.tokens -= self._possible.requests
        finished = self._endings.pop(self.steps, [])
        for request in finished:
            self._drop(request)
        return finished

    def leave(self, request: Request) -> None:
        """Let *request* go before its end."""
        ending = self._endings[request.finishes]
        ending.remove(request)
        if not ending:
            del self._endings[request.finishes]
        self._drop(request)

    def _drop(self, request: Request) -> None:
        decoded = self.steps - request.joined
        request.emitted += decoded
        request.private += decoded
        request.joined = self.steps
        del self.requests[request]
        self.context_tokens -= len(request.tokens) + decoded
        sums = self._sums(request)
        sums.requests -= 1
        sums.tokens -= request.output_tokens - request.emitted

    def _sums(self, request: Request) -> Outstanding:
        return self._certain if request.ignore_eos else self._possible
