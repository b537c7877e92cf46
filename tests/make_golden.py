"""Convert the frameworks' outputs, once, into the small dumps under tests/golden and npattn/data.

    python tests/make_golden.py SOURCE

SOURCE holds what was recorded from the frameworks: X.npz and X.json for every case, and one file of GPU kernels.  The tests read only what this
script wrote.  Inputs are float32 and exact, outputs and gradients float64; those of the GPU kernels are what they returned, float32.
"""
import json
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent
GOLDEN, DATA = TESTS / "golden", TESTS.parent / "npattn" / "data"

FLA = dict(linear_attn="linear_attention", linear_attn_b="normalized_linear_attention", simple_gla="simple_gla", gla="gla", delta_rule="delta_rule",
           gated_delta_rule="gated_delta_rule", gated_delta_rule_b="gated_delta_rule", kda="kda")
KERNELS = dict(linear_attn="linear_attention", simple_gla="simple_gla", gla="gla", delta_rule="delta_rule", delta_rule_recurrent="delta_rule",
               gated_delta_rule="gated_delta_rule", gated_delta_rule_l2="gated_delta_rule", gated_delta_rule_recurrent="gated_delta_rule",
               kda="kda", softmax="softmax_attention", softmax_window="sliding_window_attention")
NAMES = dict(initial_state="state", gk="g", attn_mask="bias")

# What `python -m npattn check` runs on: at least one dump with gradients for every mechanism that a framework has, and some real kernels.
SHIPPED = """transformers_gated_delta_rule_T012_l2_gqa transformers_gated_delta_rule_T070_nol2_init fla_linear_attn fla_linear_attn_b fla_simple_gla
    fla_gla fla_delta_rule fla_kda torch_sdpa_causal_gqa torch_sdpa_sliding_window4 torch_sdpa_floatbias_alibi_causal_gqa""".split()
SHIPPED_KERNELS = "simple_gla gla delta_rule_recurrent gated_delta_rule_l2 kda softmax_window".split()
COLUMNS = 8                                              # of V: columns of the value do not mix, so some of them are a smaller true record


def rename(name):
    return NAMES.get(name, name)


def inputs(z, prefix):
    return {rename(key.removeprefix(prefix)): z[key] for key in z.files if key.startswith(prefix)}


def gradients(z, prefix):
    return {"d" + rename(key.removeprefix(prefix)): z[key] for key in z.files if key.startswith(prefix)}


def reference(source, name):
    """(arrays of the dump, gradients of all outputs, gradients of o alone, what is written beside it)."""
    z, meta = np.load(source / f"{name}.npz"), json.loads((source / f"{name}.json").read_text())
    dump = inputs(z, "in.") | inputs(z, "out.")
    every, first = gradients(z, "grad_all."), gradients(z, "grad_first.")
    about = dict(framework=f"{meta['framework']} {meta['version'].partition('+')[0]}", function=meta["function"], seed=meta["seed"],
                 case=meta.get("case", ""), kwargs=meta.get("kwargs", {}), conventions=meta["conventions"], values="float64", bound=1e-10)
    cotangents = {"d" + key.removeprefix("R."): z[key] for key in z.files if key.startswith("R.")} if first else {}
    return dump, every and every | cotangents, first and first | {"do": cotangents["do"]}, about


def references(source):
    """(name, dump, provenance) of every float64 case; the gradients of o alone are a dump of their own where there is a state."""
    for path in sorted(source.glob("a_hf_gated_delta_rule_*.npz")):
        name = path.stem
        dump, every, first, about = reference(source, name)
        dump |= {"mechanism": "gated_delta_rule", "layout": "bthd", "opt.use_qk_l2norm": about["case"]["use_qk_l2norm_in_kernel"]}
        yield "transformers" + name[4:].removesuffix("_grad"), dump, every, first, about
    for path in sorted(source.glob("d_torch_sdpa_*.npz")):
        name = path.stem
        dump, every, first, about = reference(source, name)
        dump |= {"mechanism": "softmax_attention", "layout": "bhtd", "opt.causal": about["kwargs"].get("is_causal", False)}
        if "scale" in about["kwargs"]:
            dump["opt.scale"] = about["kwargs"]["scale"]
        if "bias" in dump:
            bias = dump.pop("bias")
            if name.endswith("sliding_window4"):                             # the same mask, said as a window
                i, j = np.indices(bias.shape[-2:])
                assert (bias == ((j <= i) & (j > i - 4))).all()
                dump |= {"mechanism": "sliding_window_attention", "opt.window": 4, "opt.causal": True}
            else:
                dump["opt.mask" if bias.dtype == bool else "opt.bias"] = bias
        yield name[2:], dump, every, first, about
    for name, mechanism in FLA.items():
        dump, every, first, about = reference(source, f"e_fla_{name}")
        dump |= dict(mechanism=mechanism, layout="bhtd" if name == "delta_rule" else "bthd")
        if "scale" in about["kwargs"]:
            dump["opt.scale"] = about["kwargs"]["scale"]
        if name == "linear_attn_b":                      # o / (0.7 q.z + 1e-10): the numerator has the scale too
            dump["opt.eps"] = 1e-10 / 0.7
        yield f"fla_{name}", dump, every, first, about


