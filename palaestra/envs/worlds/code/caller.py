"""Calls functions of a submission and tells what they returned: the part that is sent into a sandbox.

Knows the standard library only: `judging.py` sends this file and reads its last line. It shares its process with the
submission, which may tell anything in its stead. So it gets inputs and never what they should give: whoever compares
is another process, and telling the right values is all that a submission can do.
"""

import importlib
import json
import os
import sys


def plain(value):
    """The value, if it is made of numbers, strings and lists only."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [plain(one) for one in value]
    raise TypeError(f"returned a {type(value).__name__}")


def called(module, function, x):
    """What a call returned, or why it did not."""
    try:
        return {"value": plain(getattr(importlib.import_module(module), function)(x))}
    except BaseException as fault:  # also SystemExit: it ends one call, not the others
        try:
            return {"error": f"{type(fault).__name__}: {fault}"[:200]}
        except BaseException:
            return {"error": "an error that cannot be shown"}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)  # what the submission prints is no answer
    told = [called(*one) for one in asked]
    os.write(answers, ("\n" + json.dumps(told)).encode())
    os._exit(0)  # threads and exit handlers of the submission have nothing more to do here
