"""Runs test functions and test cases in a sandbox and prints the outcome of each.

`unit_tests.py` sends this file into the sandbox and reads its output. It uses the standard library only.
"""
# ruff: noqa: E402  the work folder must leave `sys.path` before anything is imported

import sys

# The work folder may hold a `json.py`, so it joins `sys.path` only after the standard library's modules are imported.
_folder = sys.path[0] if sys.argv[0] == "main.py" else None
if _folder is not None:
    del sys.path[0]

import importlib.util
import json
import os
import traceback
import unittest


def tell_with(word, out):
    """Return a function that writes one outcome as a line. The line begins with the secret word of the run."""

    def tell(test, outcome, message=""):
        line = word + json.dumps({"test": test, "outcome": outcome, "message": message}) + "\n"
        os.write(out, line.encode())

    return tell


def load(path):
    """Import a test file. Returns its module."""
    name = os.path.splitext(path)[0].replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def why(fault):
    """The last line of a traceback, with the last line of a file in the work folder that it passed through."""
    said = traceback.format_exception_only(type(fault), fault)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if _own(frame.filename)]
    last = frames[-1] if frames else None
    source = f" in `{last.line}`" if last is not None and last.line and said == type(fault).__name__ else ""
    return f"{said}{source}" + (f" ({os.path.basename(last.filename)}, line {last.lineno})" if last else "")


def _own(path):
    return os.path.abspath(path).startswith(os.getcwd() + os.sep) and os.path.basename(path) != ".palaestra_tests.py"


def attempt(tell, name, run):
    """Run one test and write its outcome."""
    try:
        run()
    except AssertionError as fault:
        tell(name, "failed", why(fault))
    except BaseException as fault:
        tell(name, "error", why(fault))
    else:
        tell(name, "passed")


def run_case(cls, method):
    """Run one method of a test case, with `setUp` and `tearDown`. Raises the first fault."""
    faults = []
    result = unittest.TestResult()
    result.addFailure = result.addError = lambda test, err: faults.append(err[1])
    result.addSubTest = lambda test, subtest, err: faults.append(err[1]) if err else None
    result.addUnexpectedSuccess = lambda test: faults.append(AssertionError("it was expected to fail"))
    cls(method).run(result)
    if faults:
        raise faults[0]


def run_file(tell, path):
    """Run all tests of a file, in the order of the file."""
    stem = os.path.splitext(path)[0]
    try:
        module = load(path)
    except BaseException as fault:
        tell(f"{stem}::*", "error", why(fault))
        return
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            for method in [key for key in vars(value) if key.startswith("test")]:
                attempt(tell, f"{stem}::{name}.{method}", lambda c=value, m=method: run_case(c, m))
        elif name.startswith("test_") and callable(value):
            attempt(tell, f"{stem}::{name}", value)


def main():
    """Read which files to run, keep standard output for the outcomes, and run the tests."""
    asked = json.loads(sys.stdin.readline())
    out, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    sys.path.insert(0, os.getcwd())
    tell = tell_with(asked["word"], out)
    for path in asked.pop("paths"):
        run_file(tell, path)
    os._exit(0)


if __name__ == "__main__":
    main()