def kernels(source):
    """Half of the heads of every kernel: (name, dump, gradients, provenance)."""
    z, meta = np.load(source / "g_fla_triton_h200.npz"), json.loads((source / "g_fla_triton_h200.json").read_text())
    for name, mechanism in KERNELS.items():
        half = {key.removeprefix(f"{name}/"): z[key] for key in z.files if key.startswith(f"{name}/")}
        half = {key: x[:, :x.shape[1] // 2] if key.endswith(("state", "cotangent_1")) else x[:, :, :x.shape[2] // 2] for key, x in half.items()}
        dump = {rename(key.removeprefix("in_").removeprefix("out_")): x for key, x in half.items() if key.startswith(("in_", "out_"))}
        grads = {"d" + rename(key.removeprefix("grad_")): x for key, x in half.items() if key.startswith("grad_")}
        if grads:
            grads |= {end: half[f"cotangent_{i}"] for i, end in enumerate(("do", "dfinal_state")) if f"cotangent_{i}" in half}
        dump |= dict(mechanism=mechanism, layout="bthd")
        kwargs = meta["operations"][name]["kwargs"]
        if kwargs.get("use_qk_l2norm_in_kernel"):
            dump["opt.use_qk_l2norm"] = True
        if "window_size" in kwargs:
            dump["opt.window"] = kwargs["window_size"]
        low = name == "delta_rule"
        yield f"h200_{name}", dump, grads, dict(
            framework=meta["framework"], function=meta["operations"][name]["function"], kwargs=kwargs, device=meta["device"],
            conventions=dict(layout=meta["layout"], scale=meta["scale"], heads="the first half of those recorded"), note=meta["operations"][name]["note"],
            values="bfloat16" if low else "float32, no TF32", bound=1e-2 if low else 1e-4)


def compact(x):
    """Booleans and numbers as they are; what float32 holds exactly as float32."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float64 and x.ndim and (x.astype(np.float32) == x).all() else x


def write(folder, name, dump, about, table):
    np.savez_compressed(folder / f"{name}.npz", **{key: compact(x) for key, x in dump.items()})
    table[name] = {key: value for key, value in about.items() if value not in ("", {})}


def main(source):
    golden, data = {}, {}
    for folder in (GOLDEN, DATA):
        folder.mkdir(exist_ok=True)
    for name, dump, every, first, about in references(source):
        both = {} if every or not first else first
        write(GOLDEN, name, dump | (every or both), about, golden)
        if every and first:
            given = {key: x for key, x in dump.items() if key not in ("o", "final_state")}
            write(GOLDEN, f"{name}_first", given | first, dict(about, conventions=f"as {name}", gradients="of sum(o do) alone"), golden)
        if name in SHIPPED:
            write(DATA, name, dump | (every or both), about, data)
    for name, dump, grads, about in kernels(source):
        write(GOLDEN, name, dump | grads, about, golden)
        if name.removeprefix("h200_") in SHIPPED_KERNELS:
            few = {key: x[..., :COLUMNS] if key in ("v", "o", "state", "final_state") else x for key, x in dump.items()}
            write(DATA, name, few, about | dict(columns=f"the first {COLUMNS} of V"), data)
    for folder, table in ((GOLDEN, golden), (DATA, data)):
        (folder / "provenance.json").write_text(json.dumps(table, indent=1) + "\n")
        print(folder.name, len(table), "dumps,", sum(path.stat().st_size for path in folder.iterdir()) // 1000, "kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
