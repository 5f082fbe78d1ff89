"""What the load client is told: one line of JSON, so that it needs nothing to read it."""

from dataclasses import asdict, dataclass
from typing import Self

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """Where to send the requests of a plan, how long to wait for them, and where to write."""

    base_url: str
    path: str = "/v1/completions"
    model: str
    plan_path: str
    concurrency: int
    first_token_timeout_s: float
    stall_timeout_s: float
    total_timeout_s: float
    records_path: str
    report_path: str

    def to_line(self) -> bytes:
        """Return the line that `from_line` takes back."""
        return orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Rebuild what `to_line` gave out."""
        return cls(**orjson.loads(line))
