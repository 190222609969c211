"""Type rules of StableHLO's ops, by kind. The numbers of constraints are those of StableHLO's specification."""
