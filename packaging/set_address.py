# SPDX-License-Identifier: Apache-2.0
"""set_address.py URL [TREE]: writes the address of the project's git repository, such as https://example.org/annulus,
to the files that tell it to others. TREE is this tree unless given. An address that is there is replaced."""

import pathlib
import re
import sys

WATCH = """\
version=4
opts="mode=git, pgpmode=none" \\
 {url}.git refs/tags/v([\\d.]+)
"""


def set_lines(path, anchor, lines, pattern):
    """Puts lines behind the line `anchor`, in the place of what matches the pattern."""
    text = re.sub(pattern, "", path.read_text(), flags=re.MULTILINE)
    if text.count(anchor) != 1:
        raise SystemExit(f"set_address.py: {path} must have the line {anchor.strip()!r} once")
    path.write_text(text.replace(anchor, anchor + lines))


def main(url, tree):
    if not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        raise SystemExit(f"set_address.py: URL is {url!r}; it must be an address such as https://example.org/annulus")
    url = re.sub(r"\.git$", "", url)
    set_lines(
        tree / "pyproject.toml",
        "dependencies = ['numpy']\n",
        f"\n[project.urls]\nHomepage = '{url}'\n",
        r"\n\[project\.urls\]\n(\w+ = .*\n)+",
    )
    debian = tree / "packaging/debian"
    fields = f"Homepage: {url}\nVcs-Browser: {url}\nVcs-Git: {url}.git\n"
    set_lines(debian / "control", "Rules-Requires-Root: no\n", fields, r"^(Homepage|Vcs-\w+): .*\n")
    (debian / "watch").write_text(WATCH.format(url=url))
    for crate in "annulus", "annulus-sys":
        manifest = tree / "bindings/rust" / crate / "Cargo.toml"
        set_lines(manifest, 'license = "Apache-2.0"\n', f'repository = "{url}"\n', r"^repository = .*\n")
    set_lines(tree / "CITATION.cff", "license: Apache-2.0\n", f"repository-code: {url}\n", r"^repository-code: .*\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: set_address.py URL [TREE]")
    main(sys.argv[1], pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else pathlib.Path(__file__).parent.parent)
