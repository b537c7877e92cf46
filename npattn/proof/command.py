"""`python -m npattn check`: every law, every proof and the shipped framework data, as tables, as a list of laws or as JSON."""
import difflib
import json as json_module
import math
from collections import defaultdict

from .. import data
from ..catalogue import CATALOGUE
from ..compare.frameworks import framework_error
from .gradient_laws import GRADIENT
from .law import Verdict, judge
from .laws import FORWARD

FRAMEWORK, FRAMEWORK_VJP = "framework data", "framework gradients"

# heading, two lines: the laws whose figures stand under it (the first that applies); the others are counted in the last column
FORMS = {("loop = matrix", "= chunk"): ("forms",), ("equal as", "fractions"): ("fractions",), ("plain", "definition"): ("definition",),
         ("split and", "resume"): ("resume",), ("causal, bit", "for bit"): ("causal",), ("framework", "data"): (FRAMEWORK,)}
GRADIENTS = {("loop = matrix", "= chunk"): ("vjp",), ("", "tape"): ("tape",), ("", "exact dual"): ("exact dual",),
             ("complex", "step"): ("complex step", "central differences"), ("framework", "gradients"): (FRAMEWORK_VJP,)}
WIDTH = 13


def check_command(mechanisms, laws, json):
    """Print the tables, or with `laws` every law by name; 0 if all holds, else 1.  ValueError for an unknown mechanism."""
    rows = [row_of(name) for name in dict.fromkeys(mechanisms)] or list(CATALOGUE.values())
    frameworks = {row.name: judge_by_frameworks(row) for row in rows}
    found = {row.name: {} for row in rows}
    for title, columns, group, framework in ("FORMS", FORMS, FORWARD, FRAMEWORK), ("GRADIENTS", GRADIENTS, GRADIENT, FRAMEWORK_VJP):
        tables = not (json or laws)
        tables and print(heading(title, columns, rows))
        for row in rows:
            verdicts = {law.name: judge(law, row) for law in group} | {framework: overall(framework, frameworks[row.name])}
            found[row.name].update(verdicts)
            tables and print(line(row, columns, verdicts, rows), flush=True)
        tables and print()
    ok = all(v.ok for verdicts in found.values() for v in verdicts.values())
    if json:
        print(json_module.dumps(dict(ok=ok, mechanisms={name: as_json(v) for name, v in found.items()}), indent=2))
    else:
        print(*filter(None, [law_list(found) if laws else framework_table(frameworks), notes(found, laws)]), sep="\n\n")
    return 0 if ok else 1


def judge_by_frameworks(row):
    """{(law, data): Verdict}, over all forms."""
    try:
        errors = framework_error(row)
    except Exception as error:                           # the arguments of the forms are not those that the data are for
        return {(law, ""): Verdict(law, math.inf, 0, f"{type(error).__name__}: {error}", False) for law in (FRAMEWORK, FRAMEWORK_VJP)}
    found = {}
    for e in sorted(errors, key=lambda e: (not e.right, e.error)):     # the worst form comes last, and stays
        law = FRAMEWORK_VJP if e.form.endswith("_vjp") else FRAMEWORK
        found[law, e.dump] = Verdict(law, e.error, e.bound, e.raised or f"{e.form} against {e.dump} ({e.source})", e.right)
    return found


def overall(law, found):
    """The worst of the data: what fails, or else of those in float64, beside which float32 says nothing; of float32 if there is no other."""
    values = {name: about["values"] for name, about in data.provenance().items()}
    verdicts = [(values.get(name) == "float64", v) for (of, name), v in found.items() if of == law]
    precise = any(wide for wide, _ in verdicts)
    shown = [v for wide, v in verdicts if wide == precise or not v.ok]
    return max(shown, key=lambda v: (not v.ok, v.error), default=Verdict(law, None, 0, "no framework's values ship with npattn", True))


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
    """Every set of data with its figures; nothing if there is none."""
    names = {name: list(dict.fromkeys(data for _, data in found)) for name, found in frameworks.items()}
    if not any(names.values()):
        return ""
    left, middle = (2 + max(map(len, column)) for column in (["FRAMEWORK DATA", *names], ["of npattn/data", *sum(names.values(), [])]))
    lines = ["FRAMEWORK DATA".ljust(left) + "of npattn/data".ljust(middle)
             + f"{'forward':>{WIDTH}}{'gradients':>{WIDTH}}{'at most':>{WIDTH}}"]
    for name, found in frameworks.items():
        for data in names[name]:
            both = [found.get((law, data)) for law in (FRAMEWORK, FRAMEWORK_VJP)]
            bound = max(v.tolerance for v in both if v)
            lines.append(name.ljust(left) + data.ljust(middle) + "".join(f"{x:>{WIDTH}}" for x in (*map(cell, both), f"{bound:.0e}")))
    return "\n".join(lines)


def notes(found, listed):
    """What does not apply and why, what failed and where."""
    shown = {law for columns in (FORMS, GRADIENTS) for laws in columns.values() for law in laws}
    why, verdicts = defaultdict(list), [(name, v) for name, vs in found.items() for v in vs.values()]
    for name, v in verdicts:
        if v.error is None and v.law in shown and not (v.law == "central differences" or v.law == "complex step"):
            why[v.what].append(name)
    lines = ["A figure is the largest relative error of any case; 0 is equal: bit for bit, or as fractions."]
    if not listed:
        lines += ["Framework data stand with the forms and the gradients in float64; what ran in float32 has a line of its own.",
                  "`npattn check --laws` names the other laws, and says what each asks."]
    lines += [f"{name} is not analytic: its gradients are held against central differences, not the complex step" for name, v in verdicts
              if v.law == "central differences" and v.error is not None]
    lines += [f"- {reason}: {', '.join(dict.fromkeys(names))}" for reason, names in why.items()]
    failed = defaultdict(list)
    for name, v in verdicts:                             # what raises, say a form that is missing, breaks many laws: said once
        if not v.ok:
            failed[name, v.what + (f"; error {v.error:.1e}, at most {v.tolerance:.0e}" if math.isfinite(v.error) else "")].append(v.law)
    applied, broken = sum(v.error is not None for _, v in verdicts), sum(map(len, failed.values()))
    lines += [f"FAIL {name}, {', '.join(laws)}: {what}" for (name, what), laws in failed.items()]
    return "\n".join(lines + [f"{applied - broken} of {applied} laws hold, {len(found)} mechanism{'s' * (len(found) > 1)}."])


def law_list(found):
    """Every law by name: its figure, the most that is allowed, and what must hold, or why it does not apply."""
    says = {law.name: law.says for law in FORWARD + GRADIENT}
    lines = []
    for name, verdicts in found.items():
        lines += ["", f"{name.upper():20}{'figure':>{WIDTH}}{'at most':>9}"]
        for v in verdicts.values():
            applies = v.error is not None
            at_most = "" if not applies else format(v.tolerance, ".0e") if v.tolerance else "0"
            words = says.get(v.law, v.what) if applies else f"does not apply: {v.what}"
            lines.append(f"{v.law:20}{cell(v if applies else None):>{WIDTH}}{at_most:>9}  {words}")
    return "\n".join(lines[1:])


def as_json(verdicts):
    """By law; a JSON number is finite, so an infinite error is null and `what` says what it is."""
    return {v.law: dict(applies=v.error is not None, ok=v.ok, error=v.error if v.error is not None and math.isfinite(v.error) else None,
                        tolerance=v.tolerance, what=v.what) for v in verdicts.values()}
