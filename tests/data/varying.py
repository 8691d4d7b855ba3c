"""Lengths of segments that vary as the published code's do."""

from transformer_xl.data.segments import Lengths


def varying(*, segment_len: int, sd: float, half_share: float) -> Lengths:
    return Lengths(segment_len=segment_len, sd=sd, half_share=half_share)
