"""The prefix cache: a radix tree over token ids that keeps what was computed until room is needed.

Edges carry runs of whole pages. A locked node, and with it all above it, is in use by a running
request and stays; of the rest the leaf that was touched longest ago goes first. Tuples are
compared in slices, so that matching costs little even for long prompts.
"""

import heapq
from dataclasses import dataclass, field

from runners.shared_prefix import shared_prefix

Tokens = tuple[int, ...]

MOST_LEAVES = 4096  # entries of the eviction heap before it is tidied


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens that follows its parent's."""

    tokens: Tokens
    parent: "Node | None"
    children: dict[Tokens, "Node"] = field(default_factory=dict)  # by their first page
    locks: int = 0
    used: int = 0


class PrefixCache:
    """All prefixes that are in memory; *tokens* of them in all, *evictable* not in use."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.root = Node((), None, locks=1)
        self._forget()

    def _forget(self) -> None:
        self.root.children.clear()
        self.tokens = 0
        self.evictable = 0
        self.changes = 0  # counts what may alter the outcome of a match
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap; stale entries are skipped
        self._most_leaves = MOST_LEAVES

    def match(self, tokens: Tokens) -> tuple[int, Node]:
        """Return how many tokens are cached, in whole pages, and the node where that ends.

        The node may reach further than the match: only `insert` cuts a node in two.
        """
        node, found, partial = self._walk(tokens)
        return found, node if partial is None else partial[0]

    def insert(self, tokens: Tokens) -> Node:
        """Keep *tokens*, cut to whole pages, and return the node where they end."""
        tokens = tokens[: len(tokens) - len(tokens) % self.page_size]
        node, found, partial = self._walk(tokens)
        if partial is not None:
            node = self._split(partial[0], partial[1])
        if found < len(tokens):
            rest = tokens[found:]
            child = Node(rest, node)
            node.children[rest[: self.page_size]] = child
            self.tokens += len(rest)
            self.evictable += len(rest)
            self.changes += 1
            node = child
        self._touch(node)
        return node

    def lock(self, node: Node) -> None:
        """Keep *node* and all above it until `unlock`."""
        up: Node | None = node
        while up is not None and up is not self.root:
            if up.locks == 0:
                self.evictable -= len(up.tokens)
            up.locks += 1
            up = up.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of *node*."""
        up: Node | None = node
        while up is not None and up is not self.root:
            up.locks -= 1
            if up.locks == 0:
                self.evictable += len(up.tokens)
                self._offer(up)
            up = up.parent

    def evict(self, tokens: int) -> int:
        """Forget the leaves touched longest ago until *tokens* are free; return how many were."""
        freed = 0
        while freed < tokens and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if node.used != used or not _is_free_leaf(node):
                continue
            freed += len(node.tokens)
            self._remove(node)
        return freed

    def clear(self) -> None:
        """Forget everything; nothing may be locked."""
        self._forget()

    def _walk(self, tokens: Tokens) -> tuple[Node, int, tuple[Node, int] | None]:
        """Return the last whole match, the length found, and a child that matches in part."""
        node, found, page = self.root, 0, self.page_size
        while True:
            child = node.children.get(tokens[found : found + page])
            if child is None:
                return node, found, None
            edge = child.tokens
            if tokens[found : found + len(edge)] != edge:
                same = self._common(tokens[found:], edge)
                return node, found + same, (child, same)
            node, found = child, found + len(edge)

    def _common(self, one: Tokens, other: Tokens) -> int:
        same = shared_prefix(one, other)
        return same - same % self.page_size

    def _split(self, node: Node, at: int) -> Node:
        """Cut *node* in two and return the upper part, which takes the place in the tree."""
        parent, page = node.parent, self.page_size
        upper = Node(node.tokens[:at], parent, locks=node.locks, used=node.used)
        if parent is not None:
            parent.children[upper.tokens[:page]] = upper
        node.tokens = node.tokens[at:]
        node.parent = upper
        upper.children[node.tokens[:page]] = node
        return upper

    def _touch(self, node: Node) -> None:
        """Mark *node* and all above it as just used."""
        self._clock += 1
        up: Node | None = node
        while up is not None:
            up.used = self._clock
            up = up.parent
        self._offer(node)

    def _offer(self, node: Node) -> None:
        if _is_free_leaf(node):
            self._clock += 1
            heapq.heappush(self._leaves, (node.used, self._clock, node))
            if len(self._leaves) > self._most_leaves:
                self._tidy()

    def _tidy(self) -> None:
        """Drop the stale entries, so that a cache that never evicts stays small."""
        fresh = {id(n): entry for entry in self._leaves if (n := entry[2]).used == entry[0]}
        self._leaves = [e for e in fresh.values() if _is_free_leaf(e[2])]
        heapq.heapify(self._leaves)
        self._most_leaves = max(MOST_LEAVES, 2 * len(self._leaves))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        self.tokens -= len(node.tokens)
        self.evictable -= len(node.tokens)
        self.changes += 1
        node.parent = None
        if parent is not None:
            del parent.children[node.tokens[: self.page_size]]
            self._offer(parent)


def _is_free_leaf(node: Node) -> bool:
    return not node.children and not node.locks and node.parent is not None
