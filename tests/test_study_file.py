import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from runners import EngineSpec
from runners.docker_table import DockerTable
from search_spaces import Choice, FloatRange, IntRange
from tuner.bad_input import BadInputError
from tuner.study_file import StudyFile, load_study_file

TEMPLATES = Path(__file__).parent.parent / "tuner" / "templates"

STUDY = """
[study]
name = "s"
[engine]
kind = "emulated"
model = "Llama-3.1-8B"
hardware = "A100-80G"
[workload]
kind = "fixed"
input_tokens = 64
output_tokens = 16
[workload.load]
concurrency = 8
rounds = 4
[objective.limits]
ttft_p95_ms = 500
[search]
launches = 10
[search.knobs]
schedule_policy = ["fcfs", "lpm"]
max_running_requests = { low = 2, high = 64, log = true }
"""

STAGE = """
[[search.stages]]
name = "{name}"
knobs = ["schedule_policy"]
launches = 2
at = {{ max_running_requests = {at} }}
"""


def load(folder: Path, text: str, name: str = "study.toml") -> StudyFile:
    path = folder / name
    path.write_text(text)
    return load_study_file(path)


def test_the_templates_are_studies() -> None:
    """What `tuner init` writes passes the check it is followed by."""
    for template in sorted(TEMPLATES.glob("*.toml")):
        assert load_study_file(template).study.name


def test_yaml_says_the_same_as_toml(tmp_path: Path) -> None:
    """A study may be written either way and means the same."""
    as_yaml = yaml.safe_dump(tomllib.loads(STUDY))

    assert load(tmp_path, as_yaml, "study.yaml") == load(tmp_path, STUDY)


def test_a_key_written_twice_is_refused_in_yaml_too(tmp_path: Path) -> None:
    """The first of two values is never dropped in silence."""
    twice = yaml.safe_dump(tomllib.loads(STUDY)) + "search: {}\n"

    with pytest.raises(BadInputError, match=r"the key 'search' is there twice at line \d+"):
        load(tmp_path, twice, "study.yaml")


def test_a_value_of_several_types_gets_one_sentence(tmp_path: Path) -> None:
    """A knob may be a list or a table; whoever gets it wrong is not told off for both."""
    with pytest.raises(BadInputError) as caught:
        load(tmp_path, STUDY.replace("{ low = 2, high = 64, log = true }", "{ low = 2 }"))

    assert len(str(caught.value).splitlines()) == 1


def test_knobs_are_typed_by_what_they_are(tmp_path: Path) -> None:
    """A list is a choice, whole ends make a whole-number knob, a share of memory is a number."""
    text = STUDY + "mem_fraction_static = { low = 0.5, high = 0.9, step = 0.05 }\n"
    policy, running, memory = load(tmp_path, text).space().parameters

    assert policy == Choice(name="schedule_policy", values=("fcfs", "lpm"))
    assert running == IntRange(name="max_running_requests", low=2, high=64, log=True)
    assert memory == FloatRange(name="mem_fraction_static", low=0.5, high=0.9, step=0.05)


def test_policy_first_then_the_rest_then_policy_again(tmp_path: Path) -> None:
    """The usual stages keep the users' order, within the launches allowed."""
    file = load(tmp_path, STUDY)
    stages = file.stages()

    assert [s.name for s in stages] == ["policy", "capacity", "policy again"]
    assert 1 + sum(s.launches for s in stages) == file.search.launches
    assert stages[0].at == {"max_running_requests": 4}  # half the users wait: policies differ


@pytest.mark.parametrize("step", [3, 7, 16, 40, 61])
def test_policies_are_compared_at_a_setting_that_may_be_launched(
    tmp_path: Path, step: int
) -> None:
    """Where the queue forms is one of the knob's own values, whatever its steps."""
    text = STUDY.replace("log = true", f"step = {step}").replace(
        "concurrency = 8", "concurrency = 900"
    )
    file = load(tmp_path, text)
    at = file.stages()[0].at["max_running_requests"]

    assert at in file.space()["max_running_requests"]


