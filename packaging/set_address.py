# SPDX-License-Identifier: Apache-2.0
"""set_address.py URL MAIL [TREE]: writes the address of the project's git repository, such as
https://example.org/annulus, and the maintainers' mail address, such as annulus@example.org, to the files that tell them
to others. TREE is this tree unless given. Addresses that are there are replaced, in Debian's changelog the newest."""

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


def set_mail(path, mail):
    """Replaces the first mail address of the file."""
    text, count = re.subn(r"<\S+@\S+>", f"<{mail}>", path.read_text(), count=1)
    if not count:
        raise SystemExit(f"set_address.py: {path} must have a mail address such as <annulus@example.org>")
    path.write_text(text)


def main(url, mail, tree):
    if not re.fullmatch(r"https://[\w.-]+(/[\w.~-]+)+", url):
        raise SystemExit(f"set_address.py: URL is {url!r}; it must be an address such as https://example.org/annulus")
    if not re.fullmatch(r"[\w.+-]+@[\w-]+(\.[\w-]+)+", mail):
        raise SystemExit(f"set_address.py: MAIL is {mail!r}; it must be an address such as annulus@example.org")
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
    for name in "control", "changelog":
        set_mail(debian / name, mail)
    (debian / "watch").write_text(WATCH.format(url=url))
    for crate in "annulus", "annulus-sys":
        manifest = tree / "bindings/rust" / crate / "Cargo.toml"
        set_lines(manifest, 'license = "Apache-2.0"\n', f'repository = "{url}"\n', r"^repository = .*\n")
    set_lines(tree / "CITATION.cff", "license: Apache-2.0\n", f"repository-code: {url}\n", r"^repository-code: .*\n")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: set_address.py URL MAIL [TREE]")
    tree = pathlib.Path(sys.argv[3]) if len(sys.argv) == 4 else pathlib.Path(__file__).parent.parent
    main(sys.argv[1], sys.argv[2], tree)
