"""The command line. Everything heavy is imported by the command that needs it."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tuner import __version__

HELP = """
Find the SGLang server settings that give the most throughput under your latency limits.

\b
Begin with:
  tuner init study.toml      write a commented study file
  tuner check study.toml     see what would be run
  tuner tune study.toml      run it; interrupt and run again at will
  tuner ui study.toml        compare the launches in MLflow
"""

EXIT_CODES = """
\b
Exit codes:
  0    found: a setting keeps every limit
  1    a failure inside tuner itself: please report it
  2    bad input: the message says what, where, and what to do
  3    finished, and no setting keeps the limits
  4    stopped: the machine or the set-up is to blame, not the settings
  130  interrupted; the same command goes on where it was
"""

BAD_INPUT, STOPPED, INTERRUPTED = 2, 4, 130

TEMPLATES = Path(__file__).parent / "templates"
STUDY = click.argument("study", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@click.group(
    help=HELP, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="tuner")
def main() -> None:
    """Take the command apart; click calls the one that is named."""


def _answer(command: Callable[..., None]) -> Callable[..., None]:
    """Turn bad input (2), a machine that stops us (4) and Ctrl-C (130) into a sentence."""

    @wraps(command)
    def run(**options: Any) -> None:
        try:
            _end_in_words(command, options)
        except KeyboardInterrupt:
            click.echo("interrupted; run the same command again", err=True)
            sys.exit(INTERRUPTED)

    return run


def _end_in_words(command: Callable[..., None], options: dict[str, Any]) -> None:
    from tuner.bad_input import BadInputError
    from tuner.machine_trouble import MachineTroubleError

    try:
        command(**options)
    except BadInputError as error:
        click.echo(str(error), err=True)
        sys.exit(BAD_INPUT)
    except MachineTroubleError as error:
        click.echo(f"stopped: {error}", err=True)
        sys.exit(STOPPED)


@main.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path("study.toml"))
@click.option("--emulated", is_flag=True, help="For the emulated engine: runs on any laptop.")
@_answer
def init(path: Path, emulated: bool) -> None:
    """Write a commented study file to PATH (default: study.toml), to be edited by you."""
    from tuner.bad_input import BadInputError

    template = TEMPLATES / ("emulated.toml" if emulated else "sglang.toml")
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(template.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise BadInputError(f"{path} is there already; name another file or remove it") from error
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}; next: tuner check {path}")


@main.command()
@STUDY
@JSON
@_answer
def check(study: Path, as_json: bool) -> None:
    """Explain what STUDY would run, and refuse what cannot work, without starting anything."""
    from tuner.explain import as_text, explanation
    from tuner.study_file import load_study_file
    from tuner.tune import check as refuse

    file = load_study_file(study)
    explained = explanation(file, refuse(file))
    click.echo(json.dumps(explained, indent=1) if as_json else as_text(explained))


@main.command(epilog=EXIT_CODES)
@STUDY
@JSON
@click.option(
    "--allow-different-env",
    is_flag=True,
    help="Go on with a study although the environment has changed since it began.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@_answer
def tune(study: Path, as_json: bool, allow_different_env: bool, quiet: bool) -> None:
    """Find the best setting for STUDY; run it again after an interruption and it goes on.

    The report, the launch command of the winner and every launch's files are in the study's
    folder (studies/NAME unless the file says otherwise); every launch is in MLflow.
    """
    from tuner.answer import answer_json, answer_text
    from tuner.progress import progress, silence
    from tuner.study_file import load_study_file
    from tuner.study_folder import StudyFolder
    from tuner.tune import Job
    from tuner.tune import tune as run

    file = load_study_file(study)
    folder = StudyFolder(file.folder())
    with progress(emulated=file.engine.emulated, phase=folder.phase, quiet=quiet) as shown:
        job = Job(
            file=file,
            file_path=study,
            folder=folder,
            watchers=(shown,),
            say=shown.say,
            allow_different_env=allow_different_env,
        )
        ending = run(job)
    try:
        click.echo(json.dumps(answer_json(ending), indent=1) if as_json else answer_text(ending))
    except BrokenPipeError:
        silence(sys.stdout)  # nobody reads on; the exit code still says how it went
    sys.exit(ending.verdict.value)


@main.command()
@STUDY
@JSON
@click.option("--open", "show", is_flag=True, help="Open the HTML report in a browser.")
@_answer
def report(study: Path, as_json: bool, show: bool) -> None:
    """Write the report of STUDY (a study file or a study's folder) again, and say where it is."""
    from tuner.report import write_report
    from tuner.study_folder import find_folder

    files = write_report(find_folder(study).root)
    if as_json:
        click.echo(files.json.read_text(encoding="utf-8"))
    else:
        click.echo(f"{files.html}\n{files.md}\n{files.json}")
    if show:
        click.launch(str(files.html))


@main.command()
@STUDY
@click.option(
    "--port",
    default=5000,
    type=click.IntRange(1, 65535),
    show_default=True,
    help="Port on 127.0.0.1.",
)
@_answer
def ui(study: Path, port: int) -> None:
    """Show the launches of STUDY (a study file) in MLflow's own pages, on this machine only."""
    from tuner.mlflow_ui import serve
    from tuner.study_file import load_study_file

    file = load_study_file(study)
    sys.exit(serve(file.tracking.uri, file.folder(), port=port))


@main.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.pass_context
def emulate(context: click.Context) -> None:
    """Serve an EMULATED engine that takes SGLang's flags (see: tuner emulate --help)."""
    from runners.emulated.command import main as serve

    sys.exit(serve(context.args))
