"""The Diagnosis of a layer's dump: which of its tensors is the first wrong one, and why."""
from itertools import combinations

import numpy as np

from .case import REFUSED
from .diagnosis import VERDICTS, Diagnosis, explanations
from .hypotheses import HYPOTHESES
from .layer import MAKES, NAME, Subject, axes_of, heads_first, outcome, read_layer
from .measure import LEVELS, coarsest, precision
from .report import Report, Row
from .search import BETTER, Fit
from .words import be, join

ORDER = [name for names in MAKES.values() for name in names.split()]
STAGE = {name: stage.replace("_", " ") for stage, names in MAKES.items() for name in names.split()}


def report_on(arrays):
    """(the Report, the Subject) of arrays by key."""
    arrays = {key: x for key, x in arrays.items() if key not in ("mechanism", "layout")}
    layer = read_layer(arrays)
    with np.errstate(all="ignore"):
        right = outcome(layer)
    names = [name for name in ORDER if name in layer.got]
    rounded = coarsest(precision(layer.got[name], right[name], arrays[name].dtype) for name in names)
    subject = Subject(layer, right, LEVELS[rounded])
    rows = tuple(Row(name, heads_first(name, layer.got[name]).shape, axes_of(name), subject.error(name, right[name]), LEVELS[rounded])
                 for name in names)
    n = layer.n
    sizes = dict(B=len(layer.x), T=layer.x.shape[1], C=layer.x.shape[2], H=n.H, HV=n.H * n.G, K=n.K, V=n.V)
    return Report(NAME, "bthd", sizes, tuple(assumed(layer)), rounded, rows), subject


def judged(arrays, pairs=True):
    """The Diagnosis of arrays by key."""
    report, subject = report_on(arrays)
    if report.right:
        exact = max(row.error.relative for row in report.rows) <= LEVELS["float64"]
        return Diagnosis("right" if exact else VERDICTS[1], report.precision, report)
    names, first = [row.name for row in report.rows], next(row.name for row in report.rows if not row.right)
    fits, tried = search(subject, pairs)
    return Diagnosis("explained" if fits else "unexplained", report.precision, report, explanations(subject, fits),
                     picture=tuple(words(subject, names, first)),
                     tried=tried, first_wrong=first)


def assumed(layer):
    yield f"eps {layer.eps:g} in the gated norm, 1e-6 in the l2 norms of q and k"
    yield f"initial state {'zero' if layer.state.S is None and layer.state.conv is None else 'given'}"
    if layer.mask is not None:
        yield f"{int((~layer.mask).sum())} of {layer.mask.size} tokens are padding"


def search(subject, pairs):
    """(the good fits, how many combinations were tried): single rows, and two together if no single one is good."""
    rows = [row for row in HYPOTHESES if row.concerns(NAME) and row.meant(subject.case) and row.when(subject.case)]
    worst, tried = max(subject.errors(subject.right).values()), 0
    for several in (((row,) for row in rows), (pair for pair in combinations(rows, 2) if not pair[0].excludes(pair[1])) if pairs else ()):
        found = []
        for some in several:
            tried += 1
            layer = subject.case
            for row in some:
                layer = row.change(layer)
            try:
                with np.errstate(all="ignore"):
                    fit = Fit(some, subject.errors(outcome(layer)))
            except REFUSED:
                continue
            if fit.worst <= subject.level and BETTER * fit.worst <= worst:
                found.append(fit)
        if found:
            break
    return sorted(found, key=lambda fit: round(np.log10(max(fit.worst, subject.level * 1e-3)))), tried


def words(subject, names, first):
    """Where it begins, and whether what the later stages make is right for what they were given."""
    local = outcome(subject.case, given=subject.case.got)
    alone = [name for name in names if subject.error(name, local[name]).relative > subject.level]
    before, here = names[:names.index(first)], [name for name in names if STAGE[name] == STAGE[first]]
    also = [name for name in here if name in alone and name != first]
    after = [name for name in names[names.index(first):] if name not in here]
    yield f"The first that is wrong is {first}, made by the {STAGE[first]}" + (f", which made {join(also)} wrongly too" if also else "") + \
        (f"; before it {join(before)} {be(before)} right." if before else ".")
    later = [name for name in after if name in alone]
    if after and not later:
        yield f"What the later stages made, {join(after)}, is right for what it was given."
    elif later:
        stages = join({STAGE[name] for name in later})
        yield f"Wrong even for what {'they were' if len(later) > 1 else 'it was'} given: {join(later)}, made by the {stages}."
