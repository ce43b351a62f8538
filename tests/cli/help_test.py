# SPDX-License-Identifier: Apache-2.0
"""The program's help, and the manual page and the completions that the build generates with it."""

import pathlib
import re
import shlex
import shutil
import subprocess
import unittest

from program import ProgramTest, run
import tap

COMMANDS = ("attend", "map", "plan", "bench", "info")


def help_of(*command):
    result = run(*command, "--help")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


class HelpTest(ProgramTest):
    def test_fits_a_terminal(self):
        widths = []
        for command in ([], *([name] for name in COMMANDS)):
            with self.subTest(command):
                lines = help_of(*command).splitlines()
                self.assertIn(f"Usage: {' '.join(['annulus', *command])} ", lines[0])
                self.assertEqual([line for line in lines if line != line.rstrip()], [])
                widths += map(len, lines)
        self.assertTrue(80 < max(widths) <= 100, max(widths))

    def test_names_every_command(self):
        listed = re.findall(r"^  (\w+)  ", help_of().split("Options:")[0], re.MULTILINE)
        self.assertEqual(listed, list(COMMANDS))

    def test_examples_work(self):
        self.save_inputs((1, 64, 2, 8))
        for command in COMMANDS:
            with self.subTest(command):
                example = help_of(command).split("Example:\n")[1]
                words = shlex.split(example)
                self.assertEqual(words[:2], ["annulus", command])
                more = ["--repeats", 1] if command == "bench" else []
                result = run(*words[1:], *more, cwd=self.directory)
                self.assertEqual((result.returncode, result.stderr), (0, ""))


def options_of(*command):
    return re.findall(r"(?:^  |, )(--?[\w-]+)", "\n".join(
        line for line in help_of(*command).splitlines() if line.startswith("  -")), re.MULTILINE)


class ManualTest(ProgramTest):
    def generated(self, kind, file):
        result = run("--generate", kind)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.path(file).write_text(result.stdout, encoding="utf-8")
        return result.stdout

    def test_help_has_every_option_of_the_sources(self):
        sources = (pathlib.Path(__file__).resolve().parents[2] / "src" / "cli").rglob("*.cpp")
        named = {name for path in sources for name in re.findall(r'"(--[a-z0-9-]+)"', path.read_text(encoding="utf-8"))}
        listed = {option for command in ([], *([name] for name in COMMANDS)) for option in options_of(*command)}
        self.assertIn("--branch", named)
        self.assertEqual(named - listed, {"--generate"})

    def test_manual_page_has_every_option(self):
        page = self.generated("man", "annulus.1").replace("\\-", "-")
        for command in COMMANDS:
            section = page.split(f'.SH "annulus {command}"\n')[1].split(".SH ")[0]
            entries = re.findall(r"^\.TP\n(.*)$", section, re.MULTILINE)
            self.assertEqual([name for entry in entries for name in re.findall(r"\\fB(.*?)\\fR", entry)],
                             options_of(command))
            self.assertIn(f"\nannulus {command} ", page.split(".SH EXAMPLES")[1])
        for option in options_of():
            self.assertIn(f"\\fB{option}\\fR", page)

    @unittest.skipUnless(shutil.which("groff"), "needs groff")
    def test_manual_page_is_well_formed(self):
        self.generated("man", "annulus.1")
        result = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-z", self.path("annulus.1")], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def complete(self, *words):
        """Returns bash's completions of the last word."""
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _annulus 2>&1; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        result = subprocess.run(["bash", "-c", script, "bash", self.path("annulus.bash"), "annulus", *words], text=True,
                                stdout=subprocess.PIPE, check=True, cwd=self.directory)
        return result.stdout.split()

    def test_bash_completes_every_option(self):
        self.generated("bash", "annulus.bash")
        self.assertEqual(self.complete(""), [*COMMANDS, *options_of()])
        self.assertEqual(self.complete("pl"), ["plan"])
        for command in COMMANDS:
            self.assertCountEqual(self.complete(command, "-"), options_of(command))
        self.assertEqual(self.complete("plan", "--tokens", "5", "--exchange", ""), ["auto", "ring", "gather"])
        self.assertEqual(self.complete("attend", "--q", "ann"), ["annulus.bash"])
        self.assertEqual(self.complete("plan", "--tokens", ""), [])
        self.assertEqual(self.complete("plan", "--device", ""), ["cpu", "cuda"])
        self.assertEqual(self.complete("attend", "--preset", ""), ["gigapath", "longnet:"])
        self.assertEqual(self.complete("bench", "--preset", "l"), ["longnet:"])

    def test_zsh_completes_every_option(self):
        script = self.generated("zsh", "_annulus")
        for command in COMMANDS:
            part = script.split(f"\n    {command})\n")[1].split(";;")[0]
            self.assertCountEqual(re.findall(r"^ +'\*?(--?[\w-]+)\[", part, re.MULTILINE), options_of(command))
            self.assertIn(":NAME:(cpu cuda)'", part + ":NAME:(cpu cuda)'" * (command == "info"))
        self.assertIn(r":NAME:(gigapath longnet\:)'", script)
        if shutil.which("zsh"):
            result = subprocess.run(["zsh", "-n", self.path("_annulus")], stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    tap.main()
