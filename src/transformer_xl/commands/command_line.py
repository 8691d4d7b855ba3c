"""What every command does around its job: literal values, composition, the run folder, mistakes in one sentence."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from transformer_xl import run_config
from transformer_xl.commands import folders, help_texts, literals, mistakes, ranks, sweep
from transformer_xl.commands.composing import shipped_config_dir
from transformer_xl.errors import Stopped, UserError

_INTERRUPTED = 130
_NO_SWEEPS = {
    "evaluate": "give a list, as in 'eval.mem_len=[0,64]' or 'run=[A,B]'",
    "score": "call this command once for each",
    "generate": "call this command once for each",
}
"""Commands without jobs, and what to do instead."""


@dataclass(frozen=True)
class RunContext:
    """What a job knows besides its configuration.

    Attributes:
        folder: the run folder, absolute; it exists.
        overrides: with `resume=`, the settings of this command, not composed: dotted key or group -> plain value.
        given: what the command itself names: dotted keys, and groups that it chooses.
        choices: group -> choice.
        command: the arguments as the user typed them, the program first.
    """

    folder: Path
    overrides: dict[str, object]
    given: frozenset[str]
    choices: dict[str, str]
    command: list[str]


Job = Callable[[DictConfig, RunContext], float | None]


@dataclass(frozen=True)
class _Call:
    """One command, read: Hydra's flags and overrides, all in Hydra's grammar, and what is withheld from it."""

    config_name: str
    config_dir: Path
    command: list[str]
    flags: list[str]
    overrides: list[str]
    withheld: dict[str, object]
    multirun: bool


class _Task:
    """What Hydra calls for each job: the job itself, or in a sweep its process. Launchers may pickle it."""

    def __init__(self, job: Job, call: _Call, job_command: sweep.JobCommand) -> None:
        self.job = job
        self.call = call
        self.job_command = job_command
        self.folder: Path | None = None
        self.failure: Exception | None = None

    def __call__(self, config: DictConfig) -> float | None:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return sweep.run_job(self.job_command)
        self.folder = Path(HydraConfig.get().run.dir).absolute()
        context = RunContext(
            folder=self.folder,
            overrides=self.call.withheld,
            given=frozenset(map(literals.key_of, literals.as_written(HydraConfig.get().overrides.task))),
            choices=_choices(),
            command=self.call.command,
        )
        try:
            mistakes.check_choices(context.choices)
            mistakes.resolve(config)
            with _argv(self.call.command):
                return self.job(config, context)
        except Exception as failure:
            self.failure = failure
            return None


def run(config_name: str, job: Job, argv: list[str] | None = None, *, config_dir: Path | None = None) -> int:
    """Compose the configuration, make the run folder, and do the job: once, or for each job of a sweep.

    Args:
        config_name: file in `conf/` without `.yaml`.
        job: what to do with the configuration; its value is the objective, which a sweep reads from `summary.json`.
        argv: arguments without the program; those of this process by default.
        config_dir: another folder than the project's `conf/`.

    Returns:
        The exit status: 0, 1 for a bug or a sweep with a failed job, 2 for a user's mistake, or as a signal asks.
    """
    folders.register_resolvers()
    help_texts.register_resolvers()
    sweep.SweepFolder.path = None
    command = [sys.argv[0], *(sys.argv[1:] if argv is None else argv)]
    call: _Call | None = None
    task: _Task | None = None
    try:
        call = _read(config_name, command, (config_dir or shipped_config_dir()).absolute())
        task = _Task(job, call, sweep.JobCommand.of_this_process(tuple(_flags_of_jobs(call.flags))))
        return _compose_and_run(call, task)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Stopped as stopped:
        print(mistakes.one_line(str(stopped)), file=sys.stderr)
        return stopped.exit_code
    except SystemExit as leaving:
        if leaving.code is not None and not isinstance(leaving.code, int):
            raise
        return leaving.code or 0
    except Exception as error:
        in_job = task is not None and task.failure is error
        sentence = mistakes.sentence_of(error) or (None if in_job or call is None else _explain(error, call))
        if sentence is None:
            traceback.print_exception(error)
            return 1
        return mistakes.tell(sentence)
    finally:
        if ranks.is_main():
            folders.discard_claimed()
            if task is not None and task.folder not in (None, Path.cwd()):
                folders.discard_if_empty(task.folder)


def _compose_and_run(call: _Call, task: _Task) -> int:
    overrides = [*call.overrides, sweep.SweepFolder.as_override()] if call.multirun else call.overrides
    start = hydra.main(
        config_path=str(call.config_dir), config_name=call.config_name, version_base=mistakes.VERSION_BASE
    )(task)
    status = 0
    try:
        with _argv([call.command[0], *call.flags, *overrides]), _full_errors():
            start()
    except sweep.SweepEnded as ended:
        status = ended.exit_code
    except KeyboardInterrupt:
        if not call.multirun:
            raise
        status = _INTERRUPTED
    finally:
        all_succeeded = sweep.finish(task.job_command.token)
    if task.failure is not None:
        raise task.failure
    if status:
        print("the sweep was stopped", file=sys.stderr)
    return status or (0 if all_succeeded else 1)


@contextmanager
def _argv(argv: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = argv
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _full_errors() -> Iterator[None]:
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _read(config_name: str, command: list[str], config_dir: Path) -> _Call:
    arguments = literals.quote_literals(command[1:])
    parser = get_args_parser()
    parser.error = _refuse_flags  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(arguments)
    modes = [f"--{name}" for name in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(parsed, name)]
    if len(modes) > 1:
        raise UserError(f"{' and '.join(modes)} exclude each other: give one of them")
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise UserError("--resolve belongs to --cfg or --help, as in --cfg job --resolve")
    overrides: list[str] = parsed.overrides
    withheld: dict[str, object] = {}
    if config_name == "train" and any(_names_a_folder(line) for line in overrides):
        if parsed.multirun:
            raise UserError("resume=RUN_FOLDER goes on with one run, and cannot be given with --multirun")
        overrides, withheld = _withhold(overrides)
    config_dir = Path(parsed.config_path).absolute() if parsed.config_path else config_dir
    is_job = literals.is_quoted(command[1:])
    overrides = overrides + sweep.overrides_of_experiments(overrides, config_dir, is_job=is_job)
    multirun = parsed.multirun or any(literals.key_of(line) == "hydra.mode" for line in overrides)
    if multirun and config_name in _NO_SWEEPS:
        raise UserError(f"--multirun sweeps over training runs: {_NO_SWEEPS[config_name]}")
    if multirun and not is_job:
        _refuse_new_folders_with_auto(overrides)
    return _Call(
        config_name=parsed.config_name or config_name,
        config_dir=config_dir,
        command=command,
        flags=_flags(parsed),
        overrides=overrides,
        withheld=withheld,
        multirun=multirun,
    )


def _refuse_new_folders_with_auto(overrides: list[str]) -> None:
    keys = {literals.key_of(line): line for line in overrides}
    line = keys.get("resume")
    if line is not None and _resume_of(line) == folders.AUTO and "hydra.sweep.dir" not in keys:
        raise UserError(
            f"resume={folders.AUTO} finds the jobs of a sweep by their folder, and each sweep has a new one: add "
            "hydra.sweep.dir=FOLDER"
        )


def _refuse_flags(message: str) -> Never:
    raise UserError(f"{message}; --help and --hydra-help list what there is")


def _flags(parsed: argparse.Namespace) -> list[str]:
    flags = []
    for name, value in vars(parsed).items():
        if name not in ("overrides", "config_path") and value not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            flags.append(flag if value is True else f"{flag}={value}")
    return flags


def _extra_dirs(flags: list[str]) -> list[str]:
    return [flag.removeprefix("--config-dir=") for flag in flags if flag.startswith("--config-dir=")]


def _flags_of_jobs(flags: list[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith("--config-")]


def _names_a_folder(override: str) -> bool:
    return literals.key_of(override) == "resume" and _resume_of(override) not in (folders.AUTO, None)


def _resume_of(override: str) -> object:
    return literals.plain_overrides([override])["resume"]


def _withhold(overrides: list[str]) -> tuple[list[str], dict[str, object]]:
    """Split the overrides of a resume: Hydra composes what is Hydra's, the run's own config.yaml gets the others.

    Under another name than the run's own it becomes a branch, whose folder is a new run's.
    """
    of_hydra = [line for line in overrides if re.match(r"hydra[./]", literals.key_of(line))]
    withheld = literals.plain_overrides([line for line in overrides if line not in of_hydra])
    resume = str(withheld.pop("resume"))
    folder = Path(os.path.expanduser(resume)).absolute()
    if not resume or not folder.is_dir():
        raise UserError(f"resume={resume} names no folder that exists, and must be the folder of a run")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"resume={resume} holds no config.yaml, and must be the folder of a run")
    if withheld.get("name") not in (None, run_config.read_config(folder).get("name")):
        return [*_quoted(resume=resume, name=str(withheld["name"])), *of_hydra], withheld
    if any(literals.key_of(line) == "hydra.run.dir" for line in of_hydra) and ranks.is_main():
        raise UserError("hydra.run.dir cannot be given with resume=, which goes on in the run's own folder")
    kept = [line for line in of_hydra if literals.key_of(line) != "hydra.run.dir"]
    return [*_quoted(resume=resume), *kept, f"hydra.run.dir={literals.quote(str(folder))}"], withheld


def _quoted(**values: str) -> list[str]:
    return [f"{name}={literals.quote(value)}" for name, value in values.items()]


def _choices() -> dict[str, str]:
    choices = HydraConfig.get().runtime.choices
    return {group: choice for group, choice in choices.items() if choice and not group.startswith("hydra/")}


def _explain(error: Exception, call: _Call) -> str | None:
    return mistakes.explain(
        error,
        config_name=call.config_name,
        config_dir=call.config_dir,
        extra_dirs=_extra_dirs(call.flags),
        overrides=call.overrides,
        multirun=call.multirun,
        instead=_NO_SWEEPS.get(call.config_name),
    )