IN_A_CONTAINER = """hardware = "A100-80G"
launcher = "docker"
[engine.docker]
"""
NOT_A_CONTAINER = {
    "image = 'my image:1'": "found 'my image:1'",
    "image = 'e@sha256:abc'": "64 hexadecimal digits",
    "image = 'https://hub.docker.com/r/e'": "as 'docker pull' takes it",
    "image = 'e'\nhost = '/run/docker.sock'": "host must be an address such as 'unix://",
    "image = 'e'\nmounts = ['/a:/m', '/b:/m/']": "two mounts must not go to one place",
    "image = 'e'\ninherit = ['A=B']": "inherit must hold names of variables",
    "image = 'e'\noptions = { restart_policy = { Name = 'always' } }": "options.restart_policy",
}


@pytest.mark.parametrize(("table", "says"), NOT_A_CONTAINER.items())
def test_a_mistake_about_the_container_gets_a_sentence(
    tmp_path: Path, table: str, says: str
) -> None:
    """What no Docker Engine could take is refused by the file alone."""
    with pytest.raises(BadInputError, match=r"engine\.docker") as caught:
        load(tmp_path, STUDY.replace('hardware = "A100-80G"\n', f"{IN_A_CONTAINER}{table}\n"))

    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "image",
    [
        "e",
        "lmsysorg/sglang:v0.5.23",
        "127.0.0.1:5000/a/b-c__d.e:X_1",
        "localhost/e@sha256:" + "0" * 64,
        "sha256:" + "a" * 64,
    ],
)
def test_every_way_to_name_an_image_is_taken(image: str) -> None:
    """Registries with ports, paths, tags, digests and the ids of images built here."""
    assert DockerTable(image=image).image == image


