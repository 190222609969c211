"""Regions: which ops become one kernel, chosen online as the schedule is walked."""

from .online import Composed, Ended, Region, form_regions

__all__ = ["Composed", "Ended", "Region", "form_regions"]
