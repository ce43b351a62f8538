# SPDX-License-Identifier: Apache-2.0
"""Runs the unittest cases of the calling script and reports them in TAP, one line for each case."""

import sys
import traceback
import unittest


class TapResult(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.bad = {}

    def line(self, test, good, directive=""):
        print(f"{'ok' if good else 'not ok'} {self.testsRun} - {test.id().rpartition('.')[2]}{directive}", flush=True)

    def note(self, test, error):
        for line in "".join(traceback.format_exception(*error)).splitlines():
            print("#", line)
        self.bad[getattr(test, "test_case", test).id()] = True

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            print("# in", subtest)
            self.note(subtest, err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(test, True, f" # SKIP {reason}")
        self.bad[test.id()] = None

    def stopTest(self, test):
        super().stopTest(test)
        if self.bad.get(test.id(), False) is not None:
            self.line(test, test.id() not in self.bad)


def main():
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    print(f"1..{suite.countTestCases()}", flush=True)
    result = TapResult()
    suite.run(result)
    sys.exit(0 if result.wasSuccessful() else 1)


def skip_all(reason):
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
