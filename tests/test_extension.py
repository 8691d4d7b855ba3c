"""Parts from files outside the package: chosen like the shipped ones, trained, resumed, loaded again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer_xl as txl
from tests.conftest import PARTS, QUIET, REPOSITORY, TINY_MODEL, Outcome, parts_forgotten, plugins
from tests.oracles.tiny import SIZE
from transformer_xl import registry
from transformer_xl.commands import cli
from transformer_xl.errors import UserError
from transformer_xl.model.base import make_model

Run = Callable[..., Outcome]
CHOSEN = {
    "lion": ["optimizer=lion", "optimizer.beta2=0.9", "optimizer.lr=0.001"],
    "warmup_stable_decay": ["scheduler=wsd", "scheduler.decay_share=0.5", "scheduler.warmup_steps=2"],
    "weight_norm": ["+callbacks.weight_norm.every=2"],
    "csv_log": ["logger=csv", "logger.flush=1"],
    "nibbles": ["data.tokenizer=nibbles"],
    "alibi": ["model/position=alibi", "model.position.last_slope=0.01"],
    "sums": ["data=sums", "data.digits=1", "data.sums=300", "data.tokenizer=char"],
}
"""File of a part -> what chooses it."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with parts_forgotten():
        yield


def small(tmp_path: Path) -> list[str]:
    sizes = ["data.batch_size=4", "data.segment_len=5", "trainer.accelerator=cpu", "trainer.max_steps=6"]
    return [*TINY_MODEL, *QUIET, *sizes, f"data.cache_dir={tmp_path / 'corpora'}"]


def test_parts_are_short() -> None:
    lines = {path.stem: path.read_text().count("\n") for path in PARTS.glob("*.py")}
    assert max(lines[name] for name in CHOSEN) <= 40
    assert max(lines.values()) <= 150


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*CHOSEN} - {"alibi"}))  # which test_memory_parts.py trains
def test_a_part_trains_and_the_run_goes_on_and_is_loaded(name: str, tiny_run: Run, tmp_path: Path) -> None:
    arguments = [plugins(name), *CHOSEN[name], "trainer.max_steps=4"]
    arguments += [] if name == "warmup_stable_decay" else ["scheduler.total_steps=6"]
    run = tiny_run(*(small(tmp_path) if name == "sums" else []), *arguments, base=name != "sums")
    assert run.status == 0
    assert tiny_run(plugins(name), f"resume={run.folder}", "trainer.max_steps=6", base=False).status == 0
    assert sorted(run.values("train/loss")) == [1, 2, 3, 4, 5, 6]
    assert txl.load_model(run.folder).vocabulary is not None
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["status"] == "finished"


def test_all_parts_train_together(tiny_run: Run, tmp_path: Path) -> None:
    chosen = [choice for name, choices in CHOSEN.items() if name != "nibbles" for choice in choices]
    run = tiny_run(*small(tmp_path), plugins(*CHOSEN), *chosen, "data.tokenizer=nibbles", base=False)
    assert run.status == 0
    model = txl.load_model(run.folder)
    assert (model.vocab_size, model.vocabulary.kind) == (16, "nibbles")
    assert "train/loss" in (run.folder / "metrics.csv").read_text()


def test_what_the_documentation_shows_works(tiny_run: Run, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "extend.md").read_text(), re.DOTALL)
    (tmp_path / "my_parts.py").write_text("\n\n".join(block for block in blocks if "@txl.register(" in block))
    chosen = ["optimizer=lion", "scheduler=linear", "+callbacks.weight_norm.every=2", "model/position=alibi"]
    chosen += ["data=sentences", "data.tokenizer=sixbit", f"plugins=[{tmp_path / 'my_parts.py'}]"]
    run = tiny_run(*small(tmp_path), *chosen, base=False)
    assert run.status == 0
    assert txl.load_model(run.folder).config.position.kind == "alibi"
    network = make_model(txl.compose("model=linear_recurrence", *SIZE).model, vocab_size=9)
    sys.modules.pop("my_parts", None)
    tokens_BT = torch.arange(8)[None]
    whole, memory = network.log_probs(tokens_BT, network.empty_memory(1))
    session = txl.stream(network.eval(), batch_size=1)
    in_pieces = [session.log_probs(tokens_BT[:, :3]), session.log_probs(tokens_BT[:, 3:])]
    torch.testing.assert_close(torch.cat(in_pieces, dim=1), whole.detach())
    assert memory.kind == "decay"


