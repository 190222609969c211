"""Tests of several ranks: by threads around one mesh, and by processes that train."""
