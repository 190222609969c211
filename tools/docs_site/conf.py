"""Sphinx's settings, and the two things that it is taught: the style of aicf's docstrings, and that code in prose may be a public name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

import aicf
from tools.docs_site import house_style, reference

project = "aicf"
author = "the authors of aicf"
version = release = aicf.__version__
html_title = f"aicf {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
html_theme = "furo"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
html_show_copyright = html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
highlight_language = "python"
smartquotes = False  # "x" is a string
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = False

myst_heading_anchors = 4  # GitHub's
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # what a layer's `emit` is, is said once
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

PUBLIC = re.compile(r"(?:aicf\.)?((?:nn\.|models\.|training\.)?(?:\w+\.)*\w+)(?:\(.*\))?")


def _docstring(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    text = "\n".join(lines)
    generated = text.startswith(f"{name.rpartition('.')[2]}(")  # by dataclasses, where there is none
    lines[:] = [] if generated else house_style.to_rst(text)


def _signature(
    app: Any, what: str, name: str, found: Any, options: Any, given: str | None, returned: str | None
) -> Any:
    if what == "class" and name.rpartition(".")[2] in reference.INTERNAL:
        return "", None
    return None


def _link_names(app: Any, tree: nodes.document) -> None:
    """`nn.Linear(…)`, `aicf.compile`, `AICF_CHECK` and `aicf tune` in prose lead to the reference, where it has them."""
    for literal in list(tree.findall(nodes.literal)):
        target = _target(literal.astext())
        if target is None or isinstance(literal.parent, (nodes.reference, pending_xref, nodes.title)):
            continue
        domain, kind, name = target
        link = pending_xref(
            "", refdomain=domain, reftype=kind, reftarget=name, refexplicit=True, refwarn=False
        )
        literal.replace_self(link)
        link += literal


def _target(text: str) -> tuple[str, str, str] | None:
    if re.fullmatch(r"AICF_[A-Z_]+", text):
        return "std", "envvar", text
    if command := re.match(r"aicf ([a-z]+)\b", text):
        return "std", "ref", f"aicf-{command[1]}"
    name = PUBLIC.fullmatch(text)
    if name and text.startswith(("nn.", "aicf.")) and not text.startswith("aicf.frontends"):
        error = isinstance(getattr(aicf.errors, name[1], None), type)
        return "py", "obj", f"aicf.errors.{name[1]}" if error else f"aicf.{name[1]}"
    return None


_SIDEBARS: dict[str, str] = {}  # of folders


def _share_sidebar(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Pages that no table of contents lists, such as those of ops, have the sidebar of their folder: to resolve it takes 0.3 s a page.
    The first page resolves those of all folders, before several processes write the others."""
    if "toctree" not in context:
        return
    listed = {name for names in app.env.toctree_includes.values() for name in names}
    own, folder = context["toctree"], page.rpartition("/")[0]

    def shared(**options: Any) -> str:
        unlisted = set() if _SIDEBARS else app.env.found_docs - listed
        for name in sorted(unlisted | ({page} - listed)):
            if (place := name.rpartition("/")[0]) not in _SIDEBARS:
                _SIDEBARS[place] = app.builder._get_local_toctree(name, **options)
        return own(**options) if page in listed else _SIDEBARS[folder]

    context["toctree"] = shared


def setup(app: Any) -> dict[str, Any]:
    app.connect("html-page-context", _share_sidebar, priority=400)  # before the theme asks for it
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-read", _link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
