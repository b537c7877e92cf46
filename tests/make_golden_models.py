"""Convert the frameworks' tiny models, once, into the files under tests/golden/models.

    python tests/make_golden_models.py SOURCE

SOURCE holds what was recorded from Transformers: b_NAME_tiny.PART.npz and .json for every model.  The tests read only what this script wrote, one file a
model: weights.NAME as the upper halves of float32 (they are exact in bfloat16), everything else in float64 as recorded.  Left out are float32 runs but
for their logits, and the logits of padding.  Of large gradients the recorder had kept the norm and the first row.
"""
import json
import sys
from pathlib import Path

import numpy as np

MODELS = Path(__file__).resolve().parent / "golden" / "models"
ABOUT = "framework version torch class attn_implementation config seed".split()
KEPT = dict(forward_f64="input_ids logits layer0 layer1 layer2 layer3", forward_f32="logits_f32", padded="input_ids attention_mask logits",
            generate="prompt tokens continue_ids continue_logits", grads="loss input_ids")


def upper_half(x):
    bits = x.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "not exact in bfloat16"
    return (bits >> 16).astype(np.uint16)


def parts(source, name):
    for key, x in np.load(source / f"b_{name}_tiny.weights.npz").items():
        yield f"weights.{key}", upper_half(x)
    for part, kept in KEPT.items():
        z = np.load(source / f"b_{name}_tiny.{part}.npz")
        for key in z.files:
            if key in kept.split() or key.startswith(("cache.", "grad")):
                x = z[key]
                yield f"{part}.{key}", x[z["attention_mask"] == 1] if (part, key) == ("padded", "logits") else x


def main(source):
    MODELS.mkdir(parents=True, exist_ok=True)
    table = {}
    for path in sorted(source.glob("b_*_tiny.weights.json")):
        name = path.name.removeprefix("b_").removesuffix("_tiny.weights.json")
        np.savez_compressed(MODELS / f"{name}.npz", **dict(parts(source, name)))
        meta = json.loads(path.read_text())
        table[name] = {key: meta[key] for key in ABOUT if key in meta}
    (MODELS / "provenance.json").write_text(json.dumps(table, indent=1) + "\n")
    print(len(table), "models,", sum(path.stat().st_size for path in MODELS.iterdir()) // 1000, "kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
