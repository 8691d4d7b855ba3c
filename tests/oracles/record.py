"""Write what the program gives now as what it must give: python -m tests.oracles.record [MODULE ...]."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path

import torch

from tests.oracles import recorded

MODULES = ["corpora", "inference", "initial_weights", "run_folders", "small_runs"]


def main() -> None:
    torch.set_num_threads(1)
    for module in sys.argv[1:] or MODULES:
        tests, entries = importlib.import_module(f"tests.oracles.test_{module}"), {}
        for name in tests.CASES:
            with tempfile.TemporaryDirectory() as work:
                entries[name] = tests.observe(name, Path(work))
            print(f"{module}: {name}")
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
        (recorded.FOLDER / f"{module}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
