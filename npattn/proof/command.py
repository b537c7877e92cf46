"""`python -m npattn check`: every law, every proof and the shipped framework data, as a table or as JSON."""
import difflib
import json as json_module
import math
from collections import defaultdict

from ..catalogue import CATALOGUE
from ..compare.frameworks import framework_error
from .gradient_laws import GRADIENT
from .law import Verdict, judge
from .laws import FORWARD

FRAMEWORK, FRAMEWORK_VJP = "framework data", "framework gradients"

# heading, two lines: the laws whose figures stand under it (the first that applies); the others are counted in the last column
FORMS = {("loop = matrix", "= chunk"): ("forms",), ("equal as", "fractions"): ("fractions",), ("split and", "resume"): ("resume",),
         ("causal, bit", "for bit"): ("causal",), ("framework", "data"): (FRAMEWORK,)}
GRADIENTS = {("loop = matrix", "= chunk"): ("vjp",), ("", "tape"): ("tape",), ("", "exact dual"): ("exact dual",),
             ("complex", "step"): ("complex step", "central differences"), ("framework", "gradients"): (FRAMEWORK_VJP,)}
WIDTH = 14


def check_command(mechanisms, json):
    """Print the table; 0 if all holds, else 1.  ValueError for an unknown mechanism."""
    rows = [row_of(name) for name in dict.fromkeys(mechanisms)] or list(CATALOGUE.values())
    found = {}
    for title, columns, laws, framework in ("FORMS", FORMS, FORWARD, FRAMEWORK), ("GRADIENTS", GRADIENTS, GRADIENT, FRAMEWORK_VJP):
        json or print(heading(title, columns, rows))
        for row in rows:
            verdicts = {law.name: judge(law, row) for law in laws}
            verdicts[framework] = judge_framework(framework, row)
            found.setdefault(row.name, {}).update(verdicts)
            json or print(line(row, columns, verdicts, rows), flush=True)
        json or print()
    ok = all(v.ok for verdicts in found.values() for v in verdicts.values())
    print(json_module.dumps(dict(ok=ok, mechanisms={name: as_json(v) for name, v in found.items()}), indent=2) if json else notes(found))
    return 0 if ok else 1


def row_of(name):
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, 1)
    raise ValueError(f"unknown mechanism {name!r}" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(CATALOGUE)}"))


# --- text ------------------------------------------------------------------------------------------------------------

def heading(title, columns, rows):
    upper, lower = zip(*columns, ("other", "laws"))
    return "\n".join([" " * name_width(rows) + "".join(f"{word:>{WIDTH}}" for word in upper),
                      title.ljust(name_width(rows)) + "".join(f"{word:>{WIDTH}}" for word in lower)])


def name_width(rows):
    return max(len("GRADIENTS"), *(len(row.name) for row in rows))


def line(row, columns, verdicts, rows):
    shown = {law for laws in columns.values() for law in laws}
    cells = [cell(next((verdicts[law] for law in laws if verdicts[law].error is not None), None)) for laws in columns.values()]
    others = [v for law, v in verdicts.items() if law not in shown and v.error is not None]
    broken = sum(not v.ok for v in others)
    cells.append(f"{broken} of {len(others)} FAIL" if broken else f"{len(others)} ok")
    return row.name.ljust(name_width(rows)) + "".join(f"{x:>{WIDTH}}" for x in cells)


def cell(verdict):
    if verdict is None:
        return "-"
    return f"{'0' if verdict.error == 0 else format(verdict.error, '.0e')} {'ok' if verdict.ok else 'FAIL'}"


def notes(found):
    """Which data, what does not apply and why, what failed and where."""
    lines, why, verdicts = [], defaultdict(list), [(name, v) for name, vs in found.items() for v in vs.values()]
    lines.append("Figures are the largest relative error of any case; 0 is equal, bit for bit or as fractions.")
    lines += [f"framework data, {name}: {v.what}" for name, v in verdicts if v.law == FRAMEWORK and v.error is not None]
    for name, v in verdicts:
        if v.error is None:
            why[v.law, v.what].append(name)
    lines += [f"- {law}: {reason} ({', '.join(names)})" for (law, reason), names in why.items()]
    failed = [f"FAIL {name}, {v.law}: {v.what}; error {v.error:.1e}, at most {v.tolerance:.0e}" for name, v in verdicts if not v.ok]
    applied = sum(v.error is not None for _, v in verdicts)
    return "\n".join(lines + failed + [f"{applied - len(failed)} of {applied} laws hold for {len(found)} mechanism{'s' * (len(found) > 1)}."])


def as_json(verdicts):
    """By law; a JSON number is finite, so an infinite error is null and `what` says what it is."""
    return {v.law: dict(applies=v.error is not None, ok=v.ok, error=v.error if v.error is not None and math.isfinite(v.error) else None,
                        tolerance=v.tolerance, what=v.what) for v in verdicts.values()}
