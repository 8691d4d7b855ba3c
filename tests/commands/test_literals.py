from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from transformer_xl.commands import literals

ODD_STRINGS = [
    "",
    " ",
    "  both ends  ",
    "a,b",
    "a=b=c",
    "it's",
    'say "yes"',
    "'\"'\"",
    "\\",
    "ends with \\",
    "\\\\'\\\"",
    "[a, b]",
    "{a: b}",
    "(a",
    "choice(1,2)",
    "null",
    "123",
    "1e5",
    "true",
    "???",
    "${seed}",
    "\\${seed} \\\\${seed}",
    "${oc.env:HOME} and $HOME",
    "${",
    "#no comment",
    "!x ~y %z & | ; < > * ? `",
    "two\nlines\r\n and a\ttab",
    "汉字、标点。",
    "e\u0301 \u200d👩\u200d🔬 🙂",
    "caf\udce9 \udcff",
    "-m",
    "--help",
]

ODD_PATHS = [
    "plain.txt",
    "with blank.txt",
    " leading",
    "trailing ",
    "a=b.txt",
    "epoch=3-step=10.ckpt",
    "a,b[1]{2}(3).txt",
    'it\'s "quoted".txt',
    "back\\slash\\",
    "${seed}.txt",
    "~tilde.txt",
    "#hash!.txt",
    "null",
    "123",
    "两只老虎/数据.txt",
    "line\nbreak.txt",
    "caf\udce9.txt",
    "???",
]

KEYS = ["prompt", "texts", "init_from", "data.path", "data.dir"]


def value_of(config: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def composed(argument: str, key: str = "value") -> Any:
    override = OverridesParser.create().parse_override(argument)
    config = OmegaConf.create({key: None})
    OmegaConf.update(config, key, override.value())
    return OmegaConf.to_container(config, resolve=True)[key]  # type: ignore[index,call-overload]


@pytest.fixture(autouse=True)
def _resolver() -> None:
    literals.register_resolver()


@pytest.mark.parametrize("start", range(0, len(ODD_STRINGS), len(KEYS)))
def test_odd_strings_reach_the_program_byte_for_byte(project: Any, start: int) -> None:
    given_values = dict(zip(KEYS, ODD_STRINGS[start:], strict=False))
    arguments = [f"{key}={value}" for key, value in given_values.items()]
    seen = project.seen(*arguments)
    assert {key: value_of(seen["config"], key) for key in given_values} == given_values
    assert seen["argv"][1:] == arguments
    assert seen["command"][1:] == arguments


@pytest.mark.parametrize("start", range(0, len(ODD_PATHS), 3))
def test_odd_paths_are_found_by_the_program(project: Any, start: int) -> None:
    paths = [project.cwd / "files" / path for path in ODD_PATHS[start : start + 3]]
    for index, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {index}")
    given_values = {
        "data.path": str(paths[0]),
        "data.dir": os.path.relpath(paths[1], project.cwd),
        "init_from": str(paths[2]),
    }
    arguments = [f"{key}={value}" for key, value in given_values.items()]
    seen = project.seen(*arguments, "reads=[data.path,data.dir,init_from]")
    assert seen["read"] == {key: f"text {index}" for index, key in enumerate(given_values)}
    assert {key: value_of(seen["config"], key) for key in given_values} == given_values


def test_there_are_as_many_as_promised() -> None:
    assert len(set(ODD_STRINGS)) >= 30
    assert len(set(ODD_PATHS)) >= 15
    assert len(ODD_PATHS) % 3 == 0


@pytest.mark.parametrize("name", ["../汉 ${seed}", "x" * 300, "new\nline", "null"])
def test_a_name_is_kept_and_gives_one_folder(project: Any, name: str) -> None:
    seen = project.seen(f"name={name}")
    assert seen["config"]["name"] == name
    folder = Path(seen["folder"])
    assert folder.parent == project.cwd / "outputs"
    assert folder.is_dir()
    assert len(os.fsencode(folder.name)) <= 100
    assert "$" not in folder.name


def test_several_runs_stay_a_list_of_literal_strings(project: Any) -> None:
    seen = project.seen("run=[a=1, ${seed},null,it's]", "+prompts=[1,2]")
    assert seen["config"]["run"] == ["a=1", "${seed}", "null", "it's"]
    assert seen["config"]["prompts"] == [1, 2]


def test_a_literal_in_a_sweep_is_no_sweep_and_reaches_the_job_unchanged(project: Any) -> None:
    text = "a,b '${seed}' \\${x} 汉 ???"
    done = project.run("-m", f"prompt={text}", "texts=???", "init_from=", "act=no_objective")
    assert done.returncode == 0, done.stderr
    (path,) = project.cwd.rglob("seen.json")
    seen = json.loads(path.read_text())
    assert (seen["config"]["prompt"], seen["config"]["texts"], seen["config"]["init_from"]) == (text, "???", "")


TRICKY = st.lists(st.sampled_from([*"\\'\"${}[]() ,=a\n?汉", "${", "\\${", "\udc80"]), max_size=9).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(st.characters(exclude_characters="\0", exclude_categories=())), TRICKY))
def test_any_text_survives_quoting_and_a_sweep(text: str) -> None:
    argument = f"value={literals.quote(text)}"
    assert composed(argument) == text
    rewritten = OverridesParser.create().parse_override(argument).get_value_element_as_str()
    assert composed(f"value={rewritten}") == text


def test_only_literal_keys_are_quoted() -> None:
    arguments = ["model.mem_len=1,2", "-m", "~name", "names=a,b", "data.path_x=a,b", "name"]
    assert literals.quote_literals(arguments) == arguments
    assert literals.quote_literals(["+name=a,b", "++data.dir=1"]) == ["+name='a,b'", "++data.dir='1'"]


def test_arguments_of_a_job_are_not_quoted_again() -> None:
    assert literals.quote_literals([literals.ALREADY_QUOTED, "name='a,b'"]) == ["name='a,b'"]


@pytest.mark.slow
def test_a_further_process_has_the_same_settings_and_folder(project: Any) -> None:
    name = "odd \"x\" \\${seed} 'y' =,汉"
    folder = project.cwd / f"out {name}"
    done = project.run(f"name={name}", f"hydra.run.dir={literals.quote(str(folder))}", "act=ddp")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((folder / file).read_text()) for file in ("seen.json", "seen-1.json"))
    assert first["config"] == second["config"]
    assert first["folder"] == second["folder"] == str(folder)
    assert not (project.cwd / "outputs").exists()
