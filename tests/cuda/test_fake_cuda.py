"""Training, reading and generating on pretended CUDA tensors; see `pretend.py`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import REPOSITORY

SOURCE = Path(__file__).with_name("guard.cpp")
RELEASE = "2.13."
PLANTED = {
    "a tensor without a device": "DeviceMismatch",
    "a number that is read": "DataDependentOutputException",
    "a copy that is waited for": "the host waits",
}


@pytest.fixture
def guard(pytestconfig: pytest.Config) -> Path:
    """Give what stands in for a CUDA device, compiled once for each release of PyTorch."""
    compiler = shutil.which("g++")
    if compiler is None or torch.version.cuda is not None or not torch.__version__.startswith(RELEASE):
        pytest.skip(f"needs g++ and a CPU build of PyTorch {RELEASE}, whose internals it stands in for")
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = pytestconfig.cache.mkdir("fake_cuda") / f"{digest}.so"
    if not library.exists():
        root = Path(torch.__file__).parent
        temporary = library.with_suffix(f".{os.getpid()}.tmp")
        paths = [f"-I{root / 'include'}", f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"]
        command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", str(SOURCE), "-o", str(temporary), *paths]
        built = subprocess.run([*command, "-Wl,--no-as-needed", "-lc10", "-ltorch_cpu"], capture_output=True, text=True)
        if built.returncode:
            pytest.skip(f"guard.cpp does not build against PyTorch {torch.__version__}: {built.stderr[:500]}")
        temporary.replace(library)
    return library


@pytest.mark.slow
def test_nothing_stands_on_the_wrong_device_or_waits_for_it(guard: Path) -> None:
    load = f"import ctypes; ctypes.CDLL({str(guard)!r}, mode=ctypes.RTLD_GLOBAL).register_guard()"
    command = [sys.executable, "-c", f"{load}; from tests.cuda.pretend import main; main()"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    found = {name: outcomes.pop(name) for name in PLANTED}
    assert {name: error for name, error in outcomes.items() if error} == {}
    assert {name for name, words in PLANTED.items() if words not in found[name]} == set(), found
