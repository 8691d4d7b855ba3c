"""What reaches Weights & Biases, read back from its own files with its own command."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outcome, run_training, tiny_overrides

pytestmark = pytest.mark.slow  # tests/oracles/test_wandb_run.py is not

SAMPLES = "callbacks.sample.n_tokens=4"


def records(folder: Path) -> list[dict[str, Any]]:
    (log,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(log)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def history(folder: Path) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records(folder) if record["type"] == "history"]


def run_watched(text_file: Path, tmp_path: Path, *overrides: str, name: str = "run", **environment: str) -> Outcome:
    arguments = [
        *(argument for argument in tiny_overrides(text_file, tmp_path) if argument != "logger=none"),
        SAMPLES,
        "logger.tags=[a,b]",
        *overrides,
        f"hydra.run.dir={tmp_path / name}",
    ]
    clean = {"WANDB_API_KEY": None, "WANDB_MODE": None, "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    return run_training(arguments, tmp_path, **{**clean, **environment})


@pytest.fixture(scope="module")
def offline(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = run_watched(text_file, tmp_path_factory.mktemp("offline"))
    assert outcome.status == 0, outcome.stderr
    return outcome


def test_without_a_key_the_run_is_offline_and_says_how_to_upload_it_in_one_line(offline: Outcome) -> None:
    (line,) = [line for line in offline.stdout.splitlines() if line.startswith("monitor")]
    assert "offline" in line
    assert "wandb sync" in line
    assert "wandb:" not in offline.stdout + offline.stderr


def test_one_run_with_the_nested_resolved_configuration(offline: Outcome) -> None:
    (run,) = [record["run"] for record in records(offline.folder) if record["type"] == "run"]
    config = run["config"]["update"]
    assert config["model"]["d_model"] == 16
    assert config["eval"]["segment_len"] == 5
    assert "${" not in json.dumps(config)
    assert run["display_name"] == "run"
    assert run["run_id"] == offline.checkpoint()["run_id"]


def test_history_has_one_strictly_increasing_axis_and_every_figure(offline: Outcome) -> None:
    rows = history(offline.folder)
    steps = [row["trainer/global_step"] for row in rows if "train/loss" in row]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert all(one <= other for one, other in zip(rows_steps(rows), rows_steps(rows)[1:], strict=False))
    seen = {key for row in rows for key in row}
    assert seen >= {
        *("train/loss", "train/bpc", "val/loss", "val/bpc", "test/loss", "lr", "train/grad_norm"),
        *("train/clipped_share", "tokens_per_second", "mfu", "tokens"),
    }
    assert any(key.startswith("samples") for key in seen)


def rows_steps(rows: list[dict[str, Any]]) -> list[int]:
    return [row["trainer/global_step"] for row in rows if "trainer/global_step" in row]


def test_wandb_and_metrics_file_say_the_same(offline: Outcome) -> None:
    logged = {row["trainer/global_step"]: row["train/loss"] for row in history(offline.folder) if "train/loss" in row}
    assert logged == offline.values("train/loss")


def test_wandb_mode_wins(text_file: Path, tmp_path: Path) -> None:
    outcome = run_watched(text_file, tmp_path, WANDB_MODE="disabled")
    assert outcome.status == 0, outcome.stderr
    assert "W&B: disabled" in outcome.stdout
    assert not list(outcome.folder.glob("wandb/*run-*"))


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.close()


def test_an_unreachable_server_means_offline_in_one_line_within_seconds(
    text_file: Path, tmp_path: Path, silent_server: str
) -> None:
    key = {"WANDB_API_KEY": "x" * 40, "WANDB_BASE_URL": silent_server}
    outcome = run_watched(text_file, tmp_path, "logger.timeout_seconds=4", **key)
    assert outcome.status == 0, outcome.stderr
    (line,) = [line for line in outcome.stdout.splitlines() if line.startswith("monitor")]
    assert "offline" in line
    assert "context deadline exceeded" in line
    assert history(outcome.folder)
