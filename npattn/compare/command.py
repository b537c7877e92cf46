"""`python -m npattn compare`."""
import json as text
import sys

from .check import check_dump
from .layout import DumpError


def compare_command(path, mechanism=None, layout=None, json=False):
    """Print the report on a dump; the exit status: 0 right, 1 wrong, 2 a dump that cannot be used (one line on stderr)."""
    try:
        report = check_dump(path, mechanism, layout)
    except DumpError as error:
        print(f"npattn compare: {error}", file=sys.stderr)
        return 2
    print(text.dumps(report.as_dict()) if json else report)
    return 0 if report.right else 1
