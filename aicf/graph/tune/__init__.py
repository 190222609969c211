"""Tuning: the kernels that a model's regions could have, run on random data, verified, timed, and written down."""

from .progress import Progress, no_progress, progress_bar
from .report import Question, Report
from .session import Ask, tune

__all__ = ["Ask", "Progress", "Question", "Report", "no_progress", "progress_bar", "tune"]
