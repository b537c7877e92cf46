"""The picture of an error in words: where it begins, where it sits, how it grows."""
import numpy as np

from .case import is_result
from .measure import profile

NAMES = dict(B="batch row", S="sequence", H="head", HV="head", Hkv="head", Hq="head", T="token", N="token", n="token", K="row", V="column")


def picture(subject):
    """Sentences about what is wrong, from `subject`, a search.Subject."""
    each = {name: subject.error(name, subject.right[name]) for name in subject.case.got}
    wrong = [name for name, e in each.items() if e.relative > subject.at(name)]
    results, gradients = ([name for name in each if is_result(name) == yes] for yes in (True, False))
    if results and wrong and not set(wrong) & set(results):
        yield f"All outputs are right; of the gradients {join(wrong)} {be(wrong)} wrong" + (f", {join(set(gradients) - set(wrong))} right."
                                                                                            if set(gradients) - set(wrong) else ".")
    elif "o" in each and "o" not in wrong and wrong and all("final_state" in name for name in wrong):
        yield "Only the final state is wrong: every output is right, so it is what is returned after the last token, not the recurrence."
    broken = {name for name in gradients if each[name].nonfinite}
    sound = set(gradients) - broken
    if len(broken) == 1 and sound:
        yield f"{join(broken)} holds NaN or infinity, no other gradient does."
    elif broken and sound:
        way = "the gates" if "dv" in sound else "the values"
        yield (f"{join(broken)} hold NaN or infinity, {join(sound)} {'do' if len(sound) > 1 else 'does'} "
               f"not: only what passes through {way} overflows.")
    for name in wrong:
        got, right = subject.case.got[name], subject.right[name]
        level, first, counted = subject.at(name), 0, each[name].each >= 0
        if subject.axes[name][2] in "TN":                # what is right ahead of the first wrong token says nothing about the error
            first = int(np.argmax(profile(each[name].each, 2) > level))
            counted = counted & np.expand_dims(np.arange(counted.shape[2]) >= first, tuple(range(1, counted.ndim - 2)))
        whole = list(value_words(name, got[counted], right[counted], level, f"from token {first} on" if first else "everywhere"))
        yield from whole or place_words(name, each[name], subject.axes[name], level)


def value_words(name, a, b, level, where):
    """What the numbers `a` are as a whole, beside the right ones `b`; `where` they are."""
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return
    size, late = np.abs(b).max(initial=0), "" if where == "everywhere" else f" {where}"
    if not a.any():
        yield f"{name} is zero {where}" + ("." if is_result(name) else ": it is missing.")
    elif size and a.size > 3 and (b * b).sum():
        c = (a * b).sum() / (b * b).sum()
        if np.abs(a - c * b).max() <= level * abs(c) * size:
            yield f"{name} is {where} {c:.6g} times the right one."
        elif reordered(a / size, b / size, level):
            yield f"{name} holds the right numbers in another order{late}: an axis, a head or a layout is confused."
        elif a.size >= 64 and abs(correlation(a, b)) < 4 / np.sqrt(a.size):
            yield f"{name} is unrelated to the right one{late} (correlation {correlation(a, b):.2f}): other numbers were read, or they are noise."


def place_words(name, e, axes, level):
    """Where the error is: by batch row, head, token and column."""
    found, bad = [], e.each > max(level, e.relative / 1e3 if np.isfinite(e.relative) else level)
    for axis, letter in enumerate(axes):
        hit, there = (x.any(axis=tuple(i for i in range(bad.ndim) if i != axis)) for x in (bad, e.each >= 0))
        word = "key" if letter.startswith("n +") else "column" if letter == "K" and "V" not in axes else NAMES.get(letter, "place")
        if word == "token":
            found += token_words(name, profile(e.each, axis), hit, there)
        elif 0 < hit.sum() < there.sum():
            found.append(f"{name} is wrong in {word}{'s' if hit.sum() > 1 else ''} {ranges(np.flatnonzero(hit))} only.")
    if e.nonfinite:
        found.append(f"{name} is NaN or infinite in {e.nonfinite} places: an overflow, if exponents that reach exp can be positive; "
                     "or memory that was never written.")
    return found or [f"{name} is wrong everywhere, by {e.relative:.1e} of its largest entry at most."]


def token_words(name, errors, hit, there):
    first = int(np.argmax(hit))
    counted = np.flatnonzero(there)
    if first > counted[0] and hit[first:][there[first:]].mean() > 0.5:
        size = max((n for n in (16, 32, 64, 128) if first % n == 0), default=0)
        yield f"{name} is right up to token {first - 1} and wrong from token {first} on" + \
              (f": a multiple of {size}, so look at what passes from chunk to chunk." if size else ".")
    elif 0 < hit.sum() < there.sum():
        yield f"{name} is wrong in token{'s' if hit.sum() > 1 else ''} {ranges(np.flatnonzero(hit))} only."
    x = errors[first:][there[first:]]
    if len(x) >= 16 and np.isfinite(x).all():
        quarters = [np.median(part) for part in np.array_split(x, 4)]
        if quarters[3] > 4 * quarters[0] > 0 and all(a < 1.5 * b for a, b in zip(quarters, quarters[1:])):
            yield (f"The error of {name} grows with the position, from {quarters[0]:.1e} in the first quarter to {quarters[3]:.1e} in the "
                   "last: something is lost at every token.")


def reordered(a, b, level):
    """Whether a has the numbers of b, of which the largest is 1, in another order, but for rounding.

    Many numbers lie so close that any two lots of them agree when sorted; but their sums, of squares and cubes too, do not.
    """
    sums = all(abs((a ** n).sum() - (b ** n).sum()) <= n * level * np.sqrt((b ** (2 * n - 2)).sum()) for n in (1, 2, 3))
    return sums and np.abs(np.sort(a) - np.sort(b)).max() <= min(level, np.abs(a - b).max() / 30)


def correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a * a).sum() * (b * b).sum())
    return (a * b).sum() / size if size else 0


def ranges(numbers):
    """
    >>> ranges([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7 to 8'
    """
    runs = np.split(np.asarray(numbers), np.flatnonzero(np.diff(numbers) > 1) + 1)
    text = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(text if len(text) <= 6 else [*text[:5], f"… {text[-1]}"])


def join(names):
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last


def be(names):
    return "are" if len(names) > 1 else "is"
