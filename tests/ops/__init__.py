"""Tests of the ops, generated from their schemas. What a test has to know of one op is in `cases/`."""
