"""`train.py` as a user starts it, slowed down in one method, which leaves a file for each process that is in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_xl.commands.train import main
from transformer_xl.training.module import LanguageModule


def slowed(method: Callable[..., Any], folder: Path, seconds: float) -> Callable[..., Any]:
    def wrapper(*arguments: Any) -> Any:
        (folder / f"in-{os.environ.get('RANK') or os.environ.get('LOCAL_RANK', '0')}").touch()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
        return method(*arguments)

    return wrapper


if __name__ == "__main__":
    method, seconds, folder = os.environ["SLOWED"].split(" ", 2)
    setattr(LanguageModule, method, slowed(getattr(LanguageModule, method), Path(folder), float(seconds)))
    main()
