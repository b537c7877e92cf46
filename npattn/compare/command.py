"""`python -m npattn compare`."""
import json as text
import sys
import time

from .explain import diagnose
from .layout import DumpError
from .simulate import simulate


def compare_command(path, mechanism=None, layout=None, json=False, no_pairs=False, simulated=None):
    """Print what is known about a dump; the exit status: 0 right, 1 wrong, 2 a dump that cannot be used (one line on stderr)."""
    try:
        if simulated:
            found, status = simulate(path, simulated, mechanism, layout), 0
        else:
            found = diagnose(path, mechanism, layout, pairs=not no_pairs, progress=progress())
            status = 0 if found.right else 1
    except DumpError as error:
        print(f"npattn compare: {error}", file=sys.stderr)
        return 2
    print(text.dumps(found.as_dict()) if json else found)
    return status


def progress():
    """A line on the terminal about how many pairs have been tried; nothing where stderr is no terminal."""
    last = [time.monotonic()]

    def show(done, of):
        if sys.stderr.isatty() and (done == of or time.monotonic() - last[0] > 0.2):
            last[0] = time.monotonic()
            print(f"\r{done} of {of} pairs of hypotheses" if done < of else "\r\033[K", end="", file=sys.stderr, flush=True)
    return show
