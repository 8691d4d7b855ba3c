"""What every command does around its job: literal values, composition, the run folder, mistakes in one sentence."""

from __future__ import annotations

import argparse
import errno
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
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from transformer_xl.commands import folders, literals, sweep
from transformer_xl.config import nearest
from transformer_xl.errors import Stopped, UserError

_VERSION_BASE = "1.3"
_MISTAKE = 2
_INTERRUPTED = 130
_ERRORS_OF_DISKS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_ERRORS_OF_PATHS = _ERRORS_OF_DISKS | frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ),
        *(errno.EACCES, errno.EPERM, errno.EINVAL),
    }
)


@dataclass(frozen=True)
class RunContext:
    """What a job knows besides its configuration.

    Attributes:
        folder: the run folder, absolute; it exists.
        overrides: with `resume=`, the settings of this command, not composed: dotted key or group -> plain value.
        choices: group -> choice.
        command: the arguments as the user typed them, the program first.
    """

    folder: Path
    overrides: dict[str, object]
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
            choices=_choices(),
            command=self.call.command,
        )
        try:
            _check_choices(context.choices)
            _resolve(config)
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
    sweep.SweepFolder.path = None
    command = [sys.argv[0], *(sys.argv[1:] if argv is None else argv)]
    call: _Call | None = None
    task: _Task | None = None
    try:
        call = _read(config_name, command, (config_dir or _shipped_config_dir()).absolute())
        task = _Task(job, call, sweep.JobCommand.of_this_process(tuple(_flags_of_jobs(call.flags))))
        return _compose_and_run(call, task)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Stopped as stopped:
        print(_one_line(str(stopped)), file=sys.stderr)
        return stopped.exit_code
    except SystemExit as leaving:
        if leaving.code is not None and not isinstance(leaving.code, int):
            raise
        return leaving.code or 0
    except Exception as error:
        in_job = task is not None and task.failure is error
        sentence = _sentence_of(error) or (None if in_job or call is None else _explain(error, call))
        if sentence is None:
            traceback.print_exception(error)
            return 1
        print(f"error: {_one_line(sentence)}", file=sys.stderr)
        return _MISTAKE
    finally:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            folders.discard_claimed()
            if task is not None and task.folder is not None:
                folders.discard_if_empty(task.folder)


def _compose_and_run(call: _Call, task: _Task) -> int:
    overrides = [*call.overrides, sweep.SweepFolder.as_override()] if call.multirun else call.overrides
    start = hydra.main(config_path=str(call.config_dir), config_name=call.config_name, version_base=_VERSION_BASE)(task)
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


def _shipped_config_dir() -> Path:
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


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
    if config_name == "train" and any(literals.key_of(line) == "resume" for line in overrides):
        if parsed.multirun:
            raise UserError("resume= goes on with one run, and cannot be given with --multirun")
        overrides, withheld = _withhold(overrides)
    return _Call(
        config_name=parsed.config_name or config_name,
        config_dir=Path(parsed.config_path).absolute() if parsed.config_path else config_dir,
        command=command,
        flags=_flags(parsed),
        overrides=overrides,
        withheld=withheld,
        multirun=parsed.multirun or any(literals.key_of(line) == "hydra.mode" for line in overrides),
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


def _flags_of_jobs(flags: list[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith("--config-")]


def _withhold(overrides: list[str]) -> tuple[list[str], dict[str, object]]:
    """Split the overrides of a resume: Hydra composes what is Hydra's, the run's own config.yaml gets the others."""
    of_hydra = [line for line in overrides if re.match(r"hydra[./]", literals.key_of(line))]
    withheld = literals.plain_overrides([line for line in overrides if line not in of_hydra])
    resume = str(withheld.pop("resume"))
    folder = Path(resume).expanduser().absolute()
    if not resume or not folder.is_dir():
        raise UserError(f"resume={resume} names no folder that exists, and must be the folder of a run")
    if not (folder / "config.yaml").is_file():
        raise UserError(f"resume={resume} holds no config.yaml, and must be the folder of a run")
    if any(literals.key_of(line) == "hydra.run.dir" for line in of_hydra) and "LOCAL_RANK" not in os.environ:
        raise UserError("hydra.run.dir cannot be given with resume=, which goes on in the run's own folder")
    kept = [line for line in of_hydra if literals.key_of(line) != "hydra.run.dir"]
    return [f"resume={literals.quote(resume)}", *kept, f"hydra.run.dir={literals.quote(str(folder))}"], withheld


def _choices() -> dict[str, str]:
    choices = HydraConfig.get().runtime.choices
    return {group: choice for group, choice in choices.items() if choice and not group.startswith("hydra/")}


def _check_choices(choices: dict[str, str]) -> None:
    """Refuse a choice that there is not, which Hydra does except where the group is optional."""
    for group, choice in choices.items():
        known = GlobalHydra.instance().config_loader().get_group_options(group.partition("@")[0])
        if isinstance(choice, str) and "/" not in choice and choice.removesuffix(".yaml") not in known:
            raise UserError(f"{group}={choice}: {group} has no choice {choice!r}; {nearest(choice, known)}")


def _resolve(config: DictConfig) -> None:
    """Look every value up once, so that what refers to nothing ends here, before the job."""
    try:
        OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key} has no value, and must be given as {error.full_key}=VALUE") from error
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        value = OmegaConf.to_container(config, resolve=False)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else value
        target = re.search(r"Interpolation key '(.*)' not found", str(error))
        reason = (
            f"{target[1]} is not a setting; {_nearest_key(target[1], _keys(config))}" if target else _first_line(error)
        )
        raise UserError(f"{key} is {value}, which cannot be looked up: {reason}") from error


def _sentence_of(error: BaseException) -> str | None:
    """Give the sentence for a mistake that carries its own words, also where Hydra or OmegaConf wrapped it."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, UserError):
            return str(reason)
        if isinstance(reason, OverrideParseException):
            return literals.explain_unreadable(reason.override)
        if isinstance(reason, OSError) and reason.filename is not None and reason.errno in _ERRORS_OF_PATHS:
            path = reason.filename if reason.filename2 is None else reason.filename2
            return f"{path if isinstance(path, int) else os.fsdecode(path)} cannot be used: {reason.strerror}"
        if isinstance(reason, OSError) and reason.errno in _ERRORS_OF_DISKS:
            return f"a file cannot be written: {reason.strerror}"
        wrapped = isinstance(reason, HydraException | OmegaConfBaseException)
        reason = reason.__cause__ or reason.__context__ if wrapped else None
    return None


def _explain(error: Exception, call: _Call) -> str | None:
    """Find the override that Hydra's composition fails at, by composing with more and more of them."""
    with hydra.initialize_config_dir(config_dir=str(call.config_dir), version_base=_VERSION_BASE):
        composition = _Composition(call)
        for override in composition.groups_first(OverridesParser.create().parse_overrides(call.overrides)):
            sentence = composition.lay_on(override)
            if sentence is not None:
                return sentence
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key}: {_first_line(error)}"
    return _first_line(error) if isinstance(error, HydraException) else None


