"""Explanations as HTML: a page of its own, and what a notebook shows. All of it comes from the explanation's JSON."""
