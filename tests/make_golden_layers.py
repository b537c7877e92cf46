"""Convert the frameworks' single layers, once, into the files under tests/golden/layers.

    python tests/make_golden_layers.py SOURCE

SOURCE holds what was recorded from Transformers: c_NAME.npz and c_NAME.json for every module.  The tests read only what this script wrote: the keys are
those of SOURCE (in.NAME, in.weight:NAME, out.NAME, R.NAME the cotangents, grad_first.NAME), without the float32 runs.
Inputs are float32 and exact, outputs and gradients float64.
"""
import json
import sys
from pathlib import Path

import numpy as np

LAYERS = Path(__file__).resolve().parent / "golden" / "layers"
ABOUT = "framework version module function formula layout note seed config".split()


def compact(x):
    """What float32 holds exactly as float32."""
    return x.astype(np.float32) if x.dtype == np.float64 and (x.astype(np.float32) == x).all() else x


def main(source):
    LAYERS.mkdir(parents=True, exist_ok=True)
    table = {}
    for path in sorted(source.glob("c_*.npz")):
        z, meta = np.load(path), json.loads(path.with_suffix(".json").read_text())
        name = path.stem[2:]
        np.savez_compressed(LAYERS / f"{name}.npz", **{key: compact(z[key]) for key in z.files if not key.startswith("f32")})
        table[name] = {key: meta[key] for key in ABOUT if key in meta}
    (LAYERS / "provenance.json").write_text(json.dumps(table, indent=1) + "\n")
    print(len(table), "layers,", sum(path.stat().st_size for path in LAYERS.iterdir()) // 1000, "kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