def test_mounts_keep_their_place_in_another_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A launch runs elsewhere; what is relative is taken from where the tuner was started."""
    monkeypatch.chdir(tmp_path)
    table = DockerTable(image="e", mounts=("m:/m:ro", "./n:/n")).with_absolute_mounts()
    assert table.mounts == (f"{tmp_path}/m:/m:ro", f"{tmp_path}/n:/n")


def test_failed_requests_are_always_limited(tmp_path: Path) -> None:
    """Nobody has to ask that failures count: a fast engine that drops requests never wins."""
    limits = {x.metric: x.at_most for x in load(tmp_path, STUDY).objective.objective().limits}

    assert limits == {"failed_share": 0.01, "ttft_p95_ms": 500}


WRONG: list[tuple[Callable[[str], str], str]] = [
    (lambda t: t.replace("rounds = 4", "rouns = 4"), "workload.load.rounds is missing"),
    (lambda t: t.replace("rounds = 4", "rouns = 4"), "did you mean 'rounds'?"),
    (
        lambda t: t.replace("rounds = 4", 'rounds = "4"'),
        "workload.load.rounds must be a whole number",
    ),
    (lambda t: t.replace("low = 2", "low = 99"), "low must not be above high, found low = 99"),
    (lambda t: t.replace("low = 2", "low = 0"), "must be at least 1, found 0"),
    (lambda t: t.replace("ttft_p95_ms", "ttft_p95"), "did you mean 'ttft_p95_ms'?"),
    (lambda t: t.replace('"lpm"', '"priority"'), "dies when it starts"),
    (
        lambda t: t.replace("max_running_requests", "max_runing_requests"),
        "is not a knob of SGLang",
    ),
    (
        lambda t: t.replace("launches = 10", "launches = 1"),
        "must cover the baseline and every stage",
    ),
    (
        lambda t: t.replace("launches = 10", "launches = 0"),
        "search.launches must be above 0",
    ),
    (lambda t: t.replace('hardware = "A100-80G"', ""), "hardware must name what to emulate"),
    (
        lambda t: t.replace("[engine]", '[engine]\nflags = ["--radix-trees"]'),
        "no flag --radix-trees",
    ),
    (
        lambda t: t.replace("[engine]", '[engine]\nflags = ["--schedule-policy", "lof"]'),
        "engine.flags fixes it: keep one",
    ),
    (lambda t: t.replace('name = "s"', 'name = "a/b"'), "study.name"),
    (lambda t: t + '"--host" = ["0.0.0.0"]', "knobs.--host: the tuner sets it itself"),
    (
        lambda t: t + '"--page-size" = [1, 16]',
        "knobs.--page-size: the knob page_size sets it: write page_size",
    ),
    (
        lambda t: t + 'token_budget = [512, 1024]\n"--max-prefill-tokens" = [4096, 8192]',
        "knobs.--max-prefill-tokens: the knob token_budget sets it; keep one of the two",
    ),
    (lambda t: t + '"--tp-size" = [1, 2]', "knobs.--tp-size: every launch of a study runs on"),
    (lambda t: t.replace("log = true", "step = 1.5"), "must be whole numbers, found (2, 64, 1.5)"),
    (lambda t: t.replace("log = true", "step = 0"), "step must be above 0, found 0"),
    (lambda t: t + STAGE.format(name="baseline", at=8), "each stage needs a name of its own"),
    (lambda t: t + 2 * STAGE.format(name="one", at=8), "found 'one' 2 times"),
    (
        lambda t: t + STAGE.format(name="one", at=500),
        "must hold max_running_requests at one of its values (2 to 64 (log)), found 500",
    ),
    (lambda t: t.replace("max_running_requests", "max_runing_requests"), "did you mean"),
    (lambda t: t.replace("launches = 10", "launches = 3"), "takes at least 5"),
    (lambda t: t.replace("{ low = 2, high = 64, log = true }", "7"), "must be a list or a table"),
    (lambda t: t.replace("log = true", "stp = 1"), "did you mean 'step'?"),
    (lambda t: t.replace("_ms = 500", "_ms = -1"), "ttft_p95_ms must not be below 0, found -1"),
    (lambda t: t.replace("_ms = 500", "_ms = nan"), "must be a finite number, found nan"),
    (
        lambda t: t.replace("ttft_p95", "ttft_p99"),
        "ttft_p99_ms takes at least 100 measured requests",
    ),
    (
        lambda t: t.replace("ttft", "tpot").replace("output_tokens = 16", "output_tokens = 1"),
        "tpot_p95_ms takes answers of 2 tokens or more",
    ),
    (
        lambda t: t.replace("[workload]", "[workload]\nvocabulary = 1"),
        "workload.vocabulary must be at least 3, found 1",
    ),
    (lambda t: t.replace("[study]", "[study"), "not valid TOML"),
    (lambda t: t.replace("ttft_p95_ms = 500", "ttft_p95_ms = {}"), "either at_most or at_least"),
]


@pytest.mark.parametrize(("damage", "says"), WRONG)
def test_a_mistake_gets_a_sentence_with_its_place(
    tmp_path: Path, damage: Callable[[str], str], says: str
) -> None:
    """Every mistake is named with its place in the file; nothing is guessed or dropped."""
    assert damage(STUDY) != STUDY
    with pytest.raises(BadInputError) as caught:
        load(tmp_path, damage(STUDY))

    assert says in str(caught.value)
    assert str(tmp_path / "study.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        ((), 1),
        (("--tp-size", "2", "--dp-size=2"), 4),
        (("--tensor-parallel-size", "4", "--pipeline-parallel-size", "2"), 8),
        (("--tp-size", "8", "--dp-size", "8", "--enable-dp-attention"), 8),
        (("--tp-size", "8", "--attn-dp-size", "8"), 8),
        (("--device", "cpu", "--tp-size", "2"), 0),
    ],
)
def test_a_launch_asks_for_the_gpus_its_flags_mean(flags: tuple[str, ...], gpus: int) -> None:
    """Each flag counts under either name, and attention's data parallelism takes no GPUs more."""
    assert EngineSpec(kind="sglang", model="m", flags=flags).gpus == gpus


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A wrong path is a sentence, not a traceback."""
    with pytest.raises(BadInputError, match=r"nowhere\.toml: cannot be read"):
        load_study_file(tmp_path / "nowhere.toml")
