"""The last thing a person or a script reads of a run."""

import json
import math
from pathlib import Path

from objectives import Limit, ThroughputUnderLimits
from runners import Measured
from search_spaces import Candidate, IntRange, SearchSpace
from tests.study_factory import measured
from tuner.answer import answer_json
from tuner.plan import BASELINE, Plan
from tuner.study import Study
from tuner.study_folder import StudyFolder
from tuner.trial import Launch, Trial
from tuner.tune import Ending, Verdict

OBJECTIVE = ThroughputUnderLimits(
    maximize="output_tokens_per_s", limits=(Limit(metric="ttft_p95_ms", at_most=500),)
)
PLAN = Plan(
    space=SearchSpace(parameters=(IntRange(name="max_running_requests", low=1, high=8),)),
    stages=(),
    launches=1,
    budget_s=60,
)


def trial(outcome: Measured) -> Trial:
    return Trial(
        launch=Launch(number=0, stage=BASELINE, candidate=Candidate.of({})),
        outcome=outcome,
        score=OBJECTIVE.judge(outcome.measurement),
        took_s=1,
    )


def refuse(constant: str) -> None:
    raise AssertionError(f"JSON has no {constant}")


def test_the_answer_is_json_even_when_requests_timed_out(tmp_path: Path) -> None:
    """A latency without end is written "inf", as in the report: JSON has no infinity."""
    folder = StudyFolder(tmp_path)
    folder.launch(0).mkdir(parents=True)
    (folder.launch(0) / "launch.txt").write_text("python -m engine\n")
    late = measured({}, 0, ttft_p95_ms=math.inf)
    study = Study(plan=PLAN, trials=(trial(late),))
    ending = Ending(verdict=Verdict.INFEASIBLE, reason="done", study=study, folder=folder)

    told = json.loads(json.dumps(answer_json(ending)), parse_constant=refuse)
    assert told["winner"] is None
    assert told["nearest"]["metrics"]["ttft_p95_ms"] == "inf"
