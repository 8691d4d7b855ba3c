"""The peers, each in a virtual environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

KEPT = "freed memory kept"
"""What a side's name ends with whose C library keeps freed memory for itself, as ours does in training."""

KEEPING = {"MALLOC_MMAP_THRESHOLD_": str(1 << 27), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""Environment that has any program do so, where its C library is GNU's, 2.35 or newer."""

TORCH = "torch>=2.9,<2.14"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A library that we are compared with.

    Attributes:
        name: as the tables have it.
        requirements: what pip installs.
        script: of its side, below `sides/`.
    """

    name: str
    requirements: tuple[str, ...]
    script: str


TRANSFORMERS = Peer(
    name="transformers",
    # numpy: transformers 4.37 imports it, and asks for no release
    requirements=("transformers==4.37.2", TORCH, "sacremoses", "numpy"),
    script="of_transformers.py",
)
X_TRANSFORMERS = Peer(
    name="x-transformers",
    requirements=("x-transformers==2.31.*", TORCH, "numpy"),
    script="of_x_transformers.py",
)


def python_of(peer: Peer, *, below: Path) -> Path:
    """Give the Python of a peer's environment, which is made where there is none, or one of other requirements.

    Args:
        peer: to install.
        below: the folder of the environments.

    Raises:
        subprocess.CalledProcessError: pip failed, and said why.
    """
    folder = below / f"environment-{peer.name}"
    python = folder / "bin" / "python"
    stamp = folder / "installed.json"
    wanted = json.dumps([sys.version, *peer.requirements])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {peer.name} into {folder}", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.requirements]
    subprocess.run(install, check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python
