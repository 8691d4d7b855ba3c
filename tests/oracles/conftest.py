"""One thread for each test: at toy size a second one only waits."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
