"""The documentation site: `make docs` builds it into site/ from the Markdown files, the docstrings and the records of ops and kernels.

Sphinx reads a copy of the documents, laid out as they are in the repository, with what is generated beside them; so links between
files mean the same on GitHub and on the site. Nothing of the copy is committed, and neither building nor reading takes a network.
"""
