"""What stands around a mechanism in a language model: functions on arrays and a dict of weights, each with its gradient by hand.

    forward(x, weights, …)        x (..., T, C); weights by their names in the Hugging Face state dict, without the layer's prefix
    vjp(dy, x, weights, …)        dx and a dict of gradients by the same names, each of its argument's shape and type

A layer with a memory takes `state` (None at the beginning) and returns (y, state); its vjp takes `dfinal_state` and returns (dx, dweights,
dstate).  A Linear weight is stored [out, in] and used as x W^T.
"""
