"""Tuning: the kernels that a model's regions could have, run on random data, verified, timed, and written down."""

from .report import Question, Report
from .session import Ask, tune

__all__ = ["Ask", "Question", "Report", "tune"]
