# SPDX-License-Identifier: Apache-2.0
"""What the program says of itself: its help."""

import re
import shlex

from program import ProgramTest, run
import tap

COMMANDS = ("attend", "plan", "bench", "info")


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


if __name__ == "__main__":
    tap.main()
