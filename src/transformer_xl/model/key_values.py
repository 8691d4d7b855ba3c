"""What a layer keeps of a text while it is read under weights that stay as they are: its keys and values.

Letters: N heads, B lanes, T new tokens, C room for tokens, K kept tokens, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueBuffer:
    """Keys and values of one layer, newest last, in memory with room for more.

    New ones are written behind the others, and all are read where they lie. When the room is used up, those that are
    still wanted move to the front, or to a larger place if that would leave less room than half of what they take: a
    text costs a few copies of each token, however long it is, and a short one no more memory than its own.
    """

    def __init__(self) -> None:
        self._buffer_2NBCH = torch.empty(0)
        self._end = 0

    def append(self, key_value_2NBTH: Tensor, *, keep: int) -> Tensor:
        """Write keys and values of new tokens; give them with the `keep` before them, (2, N, B, K + T, H), a view.

        Nothing before these is read again.
        """
        tokens = key_value_2NBTH.shape[3]
        if self._buffer_2NBCH.dim() == 1 or self._end + tokens > self._buffer_2NBCH.shape[3]:
            self._make_room(key_value_2NBTH, keep=keep)
        start, self._end = self._end, self._end + tokens
        self._buffer_2NBCH[:, :, :, start : self._end] = key_value_2NBTH
        return self.newest(keep + tokens)

    def newest(self, count: int) -> Tensor:
        """Give the last `count` keys and values (2, N, B, K, H), a view."""
        return self._buffer_2NBCH[:, :, :, self._end - count : self._end]

    def clear(self) -> None:
        """Forget all."""
        self._end = 0

    def _make_room(self, like_2NBTH: Tensor, *, keep: int) -> None:
        *outer, tokens, width = like_2NBTH.shape
        wanted = keep + tokens + max(tokens, keep // 2)
        kept_2NBKH = self.newest(keep) if keep else None
        if self._buffer_2NBCH.dim() == 1 or self._buffer_2NBCH.shape[3] < wanted:
            # a normal tensor even in inference mode, so that it can be written to after it as well
            with torch.inference_mode(False):
                self._buffer_2NBCH = like_2NBTH.new_empty(*outer, wanted, width)
        elif kept_2NBKH is not None and self._end < 2 * keep:
            kept_2NBKH = kept_2NBKH.clone()  # old place and new one overlap
        if kept_2NBKH is not None:
            self._buffer_2NBCH[:, :, :, :keep] = kept_2NBKH
        self._end = keep
