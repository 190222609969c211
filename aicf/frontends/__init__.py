"""Models of other frameworks, read into aicf's graph. Nothing here imports a framework before it is asked for one of its models."""
