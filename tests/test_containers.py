"""Engines in containers of a real Docker Engine: what a trial says of each, and what is left.

They need the engine that `scripts/docker_for_tests.sh start` names; without one they are skipped.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from runners import (
    Faulted,
    Measured,
    Outcome,
    Rejected,
    TrialSpec,
    docker_containers,
    listener,
    process_table,
)
from runners.cause import Cause
from runners.container_check import container_problems, creation_problem, pinned
from runners.container_plan import LAUNCH_LABEL, STUDY_LABEL
from runners.container_probe import packages_inside
from runners.docker_table import DockerTable
from runners.janitor import STUDY_MARK
from runners.launch_record import launch_line
from runners.sglang import command
from runners.spec import EngineSpec, LoadSpec, WorkloadSpec
from runners.trial import run_trial
from runners.workload import plan, write_plan
from search_spaces import Candidate
from tests.tuner_process import events, start, tuner, wait_until, write_study

pytestmark = [
    pytest.mark.docker,
    # docker-py leaves the socket open with which it found nobody
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parent.parent
STUDY = f"container-test-{os.getpid()}"
IMAGE = "sgl-tuner-emulated-test:1"
NOBODY = "unix:///nowhere/docker.sock"


@pytest.fixture(scope="session")
def docker_host() -> str:
    """Return the address of a Docker Engine that is ours to use; skip without one."""
    host = os.environ.get("SGL_TUNER_TEST_DOCKER")
    if host is None:
        pytest.skip('no Docker Engine: eval "$(scripts/docker_for_tests.sh start)" first')
    return host


@pytest.fixture(scope="session")
def image(docker_host: str) -> str:
    """Return an image of the emulated engine as it is in this tree."""
    base = os.environ["SGL_TUNER_TEST_BASE"]
    built = subprocess.run(
        ["bash", str(ROOT / "scripts" / "emulated_image.sh"), IMAGE, base],
        env={**os.environ, "DOCKER_HOST": docker_host},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return IMAGE


@dataclass(frozen=True)
class Seen:
    """A trial in a container, and what it left on disk."""

    outcome: Outcome
    spec: TrialSpec

    def report(self) -> Any:
        return json.loads((self.spec.folder / "container_report.json").read_bytes())


Look = Callable[..., Seen]


@pytest.fixture
def look(tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Return what tries an engine in a container, and finds that nothing was left."""
    monkeypatch.setattr("runners.trial.MOST_LAG_MS", float("inf"))
    monkeypatch.setattr("runners.measure.HALTED_LOOP_LAG_MS", float("inf"))

    def look(table: dict[str, Any], *faults: str) -> Seen:
        spec = _spec(tmp_path, DockerTable(**{"host": docker_host, **table}), faults)
        seen = Seen(run_trial(spec), spec)
        assert process_table.marked(STUDY_MARK, STUDY) == []
        assert spec.engine.port is not None
        assert listener.holder(spec.engine.port) is None
        if "host" not in table:
            assert _containers(docker_host, f"label={STUDY_LABEL}={STUDY}") == []
        return seen

    return look


def _spec(folder: Path, table: DockerTable, faults: tuple[str, ...] = ()) -> TrialSpec:
    load = LoadSpec(concurrency=4, rounds=8)
    workload = WorkloadSpec(kind="fixed", input_tokens=32, output_tokens=24, load=load)
    path = folder / "workload.jsonl"
    return TrialSpec(
        study_id=STUDY,
        number=3,
        candidate={"max_running_requests": 4},
        engine=EngineSpec(
            kind="emulated",
            model="Llama-3.1-8B",
            hardware="A100-80G",
            speed=10.0,
            flags=tuple(word for one in faults for word in ("--emulated-fault", one)),
            port=listener.free_port(),
            launcher="docker",
            docker=table,
            env={"PLAIN": "b c"},
            startup_timeout_s=60.0,
            stop_grace_s=2.0,
        ),
        workload=workload,
        workload_path=path,
        workload_sha256=write_plan(path, plan(workload, vocabulary=2000)),
        folder=folder / "trial",
        environment_names=("PATH",),
    )


