"""Runs test functions and test cases and tells the outcome of each: the part that is sent into a sandbox.

Knows the standard library only: `unit_tests.py` sends this file and reads its lines.
"""
# ruff: noqa: E402  the work folder must be out of the way before anything is imported

import sys

# The work folder may hold a `json.py`: everything that is needed comes from the standard library, before it counts.
_folder = sys.path[0] if sys.argv[0] == "main.py" else None
if _folder is not None:
    del sys.path[0]

import importlib.util
import json
import os
import traceback
import unittest


def tell_with(word, out):
    """A function that writes one outcome as a line which begins with the run's word."""

    def tell(test, outcome, message=""):
        line = word + json.dumps({"test": test, "outcome": outcome, "message": message}) + "\n"
        os.write(out, line.encode())

    return tell


def load(path):
    """The module of a test file."""
    name = os.path.splitext(path)[0].replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def why(fault):
    """The last line of a traceback with the line of the test file where it was raised."""
    said = traceback.format_exception_only(type(fault), fault)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if _own(frame.filename)]
    last = frames[-1] if frames else None
    source = f" in `{last.line}`" if last is not None and last.line and said == type(fault).__name__ else ""
    return f"{said}{source}" + (f" ({os.path.basename(last.filename)}, line {last.lineno})" if last else "")


def _own(path):
    return os.path.abspath(path).startswith(os.getcwd() + os.sep) and os.path.basename(path) != ".palaestra_tests.py"


def attempt(tell, name, run):
    """Run one test and tell its outcome."""
    try:
        run()
    except AssertionError as fault:
        tell(name, "failed", why(fault))
    except BaseException as fault:
        tell(name, "error", why(fault))
    else:
        tell(name, "passed")


def run_case(cls, method):
    """One method of a test case with its preparation and its end."""
    faults = []
    result = unittest.TestResult()
    result.addFailure = result.addError = lambda test, err: faults.append(err[1])
    result.addSubTest = lambda test, subtest, err: faults.append(err[1]) if err else None
    result.addUnexpectedSuccess = lambda test: faults.append(AssertionError("it was expected to fail"))
    cls(method).run(result)
    if faults:
        raise faults[0]


def run_file(tell, path):
    """All tests of a file, in its order."""
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
    """Read what to run, keep standard output for the outcomes, run."""
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
