# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the pages as they stand in the tree, the reference of C from the headers, and that of Python from the package
that was built, which PYTHONPATH names."""

import importlib.util
import pathlib
import re
import shutil
import sys

from docutils.parsers.rst import Directive

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings"))

from emit.api import read_headers  # noqa: E402
from emit.rst import reference, rst  # noqa: E402

project = "annulus"
version = release = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))[1]
html_title = f"{project} {version}"
html_theme = "furo"
html_theme_options = {
    # Furo's own. Debian's build of it has them for those who press the button, not for those whose system is dark.
    "dark_css_variables": {
        "color-problematic": "#ee5151",
        "color-foreground-primary": "#ffffffcc",
        "color-foreground-secondary": "#9ca0a5",
        "color-foreground-muted": "#81868d",
        "color-foreground-border": "#666666",
        "color-background-primary": "#131416",
        "color-background-secondary": "#1a1c1e",
        "color-background-hover": "#1e2124",
        "color-background-hover--transparent": "#1e212400",
        "color-background-border": "#303335",
        "color-background-item": "#444",
        "color-brand-primary": "#2b8cee",
        "color-brand-content": "#368ce2",
        "color-highlighted-background": "#083563",
        "color-highlight-on-target": "#333300",
    },
}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["README.md", "ABI.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md",
                    "doc/*.md", "doc/notes/*.md", "doc/site/*.rst"]
exclude_patterns = ["build*"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]
pygments_dark_style = "github-dark"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = [name for name in ("jax", "jaxlib", "torch") if importlib.util.find_spec(name) is None]

# The pages in the order of the table at README.md's end.
CONTENTS = """

```{toctree}
:hidden:

doc/quickstart
doc/tutorial
doc/semantics
doc/migration
doc/c
doc/python
doc/program
doc/ranks
doc/many_gpus
doc/slides
doc/performance
doc/figures
doc/limits
doc/troubleshooting
doc/building
doc/architecture
doc/notes/index
doc/notes/forward
doc/notes/backward
doc/notes/planning
doc/notes/permutation
doc/notes/ranks
doc/notes/mma
doc/site/c_reference
doc/site/python_reference
CHANGELOG
ABI
doc/abi_plans
SECURITY
CONTRIBUTING
RELEASING
```
"""


class Headers(Directive):
    """The reference of the C API."""

    def run(self):
        headers = ROOT / "api/annulus"
        for path in headers.glob("*.h"):
            self.state.document.settings.record_dependencies.add(str(path))
        found = read_headers(shutil.which("swig"), ROOT / "api", ROOT / "bindings/annulus.i")
        self.state_machine.insert_input(reference(headers, found), str(headers))
        return []


def read_page(app, name, source):
    """Links to headers lead to the reference, and of a link to another directory, which leads nowhere in the site, the
    words stay. README has the table of contents."""
    to = "" if name.startswith("doc/") else "doc/"

    def link(found):
        words, target = found.groups()
        if re.fullmatch(r"(\.\./)?api/annulus(/\w+\.h)?", target):
            return f"[{words}]({to}site/c_reference.rst)"
        return words if (ROOT / name).parent.joinpath(target).is_dir() else found[0]

    source[0] = re.sub(r"\[([^][]+)\]\(([^)#]+)\)", link, source[0])
    if name == root_doc:
        source[0] += CONTENTS


def read_docstring(app, what, name, thing, options, lines):
    lines[:] = rst("\n".join(lines).strip("\n"), {}) + [""]


def write_index(app, error):
    """The first page by the name that browsers and servers look for."""
    if not error:
        shutil.copy(pathlib.Path(app.outdir) / "README.html", pathlib.Path(app.outdir) / "index.html")


def mend_theme(app, error):
    """Of Debian's Furo the script is a module that its pages do not load as one, importing what is none, and the style
    imports a file of Debian's web servers. Without the script there are no buttons for light and dark."""
    if error:
        return
    static = pathlib.Path(app.outdir) / "_static"
    module = 'import Gumshoe from "./gumshoe-patched.js";\n'
    style = "@import url(/javascript/normalize.css/normalize.css);\n"
    script = (static / "scripts/furo.js").read_text(encoding="utf-8")
    if script.startswith(module):
        gumshoe = (static / "scripts/gumshoe-patched.js").read_text(encoding="utf-8")
        (static / "scripts/furo.js").write_text(gumshoe + script.removeprefix(module), encoding="utf-8")
    sheet = static / "styles/furo.css"
    sheet.write_text(sheet.read_text(encoding="utf-8").removeprefix(style), encoding="utf-8")


def setup(app):
    app.add_directive("annulus-headers", Headers)
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("build-finished", write_index)
    app.connect("build-finished", mend_theme)