def test_settings_of_a_part_have_defaults_and_rules_of_their_own() -> None:
    config = txl.compose("optimizer=lion", "optimizer.beta1=0.5", plugins=[str(PARTS / "lion.py")])
    assert (config.optimizer.beta1, config.optimizer.beta2) == (0.5, 0.99)  # type: ignore[attr-defined]
    assert config.optimizer.lr == txl.compose().optimizer.lr
    with pytest.raises(UserError, match=r"optimizer.beta3 is not a setting \(the nearest is optimizer.beta2\)"):
        txl.compose("optimizer=lion", "optimizer.beta3=1", plugins=[str(PARTS / "lion.py")])
    with pytest.raises(UserError, match=r"callbacks.weight_norm.every is 0, and must be at least 1"):
        txl.compose("+callbacks.weight_norm.every=0", plugins=[str(PARTS / "weight_norm.py")])


def test_wsd_warms_up_stays_and_decays_to_zero() -> None:
    chosen = ["scheduler=wsd", "scheduler.warmup_steps=2", "scheduler.decay_share=0.4"]
    settings = txl.compose(*chosen, plugins=[str(PARTS / "warmup_stable_decay.py")]).scheduler
    factor = registry.lookup("scheduler", "wsd").factory(settings, 10)
    expected = [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    assert [factor(step) for step in range(1, 12)] == pytest.approx(expected)


def test_lightnings_callbacks_are_had_by_their_name(tiny_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    stops = "+callbacks.EarlyStopping={monitor:train/loss,stopping_threshold:100.0,check_on_train_epoch_end:false}"
    run = tiny_run(stops, "trainer.max_steps=6", "trainer.val_check_interval=2")
    assert run.status == 0
    assert max(run.values("train/loss")) < 6
    for wrong, words in {
        "+callbacks.ModelCheckpoint.monitor=x": "callbacks.ModelCheckpoint cannot be added: this program does its work",
        "+callbacks.EarlyStoping.monitor=x": "callbacks.EarlyStoping is not a setting, nor a callback of Lightning's",
        "+callbacks.EarlyStopping.monitr=x": "callbacks.EarlyStopping cannot be made",
    }.items():
        assert tiny_run(wrong, name="wrong").status == 2
        assert words in capsys.readouterr().err


def test_a_run_whose_part_is_missing_says_so_and_imports_nothing(tmp_path: Path) -> None:
    from transformer_xl.run_folder import write_config

    write_config(txl.compose("optimizer=lion", plugins=[str(PARTS / "lion.py")]), tmp_path)
    _forget("optimizer", "lion")
    with pytest.raises(UserError, match=r"optimizer.kind is 'lion' .*a part of your own needs plugins="):
        txl.compose(f"resume={tmp_path}")


def _forget(kind: str, name: str) -> None:
    del registry._entries[kind][name]


def test_a_memory_that_no_resume_would_find_is_refused_before_training(
    tiny_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (PARTS / "linear_recurrence.py").read_text().replace('@register("memory", "decay")\n', "")
    (tmp_path / "forgets.py").write_text(text)
    plugin = f"plugins=[{tmp_path / 'forgets.py'}]"
    run = tiny_run("data=recall", "model=linear_recurrence", *QUIET, plugin, base=False)
    sys.modules.pop("forgets")
    assert run.status == 2
    assert "no memory is registered as 'decay'" in capsys.readouterr().err


def test_a_taken_name_and_a_taken_module_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import transformer_xl as txl\n@txl.register('optimizer', 'adam')\ndef adam(groups, settings): ...\n"
    )
    with pytest.raises(UserError, match=r"optimizer 'adam' of mine.adam is taken"):
        txl.compose(plugins=[str(tmp_path / "mine.py")])
    (tmp_path / "json.py").write_text("")
    with pytest.raises(UserError, match=r"another module is called json .*rename the file"):
        txl.compose(plugins=[str(tmp_path / "json.py")])
    sys.modules.pop("mine", None)


@pytest.mark.slow
def test_parts_are_swept_and_train_on_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "train.py"), plugins("lion", "sums"), *CHOSEN["lion"], *CHOSEN["sums"]]
    command += ["-m", "optimizer.beta1=0.8,0.9", "trainer.devices=2", "trainer.accelerator=cpu", "trainer.max_steps=3"]
    command += ["data.batch_size=4", "data.segment_len=5", "model.n_layer=1", "model.d_model=16", "logger=none"]
    command += ["callbacks.report.memory_tokens=0", "hydra.sweep.dir=sweep"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for number, beta1 in enumerate((0.8, 0.9)):
        checkpoint: Any = torch.load(tmp_path / f"sweep/{number}/checkpoints/last.ckpt", weights_only=True)
        assert checkpoint["config"]["optimizer"]["beta1"] == beta1


def test_help_lists_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run("train", lambda call: None, [plugins("lion"), "--help"]) == 0
    assert "adam, adamw, lamb, lion, sgd" in capsys.readouterr().out
