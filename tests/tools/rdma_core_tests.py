# SPDX-License-Identifier: BSD-2-Clause
"""Runs one file of rdma-core's tests and notes each test's outcome.

rdma_core_tests.py DIRECTORY RESULTS FILE EXCLUDED [-k PATTERN]...

RESULTS gets a line for each test: file, test, passed|skipped|failed, reason, with tabs between.
EXCLUDED: tests that are not run, Class.test with blanks between. Exit status 1 if one failed, or
nothing was there to run.
"""
import os
import sys
import unittest

directory, results, name, excluded = sys.argv[1:5]
patterns = ['*%s*' % p for p in sys.argv[6::2]]
sys.path[:0] = [os.path.dirname(directory), directory]
sys.argv[1:] = ['--dev', 'vernic0', '--gid', '1']

from args_parser import parser  # noqa: E402

parser.parse_args()


class Result(unittest.TextTestResult):
    def note(self, test, outcome, reason=''):
        # A class or module that cannot be set up has no test's name.
        test_name = '.'.join(test.id().split('.')[-2:])
        with open(results, 'a') as f:
            f.write('%s\t%s\t%s\t%s\n' % (name, test_name, outcome, ' '.join(reason.split())))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, 'passed')

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, 'skipped', reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, 'failed', str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, 'failed', str(err[1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.note(subtest, 'failed', str(err[1]))


def cases(suite):
    """The single tests of a suite."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


loader = unittest.TestLoader()
loader.testNamePatterns = patterns or None
suite = unittest.TestSuite()
for case in cases(loader.loadTestsFromName('tests.' + name[:-3])):
    if '.'.join(case.id().split('.')[-2:]) not in excluded.split():
        suite.addTest(case)
outcome = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
sys.exit(not outcome.wasSuccessful() or (outcome.testsRun == 0 and not patterns))
