"""Everything a worker must know to try one candidate; plain data, so that it can travel."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runners.spec import EngineSpec, WorkloadSpec
from search_spaces import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One launch: what to start, what to send, and where to write."""

    study_id: str
    number: int  # of the launch, from 0
    candidate: Mapping[str, Value]
    engine: EngineSpec
    workload: WorkloadSpec
    workload_path: Path  # the plan, one request a line
    workload_sha256: str
    folder: Path  # made for this launch; everything it leaves behind goes here
    environment_names: tuple[str, ...]  # variables of the user's shell that the engine inherits
