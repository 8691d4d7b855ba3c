"""How a run ends when it does not simply finish."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake of the user's: its text is one sentence that names the setting, its value, and what would be right."""


class OneProcessError(UserError):
    """A mistake that shows in one process of several, maybe not the main one: that process tells it and fails."""


class Stopped(Exception):  # noqa: N818 - not an error: the run was asked to end, and did so in order
    """The run was asked to stop, has saved its checkpoint, and can be resumed.

    Attributes:
        exit_code: of the process.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def first_line(error: BaseException) -> str:
    """Give an error's text on one line of bounded length."""
    return " ".join(str(error).split())[:300] or type(error).__name__
