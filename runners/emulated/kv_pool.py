"""The KV pool: who holds its tokens, the requests themselves or the prefix cache they share."""

from dataclasses import dataclass, field

from runners.emulated.prefix_cache import PrefixCache
from runners.emulated.request import Request


@dataclass(slots=True, kw_only=True)
class KvPool:
    """*tokens* in all; without *shares* there is no prefix cache and each request is on its own.

    Decoded tokens are counted one by one. With pages of several tokens the last page of each
    request is half empty on average: that much is counted from the start, as its slack.
    """

    tokens: int
    page_size: int
    shares: bool
    cache: PrefixCache = field(init=False)
    private: int = 0  # tokens that requests hold outside the cache

    def __post_init__(self) -> None:
        self.cache = PrefixCache(self.page_size)

    @property
    def slack(self) -> int:
        """What each request holds beside its tokens."""
        return self.page_size // 2

    @property
    def used(self) -> int:
        """Tokens that requests hold; what is merely cached does not count."""
        return self.private + self.cache.tokens - self.cache.evictable

    def claim(self, request: Request) -> int:
        """Lock what is cached of *request*; return the tokens that only this keeps in memory."""
        if not self.shares:
            return 0
        before = self.cache.evictable
        tokens = request.tokens[:-1]  # at least one token must be computed, to get the next
        found, _ = self.cache.match(tokens)
        request.node = self.cache.insert(tokens[:found])
        self.cache.lock(request.node)
        request.computed = found
        return before - self.cache.evictable

    def give_slack(self, request: Request) -> None:
        """Count the waste of *request*'s last page."""
        request.private = self.slack
        self.private += self.slack

    def keep(self, request: Request) -> None:
        """Hold what was just computed of *request*, and let others share it from now on."""
        if not self.shares:
            request.private += request.extend
            self.private += request.extend
            return
        node = self.cache.insert(request.tokens[: request.computed])
        self.cache.lock(node)
        self._unlock(request)
        request.node = node

    def finish(self, request: Request) -> None:
        """Let go of *request*; prompt and output stay cached until room is needed."""
        if self.shares:
            self.cache.insert(request.sequence(request.emitted - 1))
        self.release(request)

    def release(self, request: Request) -> None:
        """Let go of all that *request* holds."""
        self.private -= request.private
        request.private = 0
        self._unlock(request)

    def make_room(self, tokens: int) -> bool:
        """Free *tokens* by forgetting cached prefixes; False when that is not enough."""
        missing = tokens - (self.tokens - self.private - self.cache.tokens)
        return missing <= 0 or self.cache.evict(missing) >= missing

    def _unlock(self, request: Request) -> None:
        if request.node is not None:
            self.cache.unlock(request.node)
            request.node = None
