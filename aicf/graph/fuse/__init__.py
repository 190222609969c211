"""Regions: which ops become one kernel, chosen online as the schedule is walked."""

from .online import Ended, Region, form_regions

__all__ = ["Ended", "Region", "form_regions"]
