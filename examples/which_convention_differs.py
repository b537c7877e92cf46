"""A port gives wrong numbers.  Three dumps, each from an implementation with a mistake that people really make, and what npattn
says of them.

    python examples/which_convention_differs.py
"""
import numpy as np

from npattn.compare import assert_matches, diagnose, explain

rng = np.random.default_rng(0)
B, T, H, HV, K, V = 1, 96, 2, 4, 16, 24
x = dict(q=rng.standard_normal((B, T, H, K)), k=rng.standard_normal((B, T, H, K)), v=rng.standard_normal((B, T, HV, V)),
         g=-np.logaddexp(0, rng.standard_normal((B, T, HV)) - 1), beta=rng.uniform(0, 1, (B, T, HV)))


def port(x, key_head=lambda h: h // (HV // H), scale=K ** -0.5, normalise=True, decay_first=True, chunk=T):
    """Somebody's gated delta rule, one head and one token at a time."""
    o, final = np.zeros((B, T, HV, V)), np.zeros((B, HV, K, V))
    for b, h in np.ndindex(B, HV):
        S = np.zeros((K, V))
        for t in range(T):
            q, k = x["q"][b, t, key_head(h)], x["k"][b, t, key_head(h)]
            if normalise:
                q, k = q / np.sqrt(q @ q + 1e-6), k / np.sqrt(k @ k + 1e-6)
            S = S * (t % chunk != 0)
            F = np.exp(x["g"][b, t, h]) * S
            S = F + np.outer(k, x["beta"][b, t, h] * (x["v"][b, t, h] - (F if decay_first else S).T @ k))
            o[b, t, h] = scale * (S.T @ q)
        final[b, h] = S
    return dict(o=o, final_state=final)


print("A right one, to begin with.\n")
assert_matches("gated_delta_rule", x, port(x), use_qk_l2norm=True)

print("1. The prediction is made from the state before it decays, as in a textbook: the first token is right, all others are not.\n")
dump = dict(x, **port(x, decay_first=False), mechanism="gated_delta_rule", **{"opt.use_qk_l2norm": True})
found = diagnose(dump)
print(found, end="\n\n")
assert found.verdict == "explained" and found.explanations[0].names == ("predict before decay",)

print("2. Two mistakes at once, in bfloat16: the scale is left out, and key heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1).\n")
outputs = port(x, key_head=lambda h: h % H, scale=1.0)
low = {name: (y.astype(np.float32).view(np.uint32) + 0x8000 & 0xffff0000).view(np.float32) for name,
       y in outputs.items()}       # as it comes off a GPU
found = explain("gated_delta_rule", x, low, use_qk_l2norm=True)
print(found[0], end="\n\n")
assert set(found[0].names) == {"scale missing", "key heads tiled"} and found[0].error < 2e-2

print("3. The state is not carried from one chunk of 64 tokens to the next.  With 96 tokens it could as well be the last, shorter chunk\n"
      "alone: where a dump cannot tell two mistakes apart, that is said, and which inputs would.\n")
found = diagnose(dict(x, **port(x, chunk=64), mechanism="gated_delta_rule", **{"opt.use_qk_l2norm": True}))
print("\n".join(str(found).splitlines()[-7:]), end="\n\n")
assert ("state not carried across chunks of 64",) in {found.explanations[0].names,
                                                      *found.explanations[0].equals} and found.explanations[0].equals

print("And numbers that no convention explains are not explained:", end=" ")
found = diagnose(dict(x, o=outputs["o"] + rng.standard_normal(outputs["o"].shape), mechanism="gated_delta_rule"))
print(found.headline)
assert found.verdict == "unexplained" and not found.explanations
