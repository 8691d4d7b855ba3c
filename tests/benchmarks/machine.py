"""Where and when it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def bfloat16_units() -> str:
    """Name what multiplies bfloat16 here."""
    units = torch.cpu.get_capabilities()
    names = [name for name in ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16") if units.get(name)]
    return ", ".join(names) or "no bfloat16 units"


def revision() -> str:
    """Name the commit that is measured, and whether files differ from it."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def described(*, threads: int, command: str, versions: dict[str, dict[str, str]]) -> dict[str, str]:
    """Give machine, date, versions and command in words, as they stand above the tables."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores ({bfloat16_units()}), {memory:.0f} GiB; {threads} threads",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": "; ".join(
            f"{side}: {', '.join(f'{name} {version}' for name, version in of_side.items())}"
            for side, of_side in sorted(versions.items())
        ),
        "commit": revision(),
        "command": command,
    }
