"""Where the time of a run goes: each step of a plan measured where it stands, beside its prediction."""

from .result import Profile, StepTime
from .session import MEDIAN_OF, checked_runs, measure, random_feed

__all__ = ["MEDIAN_OF", "Profile", "StepTime", "checked_runs", "measure", "random_feed"]