class _Composition:
    """A configuration composed from the overrides that have proved right."""

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.loader = GlobalHydra.instance().config_loader()
        self.accepted = [
            f"hydra.searchpath=[{literals.quote('file://' + os.path.abspath(d))}]" for d in _extra_dirs(call)
        ]
        self.config = self._compose([])

    def _compose(self, more: list[str]) -> DictConfig:
        return hydra.compose(self.call.config_name, [*self.accepted, *more], return_hydra_config=True)

    def groups_first(self, overrides: list[Override]) -> list[Override]:
        return sorted(overrides, key=lambda override: not self._choices(override.key_or_group))

    def _choices(self, group: str) -> list[str]:
        return list(self.loader.get_group_options(group))

    def lay_on(self, override: Override) -> str | None:
        """Add an override; where it fails, give the sentence that says why."""
        line = str(override.input_line)
        if override.is_sweep_override() and not self.call.multirun:
            return (
                f"{line} names several values: give -m for a run of each, or {override.key_or_group}=[...] for a list"
            )
        key = override.get_key_element()
        lines = (
            [f"{key}={value}" for value in override.sweep_string_iterator()] if override.is_sweep_override() else [line]
        )
        for single in lines:
            try:
                config = self._compose([single])
            except Exception as error:
                return self._explain(single, error)
        self.accepted.append(lines[0])
        self.config = config
        return None

    def _explain(self, line: str, error: Exception) -> str:
        override = OverridesParser.create().parse_override(line)
        key, typed = override.key_or_group, literals.as_typed(line)
        value = typed.partition("=")[2]
        if not key:
            return literals.explain_unreadable(typed)
        choices = self._choices(key)
        if choices and value not in choices and not override.is_delete():
            return f"{typed}: {key} has no choice {value!r}; {nearest(value, choices)}"
        known = _keys(self.config)
        if override.is_add() and key in known:
            return f"{typed}: {key} is a setting already; write {key}={value} to give it another value"
        if key not in known and not choices:
            owners = self._choices_with(key)
            near = f"it belongs to {' and '.join(owners)}" if owners else _nearest_key(key, [*known, *self.groups()])
            return f"{typed}: {key} is not a setting; {near}"
        return f"{typed}: {_first_line(error)}"

    def groups(self) -> list[str]:
        return list(self.loader.list_groups(""))

    def _choices_with(self, key: str) -> list[str]:
        """Find the other choices of the key's group that have this key."""
        group = key.partition(".")[0]
        owners = []
        for choice in self._choices(group) if "." in key else []:
            try:
                if key in _keys(self._compose([f"{group}={choice}"])):
                    owners.append(f"{group}={choice}")
            except (HydraException, OmegaConfBaseException):
                continue
        return owners


def _extra_dirs(call: _Call) -> list[str]:
    return [flag.removeprefix("--config-dir=") for flag in call.flags if flag.startswith("--config-dir=")]


def _keys(config: DictConfig) -> list[str]:
    keys: list[str] = []

    def collect(node: object, prefix: str) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                keys.append(f"{prefix}{name}")
                collect(child, f"{prefix}{name}.")

    collect(OmegaConf.to_container(config, resolve=False), "")
    return keys


def _nearest_key(key: str, known: list[str]) -> str:
    own = [name for name in known if not name.startswith("hydra") or key.startswith("hydra")]
    sentence = nearest(key, own)
    if sentence.startswith("known"):
        return nearest(key, sorted({name for name in own if "." not in name}))
    return sentence


def _first_line(error: BaseException) -> str:
    innermost = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    return str(innermost).strip().partition("\n")[0]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
