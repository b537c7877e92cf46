"""`python -m npattn list`: the catalogue as text, as JSON, and as the table of README.md."""
import inspect
import json as json_module

from .catalogue import CATALOGUE
from .core.arguments import leaf_names
from .core.states import leaves

WORDS = """\
T queries, N keys (usually as many), n cached ones, K and V channels; scale=None is K ** -0.5.
exact: forms and gradients are equal as fractions.  analytic: the complex step proves the gradients.  causal: no token sees a later one."""
FORMS = ("loop", "matrix", "chunk", "loop_vjp", "matrix_vjp", "chunk_vjp")


def list_command(json, markdown):
    rows = CATALOGUE.values()
    if markdown:
        print(table(rows))
    elif json:
        print(json_module.dumps({row.name: entry(row) for row in rows}, indent=2))
    else:
        print("\n\n".join([*map(text, rows), WORDS]))
    return 0


def entry(row):
    """What there is to say about a mechanism."""
    signature = inspect.signature(row.module.loop).parameters
    return dict(family=row.family, title=row.title, paper=row.paper,
                arguments={name: kind for name, kind in row.axes.items() if name in signature and name != "state"},
                required=[name for name, p in signature.items() if name not in row.axes and p.default is p.empty],
                options={name: p.default for name, p in signature.items() if name not in row.axes and p.default is not p.empty},
                state=dict(zip(leaf_names("state", row.axes["state"]), leaves(row.axes["state"]))),
                exact=row.exact, analytic=row.analytic, causal=signature["causal"].default if "causal" in signature else row.causal,
                reduces_to=list(row.reductions),
                file=f"npattn/{row.family}/{row.name}.py", page=row.page and f"derivations/{row.page}.md",
                forms=[form for form in FORMS if hasattr(row.module, form)])


def text(row):
    x = entry(row)
    arrays = "  ".join(f"{name} (..., {kind.replace(' ', ', ')})" for name, kind in (x["arguments"] | x["state"]).items())
    flags = [flag for flag in ("exact", "analytic", "causal") if x[flag]]
    flags += [f"reduces to {', '.join(x['reduces_to'])}"] * bool(x["reduces_to"])
    options = [f"{name} (required)" for name in x["required"]] + [f"{name}={value}" for name, value in x["options"].items()]
    return "\n".join([f"{row.name} ({row.family}): {row.title}", f"    {arrays}", f"    options: {', '.join(options)}",
                      f"    {', '.join(flags) or 'no property in the catalogue'}", f"    {row.paper}", f"    {x['file']}"])


def table(rows):
    """A row a mechanism: where it is, what it takes, the forms that it has."""
    lines = ["| mechanism | what it does | beside q, k, v | loop | matrix | chunk | gradients | exact |",
             "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        x = entry(row)
        has = lambda *names: "yes" if all(name in x["forms"] for name in names) else "no"
        more = [f"`{name}` (…, {x['arguments'][name].replace(' ', ', ')})" for name in x["arguments"] if name not in "qkv"]
        more += [f"`{name}`" for name in (*x["required"], *x["options"]) if name != "scale"]
        lines.append(f"| [`{row.name}`]({x['file']}) | {row.title} | {', '.join(more)} | {has('loop')} | {has('matrix')} | {has('chunk')} "
                     f"| {has('loop_vjp', 'matrix_vjp', 'chunk_vjp')} | {'yes' if row.exact else 'no'} |")
    return "\n".join(lines)
