"""The benchmark of memories: rows with as much state and as many tokens, one table, one picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import transformer_xl as txl
from tests.conftest import PARTS, parts_forgotten, plugins, run_training
from tests.test_configs import rows_of
from transformer_xl.commands.call import read
from transformer_xl.commands.memories import state_bytes
from transformer_xl.errors import UserError
from transformer_xl.model.base import make_model

NETWORKS = sorted(
    {"gated_delta", "linear_recurrence", "memory_tokens", "compressive"} & {p.stem for p in PARTS.iterdir()}
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with parts_forgotten():
        yield


def rows(*arguments: str) -> Mapping[str, str]:
    return read("train", ["train.py", "experiment=memory", *arguments]).rows


def test_it_is_a_sweep_over_rows_tasks_and_seeds_or_one_run() -> None:
    call = read("train", ["train.py", "experiment=memory", "row=full,gru", "jobs=3"])
    assert call.at_a_time == 3
    assert len(call.jobs()) == 2 * len(rows_of("memory", "tasks")) * 3
    assert not read("train", ["train.py", "experiment=memory", "row=full", "task=text", "seed=1"]).is_sweep
    with pytest.raises(UserError, match=r"task=mqr is none of experiment=memory \(the nearest is mqar\)"):
        rows("task=mqr")


def test_networks_and_encodings_of_plugins_are_rows() -> None:
    found = rows(plugins("linear_recurrence", "alibi", "lion"))
    shipped = {f"{key[:-1]}={name}" for key in ("rows", "tasks") for name in rows_of("memory", key)}
    assert found.keys() - shipped == {"row=linear_recurrence", "row=alibi"}
    assert found["row=alibi"] == f"{found['row=full']} model/position=alibi"
    assert found["row=linear_recurrence"] == f"model=linear_recurrence {rows_of('memory', 'parts')['default']}"
    sized = rows(plugins("linear_recurrence"), "parts.linear_recurrence=model.n_layer=1 model.d_model=512")
    assert sized["row=linear_recurrence"] == "model=linear_recurrence model.n_layer=1 model.d_model=512"
    with pytest.raises(UserError, match=r"row=linear_recurence is none .*nearest is linear_recurrence"):
        rows(plugins("linear_recurrence"), "row=linear_recurence")


@pytest.mark.slow
def test_rows_have_as_much_state_and_as_many_tokens() -> None:
    given = [str(PARTS / f"{name}.py") for name in (*NETWORKS, "alibi")]
    sizes, tokens = {}, set()
    for row in (*rows_of("memory"), *NETWORKS, "alibi"):
        config = txl.compose("experiment=memory", f"row={row}", "task=text", "seed=1", plugins=given)
        sizes[row] = state_bytes(make_model(config.model, vocab_size=256).eval())
        tokens.add(
            config.trainer.max_steps * config.data.bptt_segments * config.data.batch_size * config.data.segment_len
        )
    assert sizes.pop("none") < 10
    assert sizes == {row: pytest.approx(2048, rel=0.03) for row in sizes}
    assert len(tokens) == 1


@pytest.mark.slow
def test_one_table_and_picture_twice_the_same(tmp_path: Path) -> None:
    tables = []
    for name in ("one", "two"):
        folder = tmp_path / name
        outcome = run_training(
            [
                "experiment=memory",
                plugins("linear_recurrence"),
                "row=full,linear_recurrence",
                "task=recall_16,mqar",
                "recipe.max_steps=3",
                "trainer.limit_test_batches=8",
                f"hydra.sweep.dir={folder}",
            ],
            tmp_path,
        )
        assert outcome.status == 0, outcome.stderr
        assert "job 12 of 12: seed=3 row=linear_recurrence task=mqar" in outcome.stderr
        assert "tokens" not in outcome.stderr, "what jobs print is in their folders"
        assert "folder " in (folder / "0" / "printed.txt").read_text()
        assert (folder / "memories.png").stat().st_size > 1000
        header, full, recurrence, *_ = outcome.stdout.splitlines()
        assert header.split("  ")[0] == "row"
        assert "recall_16 (accuracy)" in header
        tables.append([line.rsplit(maxsplit=2)[0] for line in (full, recurrence)])  # without the speeds
    assert tables[0] == tables[1]
    assert [line.count(" ± ") for line in tables[0]] == [2, 2]
