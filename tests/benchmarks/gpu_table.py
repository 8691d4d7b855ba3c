"""What was measured, printed as it comes, and kept as a Markdown table and as JSON."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

Values = dict[str, Any]


class Table:
    """Rows of several parts; both files are whole after each of them."""

    def __init__(self, folder: Path, *, device: torch.device, command: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._parts: dict[str, list[Values]] = {}
        self.about: Values = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": command,
        }

    def add(self, part: str, values: Values) -> None:
        """Print a row and write both files anew."""
        rows = self._parts.setdefault(part, [])
        if not rows:
            self.say(f"\n{part}")
        rows.append(values)
        self.say("  " + "  ".join(f"{name} {shown(value)}" for name, value in values.items() if value is not None))
        (self._folder / "gpu.json").write_text(json.dumps({"about": self.about, "parts": self._parts}, indent=1))
        (self._folder / "gpu.md").write_text(self.markdown())

    def say(self, line: str) -> None:
        """Print a line at once."""
        print(line, flush=True)

    def markdown(self) -> str:
        """Give all parts as Markdown tables."""
        lines = ["; ".join(f"{name} {shown(value)}" for name, value in self.about.items() if value is not None)]
        for part, rows in self._parts.items():
            names = list(dict.fromkeys(name for row in rows for name in row))
            lines += ["", f"**{part}**", "", f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
            lines += [f"| {' | '.join(shown(row.get(name)) for name in names)} |" for row in rows]
        return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """Write a value with as many digits as mean something."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
