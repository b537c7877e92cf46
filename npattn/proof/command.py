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
    """Print the tables; 0 if all holds, else 1.  ValueError for an unknown mechanism."""
    rows = [row_of(name) for name in dict.fromkeys(mechanisms)] or list(CATALOGUE.values())
    frameworks = {row.name: judge_by_frameworks(row) for row in rows}
    found = {row.name: {} for row in rows}
    for title, columns, laws, framework in ("FORMS", FORMS, FORWARD, FRAMEWORK), ("GRADIENTS", GRADIENTS, GRADIENT, FRAMEWORK_VJP):
        json or print(heading(title, columns, rows))
        for row in rows:
            verdicts = {law.name: judge(law, row) for law in laws} | {framework: overall(framework, frameworks[row.name])}
            found[row.name].update(verdicts)
            json or print(line(row, columns, verdicts, rows), flush=True)
        json or print()
    ok = all(v.ok for verdicts in found.values() for v in verdicts.values())
    if json:
        print(json_module.dumps(dict(ok=ok, mechanisms={name: as_json(v) for name, v in found.items()}), indent=2))
    else:
        print(framework_table(frameworks), notes(found), sep="\n\n")
    return 0 if ok else 1


def judge_by_frameworks(row):
    """{(law, data): Verdict}, over all forms."""
    try:
        errors = framework_error(row)
    except Exception as error:                           # a form that raises is a form that fails
        return {(law, ""): Verdict(law, math.inf, 0, f"{type(error).__name__}: {error}", False) for law in (FRAMEWORK, FRAMEWORK_VJP)}
    found = {}
    for e in sorted(errors, key=lambda e: (not e.right, e.error)):           # the worst form comes last, and stays
        law = FRAMEWORK_VJP if e.form.endswith("_vjp") else FRAMEWORK
        found[law, e.dump] = Verdict(law, e.error, e.bound, f"{e.form}, {e.dump} ({e.source})", e.right)
    return found


def overall(law, found):
    verdicts = [v for (of, _), v in found.items() if of == law]
    return max(verdicts, key=lambda v: (not v.ok, v.error), default=Verdict(law, None, 0, "no framework's values ship with npattn", True))


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


def framework_table(frameworks):
    names = {name: list(dict.fromkeys(data for _, data in found)) for name, found in frameworks.items()}
    left, middle = (2 + max(map(len, column)) for column in (["FRAMEWORK DATA", *names], ["of npattn/data", *sum(names.values(), [])]))
    lines = ["FRAMEWORK DATA".ljust(left) + "of npattn/data".ljust(middle) + f"{'forward':>{WIDTH}}{'gradients':>{WIDTH}}{'at most':>{WIDTH}}"]
    for name, found in frameworks.items():
        for data in names[name]:
            both = [found.get((law, data)) for law in (FRAMEWORK, FRAMEWORK_VJP)]
            bound = max(v.tolerance for v in both if v)
            lines.append(name.ljust(left) + data.ljust(middle) + "".join(f"{x:>{WIDTH}}" for x in (*map(cell, both), f"{bound:.0e}")))
    return "\n".join(lines)


def notes(found):
    """What does not apply and why, what failed and where."""
    shown = {law for columns in (FORMS, GRADIENTS) for laws in columns.values() for law in laws}
    why, verdicts = defaultdict(list), [(name, v) for name, vs in found.items() for v in vs.values()]
    for name, v in verdicts:
        if v.error is None and v.law in shown and not (v.law == "central differences" or v.law == "complex step"):
            why[v.what].append(name)
    lines = ["A figure is the largest relative error of any case; 0 is equal: bit for bit, or as fractions."]
    lines += [f"{name} is not analytic: its gradients are held against central differences, not the complex step" for name, v in verdicts
              if v.law == "central differences" and v.error is not None]
    lines += [f"- {reason}: {', '.join(dict.fromkeys(names))}" for reason, names in why.items()]
    failed = [f"FAIL {name}, {v.law}: {v.what}; error {v.error:.1e}, at most {v.tolerance:.0e}" for name, v in verdicts if not v.ok]
    applied = sum(v.error is not None for _, v in verdicts)
    return "\n".join(lines + failed + [f"{applied - len(failed)} of {applied} laws hold, {len(found)} mechanism{'s' * (len(found) > 1)}."])


def as_json(verdicts):
    """By law; a JSON number is finite, so an infinite error is null and `what` says what it is."""
    return {v.law: dict(applies=v.error is not None, ok=v.ok, error=v.error if v.error is not None and math.isfinite(v.error) else None,
                        tolerance=v.tolerance, what=v.what) for v in verdicts.values()}
