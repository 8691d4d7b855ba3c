"""Compare the small runs with another checkout's, bit for bit: python -m tests.oracles.same_as TREE [CASE ...].

Both run in processes of their own, on this machine, with these very tests: only the program differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.oracles import test_small_runs
from tests.oracles.tiny import HERE

RUNS = "print the runs"


def bits(name: str, work: Path) -> dict[str, Any]:
    """Return a run's losses as written, and a checksum of each of its weights."""
    import transformer_xl as txl

    done = test_small_runs.run(name, work)
    lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    figures = [[line["name"], line["step"], line["value"]] for line in lines if line["name"] in test_small_runs.FIGURES]
    weights = {
        f"{checkpoint} {weight}": hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()
        for checkpoint in ("last", "best")
        for weight, tensor in txl.load_model(done.folder, checkpoint=checkpoint).named_parameters()
    }
    return {"figures": figures, "weights": weights}


def print_runs(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        with tempfile.TemporaryDirectory() as work:
            print(json.dumps({name: bits(name, Path(work))}), flush=True)


def runs_of(tree: Path, names: list[str]) -> dict[str, Any]:
    """Return what a checkout's program gives, from a process that imports it and these tests."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{HERE.parents[1]}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.oracles.same_as", RUNS, *names]
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {name: run for line in done.stdout.splitlines() for name, run in json.loads(line).items()}


def main() -> None:
    tree, *names = sys.argv[1:]
    names = names or list(test_small_runs.CASES)
    if tree == RUNS:
        print_runs(names)
        return
    theirs, ours = runs_of(Path(tree).absolute(), names), runs_of(HERE.parents[1], names)
    different = [name for name in names if ours[name] != theirs[name]]
    for name in different:
        pairs = zip(ours[name]["figures"], theirs[name]["figures"], strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), "none of the figures")
        weights = [key for key, value in ours[name]["weights"].items() if theirs[name]["weights"].get(key) != value]
        print(f"{name}: first difference {first}; {len(weights)} of {len(ours[name]['weights'])} weights differ")
    print(f"{len(names) - len(different)} of {len(names)} runs are the same, bit for bit")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