def _containers(host: str, wanted: str) -> list[str]:
    return _docker(host, "ps", "--all", "--quiet", "--filter", wanted).split()


def _docker(host: str, *words: str) -> str:
    done = subprocess.run(
        ["docker", "--host", host, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- an engine that serves ----------------------------------------------------------------------


@pytest.mark.parametrize("network", ["host", "bridge"])
def test_an_engine_in_a_container_is_measured(look: Look, image: str, network: str) -> None:
    """It is measured like any other; what it printed and which image it was stay on disk."""
    seen = look({"image": image, "network": network})
    assert isinstance(seen.outcome, Measured), seen.outcome
    assert seen.outcome.measurement.failed_requests == 0
    assert seen.outcome.effective["max_running_requests"] == 4
    assert "fired up and ready" in (seen.spec.folder / "engine.log").read_text()
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", seen.report()["image"]["id"])


def test_the_launch_line_starts_the_same_container(docker_host: str, image: str) -> None:
    """What is printed for people to paste starts an engine that answers, outside the tuner."""
    engine = EngineSpec(
        kind="emulated",
        model="Llama-3.1-8B",
        hardware="A100-80G",
        launcher="docker",
        docker=DockerTable(image=image, host=docker_host, network="bridge", memory="500m"),
        env={"PLAIN": "b c"},
    )
    port = listener.free_port()
    line = launch_line(engine, command(engine, Candidate.of({}), port), port)
    name = f"pasted-{os.getpid()}"
    with subprocess.Popen(
        shlex.split(line.replace(" run --rm", f" run --name {name} --rm")),
        stdout=subprocess.DEVNULL,
    ) as shell:
        try:
            wait_until(
                lambda: listener.holder(port) is not None, what="the engine listens", limit_s=60
            )
            assert "PLAIN=b c" in _docker(docker_host, "exec", name, "env")
            assert _docker(docker_host, "inspect", "-f", "{{.HostConfig.Memory}}", name).strip()
        finally:
            subprocess.run(["docker", "--host", docker_host, "rm", "-f", name], check=False)
            shell.wait()


def test_the_container_gets_what_the_table_says(
    docker_host: str, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounts, memory, shared memory, variables, labels and further options reach the container."""
    (tmp_path / "inside").mkdir()
    table: dict[str, Any] = {
        "image": image,
        "memory": "600m",
        "shm_size": "70m",
        "mounts": (f"{tmp_path}/inside:/data:ro",),
        "inherit": ("INHERITED", "NOT_SET"),
        "options": {"cap_add": ["SYS_NICE"], "hostname": "tuned"},
    }
    found: list[Any] = []

    def inspect() -> None:
        ids = _containers(docker_host, f"label={STUDY_LABEL}={STUDY}")
        found.extend(json.loads(_docker(docker_host, "inspect", *ids)) if ids else [])

    monkeypatch.setenv("INHERITED", "from the shell")
    spec = _spec(tmp_path, DockerTable(**{"host": docker_host, **table}))
    named = replace(spec, environment_names=("PATH", "INHERITED"))
    run_trial(named, lambda doing: inspect() if doing.startswith("measuring 0") else None)
    (seen,) = found
    host, config = seen["HostConfig"], seen["Config"]
    assert host["Memory"] == host["MemorySwap"] == 600 * 1024**2
    assert host["ShmSize"] == 70 * 1024**2
    assert host["CapAdd"] in (["SYS_NICE"], ["CAP_SYS_NICE"])
    assert host["NetworkMode"] == "host"
    assert host["Init"] is True
    assert [m["Destination"] for m in seen["Mounts"]] == ["/data"]
    assert not seen["Mounts"][0]["RW"]
    assert {"PLAIN=b c", "INHERITED=from the shell"} <= set(config["Env"])
    assert not any(entry.startswith("NOT_SET") for entry in config["Env"])
    assert config["Hostname"] == "tuned"
    assert config["Labels"][STUDY_LABEL] == STUDY
    assert config["Labels"][LAUNCH_LABEL]


@pytest.fixture
def podman_host(tmp_path: Path) -> Iterator[str]:
    """Return the address of a Podman of our own, with storage of its own."""
    config = tmp_path / "containers.conf"
    config.write_text('[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n')
    socket = tmp_path / "podman.sock"
    run = tempfile.mkdtemp(prefix="podman-")  # Podman takes no long path for it
    words = ("--root", str(tmp_path / "root"), "--runroot", run, "--cgroup-manager", "cgroupfs")
    try:
        service = subprocess.Popen(
            ["podman", *words, "system", "service", "--time", "0", f"unix://{socket}"],
            env={**os.environ, "CONTAINERS_CONF": str(config)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        pytest.skip("no podman here")
    try:
        wait_until(socket.exists, what="podman listens")
        yield f"unix://{socket}"
    finally:
        service.terminate()
        service.wait()
        subprocess.run(["podman", *words, "system", "reset", "--force"], check=False)
        shutil.rmtree(run, ignore_errors=True)


@pytest.mark.slow
def test_podmans_socket_works_too(
    look: Look, docker_host: str, podman_host: str, image: str, tmp_path: Path
) -> None:
    """Podman's Docker-compatible socket serves the same launch, with its image pinned."""
    archive = tmp_path / "image.tar"
    _docker(docker_host, "save", "--output", str(archive), image)
    _docker(podman_host, "load", "--input", str(archive))
    table = DockerTable(image=f"localhost/{image}", host=podman_host)
    seen = look(pinned(table, lambda _: None).model_dump())
    assert isinstance(seen.outcome, Measured), seen.outcome
    assert _containers(podman_host, f"label={STUDY_LABEL}={STUDY}") == []


# --- an engine that does not --------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """A container that ends badly, and what must be said of it."""

    kind: type[Outcome]
    sentence: str
    cause: Cause
    faults: tuple[str, ...] = ()
    table: dict[str, Any] = field(default_factory=dict)


ENDS = {
    "ended": End(Faulted, "exit code 7", Cause.UNKNOWN, ("die_at_start:code=7",)),
    "crash": End(Rejected, "died under load", Cause.CRASH, ("crash_at_request:number=12",)),
    "out of GPU memory": End(
        Rejected, "ran out of memory", Cause.LOAD_MEMORY, ("oom_at_concurrency:running=3",)
    ),
    "out of host memory": End(
        Rejected,
        "at the memory limit of its container (200m): raise engine.docker.memory",
        Cause.HOST_MEMORY,
        ("eat_memory:mib=400,number=12",),
        {"memory": "200m"},
    ),
    "no image": End(
        Faulted,
        "found no image 'no-such-image:3'",
        Cause.CONTAINER,
        table={"image": "no-such-image:3", "pull": "never"},
    ),
    "no registry": End(
        Faulted,
        "could not be pulled",
        Cause.CONTAINER,
        table={"image": "127.0.0.1:9/none:1"},
    ),
    "no GPU runtime": End(
        Faulted, "must be able to hand out GPUs", Cause.CONTAINER, table={"gpus": ("0",)}
    ),
    "no Docker Engine": End(
        Faulted,
        "a Docker Engine must answer at unix:///nowhere",
        Cause.CONTAINER,
        table={"host": NOBODY},
    ),
    "no mount": End(Faulted, "/nowhere", Cause.CONTAINER, table={"mounts": ("/nowhere:/data",)}),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_end_is_told_in_words(look: Look, image: str, end: End) -> None:
    """Crash, memory limit, missing image, GPU runtime or Docker Engine: a verdict in words."""
    outcome = look({"image": image, **end.table}, *end.faults).outcome
    assert isinstance(outcome, Faulted | Rejected), outcome
    assert isinstance(outcome, end.kind), outcome
    assert end.sentence in outcome.reason
    assert outcome.cause is end.cause


def test_a_deaf_engine_and_its_orphan_go_with_the_container(look: Look, image: str) -> None:
    """What ignores SIGTERM is killed with its container, after the grace."""
    seen = look({"image": image}, "ignore_sigterm", "orphan")
    assert isinstance(seen.outcome, Measured), seen.outcome


# --- before anything starts ---------------------------------------------------------------------


def test_what_can_be_known_beforehand_is_said_beforehand(docker_host: str, image: str) -> None:
    """A missing mount, an option nobody knows and an image that may not be pulled are refused."""
    table = DockerTable(
        image="no-such-image:3",
        pull="never",
        host=docker_host,
        mounts=("/nowhere:/data",),
        options={"cap_ad": []},
    )
    said = list(container_problems(table))
    assert len(said) == 3
    assert "found nothing at /nowhere" in said[0]
    assert "found cap_ad" in said[1]
    assert "found no image 'no-such-image:3'" in said[2]
    assert not list(container_problems(DockerTable(image=image, host=docker_host)))


UNMADE: dict[str, dict[str, Any]] = {
    "destination can't be '/'": {"mounts": ("/etc:/",)},
    "Minimum memory limit": {"memory": "1m"},
    "unknown capability": {"options": {"cap_add": ["FLYING"]}},
    "Privileged of type bool": {"options": {"privileged": "yes"}},
    "object is not iterable": {"options": {"devices": 5}},
}


@pytest.mark.parametrize(("said", "table"), UNMADE.items(), ids=UNMADE)
def test_a_container_that_cannot_be_made_is_refused_beforehand(
    docker_host: str, image: str, tmp_path: Path, said: str, table: dict[str, Any]
) -> None:
    """The Docker Engine is asked to make it, which starts nothing and leaves nothing."""
    before = _docker(docker_host, "ps", "--all", "--quiet")
    spec = _spec(tmp_path, DockerTable(**{"image": image, "host": docker_host, **table}))
    problem = creation_problem(spec.engine)
    assert problem is not None
    assert said in problem
    assert _docker(docker_host, "ps", "--all", "--quiet") == before


def test_a_network_nobody_made_is_refused_beforehand(docker_host: str, image: str) -> None:
    """A network's name is looked up before anything starts."""
    table = DockerTable(image=image, host=docker_host, network="no-such")
    assert "found 'no-such'" in next(container_problems(table))


def test_the_packages_of_an_image_are_recorded(docker_host: str, image: str) -> None:
    """The environment of a study holds the image's digest, Python and packages."""
    engine = EngineSpec(
        kind="emulated",
        model="m",
        hardware="h",
        launcher="docker",
        docker=DockerTable(image=image, host=docker_host),
    )
    found = packages_inside(engine)
    assert any(package.startswith("orjson==") for package in found["packages"])
    assert found["python"].startswith("3.11")
    assert found["image"]["id"].startswith("sha256:")


# --- a registry ---------------------------------------------------------------------------------


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Return the address of an empty image registry of our own."""
    port = listener.free_port()
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/images}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    try:
        server = subprocess.Popen(
            ["docker-registry", "serve", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        pytest.skip("no docker-registry here")
    try:
        wait_until(lambda: listener.holder(port) is not None, what="the registry listens")
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_an_image_is_pulled_by_tag_and_by_digest(
    docker_host: str, image: str, registry: str
) -> None:
    """A tag is pulled with progress and pinned to the digest it means; a digest is taken as is."""
    tag = f"{registry}/emulated:7"
    _docker(docker_host, "tag", image, tag)
    _docker(docker_host, "push", tag)
    _docker(docker_host, "rmi", tag)
    said: list[str] = []
    by_tag = pinned(DockerTable(image=tag, host=docker_host), said.append)
    assert re.fullmatch(rf"{registry}/emulated@sha256:[0-9a-f]{{64}}", by_tag.image)
    assert said[0] == f"pulling image {tag}"
    _docker(docker_host, "rmi", tag)
    by_digest = pinned(DockerTable(image=by_tag.image, host=docker_host), said.append)
    assert by_digest.image == by_tag.image
    _docker(docker_host, "rmi", by_tag.image)


# --- whatever dies ------------------------------------------------------------------------------


def test_containers_of_a_dead_driver_are_swept_by_label(docker_host: str, image: str) -> None:
    """What carries the study's label goes, running or not; another's container stays."""
    mine, others = f"{STUDY_LABEL}=swept-{os.getpid()}", f"{STUDY_LABEL}=other-{os.getpid()}"
    sleep = (image, "sleep", "600")
    ids = [
        _docker(docker_host, "run", "--detach", "--label", label, *sleep).strip()
        for label in (mine, others)
    ]
    stopped = _docker(docker_host, "create", "--label", mine, *sleep).strip()
    try:
        swept = docker_containers.swept(docker_host, STUDY_LABEL, f"swept-{os.getpid()}")
        assert len(swept) == 2
        left = _docker(docker_host, "ps", "--all", "--quiet", "--no-trunc")
        assert ids[1] in left
        assert ids[0] not in left
        assert stopped not in left
    finally:
        _docker(docker_host, "rm", "--force", ids[1])


def test_a_question_whose_asker_was_shot_is_removed_by_the_next(
    docker_host: str, image: str, tmp_path: Path
) -> None:
    """Containers that only ask the image something name their process; those of the dead go."""
    label = f"{docker_containers.BRIEF_LABEL}={os.uname().nodename}"
    create = ("create", "--label")
    dead = _docker(docker_host, *create, f"{label} 99999999", image, "true").strip()
    alive = _docker(docker_host, *create, f"{label} {os.getppid()}", image, "true").strip()
    try:
        spec = _spec(tmp_path, DockerTable(image=image, host=docker_host))
        assert creation_problem(spec.engine) is None
        left = _docker(docker_host, "ps", "--all", "--quiet", "--no-trunc")
        assert dead not in left
        assert alive in left
    finally:
        _docker(docker_host, "rm", "--force", alive)


DOCKER_STUDY = """launcher = "docker"
stop_grace_s = 5.0
[engine.docker]
image = "{image}"
host = "{host}"
"""


def _study(folder: Path, image: str, host: str) -> Path:
    study = write_study(folder)
    docker = DOCKER_STUDY.format(image=image, host=host)
    text = study.read_text().replace("speed = 8.0\n", f"speed = 8.0\n{docker}")
    text = text.replace("launches = 7", "launches = 3")
    study.write_text(text.replace('schedule_policy = ["fcfs", "lpm"]\n', ""))
    return study


def test_what_only_a_start_shows_is_bad_input_too(
    tmp_path: Path, docker_host: str, image: str
) -> None:
    """What the Docker Engine refuses at the start ends `tune` before a launch, in a sentence."""
    study = _study(tmp_path, image, docker_host)
    study.write_text(study.read_text().replace("[engine.docker]", '[engine.docker]\nipc = "odd"'))
    ran = tuner(tmp_path, "tune", "study.toml")
    assert ran.code == 2, ran.err
    assert "engine.docker: the container could not be started: Invalid IPC mode" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_the_same_study_runs_in_containers(tmp_path: Path, docker_host: str, image: str) -> None:
    """One study file, another launcher: a winner, its docker line, and no container left."""
    _study(tmp_path, image, docker_host)
    ran = tuner(tmp_path, "tune", "study.toml", "--json")
    assert ran.code == 0, ran.err
    answer = ran.json()
    assert answer["verdict"] == "found"
    line = answer["winner"]["command"]
    assert line.startswith(f"docker --host {docker_host} run --rm --init --network host")
    assert "sha256:" in line
    snapshot = json.loads((tmp_path / "studies" / "small" / "environment.json").read_text())
    assert snapshot["engine"]["image"]["reference"] == image
    (opened,) = events(tmp_path, "opened")
    assert _containers(docker_host, f"label={STUDY_LABEL}={opened['study_id']}") == []


REAL_STUDY = """
[study]
name = "small"
[engine]
kind = "sglang"
launcher = "docker"
model = "/model"
flags = ["--load-format", "dummy", "--device", "cpu", "--max-total-tokens", "20000"]
[engine.env]
OMP_NUM_THREADS = "1"
HF_HUB_OFFLINE = "1"
PYTHONPATH = "/sglang"
[engine.docker]
image = "{image}"
host = "{host}"
mounts = ["{sglang}:/sglang:ro", "{model}:/model:ro"]
[workload]
kind = "fixed"
input_tokens = 96
output_tokens = 16
[workload.load]
concurrency = 16
rounds = 3
[objective.limits]
failed_share = 0
[search]
launches = 2
[search.knobs]
max_running_requests = {{ low = 2, high = 4 }}
[tracking]
enabled = false
"""


@pytest.mark.slow
@pytest.mark.sglang
def test_the_real_sglang_runs_in_a_container(
    tmp_path: Path, docker_host: str, sglang_python: Path, tiny_model: Path
) -> None:
    """It is asked about its flags inside the image, then launched there, and says what it runs."""
    base = os.environ["SGL_TUNER_TEST_BASE"]
    (packages,) = sglang_python.parent.parent.glob("lib/python3.11/site-packages")
    text = REAL_STUDY.format(image=base, host=docker_host, sglang=packages, model=tiny_model)
    study = tmp_path / "study.toml"
    study.write_text(text.replace('"--load-format"', '"--no-such-flag", "--load-format"'))
    refused = tuner(tmp_path, "check", "study.toml")
    assert refused.code == 2
    assert "--no-such-flag" in refused.err
    study.write_text(text)
    ran = tuner(tmp_path, "tune", "study.toml", "--json")
    assert ran.code == 0, ran.err
    assert f"flags: checked against SGLang 0.5.23 ({base})" in ran.err
    effective = [e["outcome"]["effective"] for e in events(tmp_path, "finished")]
    assert 2 <= effective[1]["max_running_requests"] <= 4 < effective[0]["max_running_requests"]


def _under_load(folder: Path, image: str, host: str) -> "subprocess.Popen[bytes]":
    """Start a study in containers, and wait until one of its launches measures."""
    _study(folder, image, host)
    process = start(folder, "tune", "study.toml")
    launches = folder / "studies" / "small" / "launches"
    wait_until(
        lambda: any("measuring" in f.read_text() for f in launches.glob("*/phase")),
        what="a launch measures",
    )
    return process


@pytest.mark.slow
def test_a_killed_driver_leaves_no_container(tmp_path: Path, docker_host: str, image: str) -> None:
    """SIGKILL of the tuner under load: its guardian stops the container by itself."""
    process = _under_load(tmp_path, image, docker_host)
    (opened,) = events(tmp_path, "opened")
    mine = f"label={STUDY_LABEL}={opened['study_id']}"
    assert len(_containers(docker_host, mine)) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: _containers(docker_host, mine) == [], what="the container is gone")


@pytest.mark.slow
def test_a_container_whose_keeper_was_shot_is_swept_at_the_next_start(
    tmp_path: Path, docker_host: str, image: str
) -> None:
    """When all that could stop it is shot at once, the next run of the study removes it."""
    process = _under_load(tmp_path, image, docker_host)
    (opened,) = events(tmp_path, "opened")
    keepers = process_table.marked(STUDY_MARK, opened["study_id"])
    for pid in (process.pid, *process_table.descendants(process.pid), *keepers):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    mine = f"label={STUDY_LABEL}={opened['study_id']}"
    assert len(_containers(docker_host, mine)) == 1
    ran = tuner(tmp_path, "tune", "study.toml", "--json")
    assert ran.code == 0, ran.err
    assert "removed containers that an earlier run left behind: sgl-tuner-" in ran.err
    assert _containers(docker_host, mine) == []
