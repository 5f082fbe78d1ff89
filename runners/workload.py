"""The traffic as a plan: every prompt and its place, fixed by the seed before anything starts."""

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import orjson

from runners.records import FILLER, MEASURED, WARMUP
from runners.shared_prefix import shared_prefix
from runners.spec import LoadSpec, Shape, WorkloadSpec

LOWEST_TOKEN = 256  # the ids below it are often bytes and control tokens
FEWEST_TOKENS = 2
HIGHEST_SHARE = 0.95  # of the vocabulary; the ids above it are often special or unused


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of the plan; *round* counts on from warm-up over measured to filler rounds."""

    id: int
    phase: str  # WARMUP | MEASURED | FILLER
    slot: int
    round: int
    shape: int
    prompt: tuple[int, ...]
    output_tokens: int
    prefix_tokens: int = 0  # of the prompt, shared with others of its group


def plan(spec: WorkloadSpec, vocabulary: int) -> list[PlannedRequest]:
    """Return every request in the order it is to be sent: round by round, slot by slot.

    The same *spec* gives the same plan, whatever is tuned. Warm-up requests have other prompts
    and other shared prefixes than the measured ones, so that they leave nothing in the prefix
    cache that helps later; fillers have other prompts, but share the measured prefixes.
    """
    tokens = _token_ids(vocabulary)
    shapes, load = spec.all_shapes(), spec.load
    shares = [shape.share for shape in shapes]
    requests: list[PlannedRequest] = []
    first = 0
    for phase, rounds in _phases(load):
        waves = _waves(shares, rounds, load.concurrency, Random(f"{spec.seed}/{phase}/shapes"))
        for number, slot, shape in _places(waves):
            source = f"{spec.seed}/{phase}/{number}/{slot}"
            prefix = _prefix_source(spec.seed, phase, shape)
            requests.append(
                PlannedRequest(
                    id=len(requests),
                    phase=phase,
                    slot=slot,
                    round=first + number,
                    shape=shape,
                    prompt=_prompt(Random(source), prefix, shapes[shape], tokens),
                    output_tokens=shapes[shape].output_tokens,
                    prefix_tokens=shapes[shape].prefix_tokens,
                )
            )
        first += rounds
    return requests


def filler_rounds(rounds: int) -> int:
    """Rounds planned to keep a fast slot busy until the slowest has been measured."""
    return 2 + rounds // 4


def prefix_sharing(requests: Iterable[PlannedRequest]) -> float:
    """Return the share of measured prompt tokens that an earlier measured prompt begins with.

    It is the hit rate of a prefix cache that forgets nothing and knows no pages.
    """
    seen: list[tuple[int, ...]] = []  # sorted: the longest common prefix is with a neighbour
    shared = total = 0
    for prompt in (r.prompt for r in requests if r.phase == MEASURED):
        place = bisect_left(seen, prompt)
        neighbours = seen[max(place - 1, 0) : place + 1]
        shared += max((shared_prefix(prompt, other) for other in neighbours), default=0)
        total += len(prompt)
        seen.insert(place, prompt)
    return shared / total if total else 0.0


def write_plan(path: Path, requests: Iterable[PlannedRequest]) -> str:
    """Write one JSON object a line and return the file's SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for request in requests:
            line = orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE)
            digest.update(line)
            out.write(line)
    return digest.hexdigest()


def read_plan(path: Path) -> list[PlannedRequest]:
    """Read what `write_plan` wrote."""
    with path.open("rb") as lines:
        return [_request(orjson.loads(line)) for line in lines]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a plan's file, as `write_plan` did."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def vocabulary_of(model: Path | None) -> int | None:
    """Return the vocabulary size a model's folder states, None when there is no such folder."""
    if model is None or not (path := model / "config.json").is_file():
        return None
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return None if size is None else int(size)


def _request(data: dict[str, Any]) -> PlannedRequest:
    return PlannedRequest(**{**data, "prompt": tuple(data["prompt"])})


def _phases(load: LoadSpec) -> tuple[tuple[str, int], ...]:
    return (
        (WARMUP, load.warmup_rounds),
        (MEASURED, load.rounds),
        (FILLER, filler_rounds(load.rounds)),
    )


def _places(waves: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, int]]:
    """Yield round, slot and shape in the order of sending."""
    for number, wave in enumerate(waves):
        for slot, shape in enumerate(wave):
            yield number, slot, shape


def _token_ids(vocabulary: int) -> list[int]:
    """Return the ids prompts draw from; a list, so that equal ids share one object."""
    ids = list(range(min(LOWEST_TOKEN, vocabulary // 4), int(HIGHEST_SHARE * vocabulary)))
    if len(ids) < FEWEST_TOKENS:
        raise ValueError(
            f"a vocabulary must leave at least {FEWEST_TOKENS} ids to draw prompts from, "
            f"found {len(ids)} of {vocabulary}"
        )
    return ids


def _waves(shares: Sequence[float], rounds: int, slots: int, rng: Random) -> list[tuple[int, ...]]:
    """Return the shape of each slot in each round.

    The counts of all rounds match the shares as whole numbers can; each round and each slot
    comes as near to them as it can, so that no wave and no slot is heavier than the others.
    """
    quotas = _whole(shares, rounds * slots)
    left = list(quotas)
    owed = [[quota / slots for quota in quotas] for _ in range(slots)]
    waves: list[tuple[int, ...]] = []
    for _ in range(rounds):
        counts = _whole(left, slots)
        left = [had - used for had, used in zip(left, counts, strict=True)]
        waves.append(_wave(counts, owed, rng))
    return waves


def _wave(counts: Sequence[int], owed: list[list[float]], rng: Random) -> tuple[int, ...]:
    """Give each shape of this round to the slots that it is owed to most; rare shapes first."""
    slots = list(range(len(owed)))
    rng.shuffle(slots)
    wave = [0] * len(slots)
    for shape in sorted(range(len(counts)), key=lambda s: counts[s]):
        slots.sort(key=lambda slot: -owed[slot][shape])
        for slot in slots[: counts[shape]]:
            wave[slot] = shape
            owed[slot][shape] -= 1
        slots = slots[counts[shape] :]
    return tuple(wave)


def _whole(shares: Sequence[float], total: int) -> list[int]:
    """Split *total* into whole numbers by *shares*: largest remainders, then the first ones."""
    scale = total / sum(shares)
    counts = [math.floor(share * scale) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i] * scale)
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _prefix_source(seed: int, phase: str, shape: int) -> str:
    pool = WARMUP if phase == WARMUP else MEASURED
    return f"{seed}/{pool}/prefix/{shape}"


def _prompt(
    rng: Random, prefix_source: str, shape: Shape, tokens: Sequence[int]
) -> tuple[int, ...]:
    prefix: list[int] = []
    if shape.prefix_groups:
        group = Random(f"{prefix_source}/{rng.randrange(shape.prefix_groups)}")
        prefix = group.choices(tokens, k=shape.prefix_tokens)
    return tuple(prefix + rng.choices(tokens, k=shape.input_tokens - len(prefix)))
