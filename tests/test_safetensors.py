"""Reading checkpoints: files written byte by byte here, by our own writer, and by the safetensors package where there is one; and all that can be wrong."""
import importlib.util
import json
import tracemalloc

import numpy as np
import pytest

from npattn.models import hybrid, safetensors

from test_models import recorded, tiny

F32 = dict(dtype="F32", shape=[2, 3], data_offsets=[0, 24])


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def write_bfloat16(path, weights):
    """The recorded weights as checkpoints hold them."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, w in weights.items():
        part = (w.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = dict(dtype="BF16", shape=list(w.shape), data_offsets=[len(data), len(data) + len(part)])
        data += part
    return write(path, header, data)


def test_bytes_by_hand(tmp_path):
    """1.0 is 3F80 0000, -2.5 is C020 0000, 2^-133 is the smallest subnormal: 0001."""
    header = {"b": dict(dtype="BF16", shape=[2, 2], data_offsets=[0, 8]), "i": dict(dtype="I16", shape=[], data_offsets=[8, 10]),
              "f": dict(dtype="F32", shape=[1], data_offsets=[10, 14]), "none": dict(dtype="F64", shape=[0, 3], data_offsets=[14, 14])}
    data = bytes.fromhex("803f 20c0 0100 807f" + "feff" + "000020c0")
    x = safetensors.load(write(tmp_path / "x.safetensors", header, data))
    assert list(x) == ["b", "i", "f", "none"] and len(x) == 4
    assert x["b"].dtype == np.float32 and x["b"].tolist() == [[1, -2.5], [2. ** -133, np.inf]]
    assert x["i"] == -2 and x["i"].shape == () and x["f"].tolist() == [-2.5] and x["none"].shape == (0, 3)
    assert x.about("b") == ((2, 2), np.dtype("f4")) and x.about("i") == ((), np.dtype("i2"))
    assert "b" in x and "no" not in x
    assert not x["f"].flags.writeable
    with pytest.raises(KeyError):
        x["no"]


def arrays():
    rng = np.random.default_rng(0)
    found = {kind: (100 * rng.standard_normal((3, 4))).astype(kind) for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "?")}
    found |= {kind: rng.integers(0, 200, (2, 1, 5)).astype(kind) for kind in ("u8", "u4", "u2", "u1")}
    return found | {"": np.array(3.), "transposed": found["f4"].T, "big": found["f8"].astype(">f8"), "é": np.zeros((0, 2))}


def test_what_is_written_is_read(tmp_path):
    safetensors.save(tmp_path / "x.safetensors", arrays(), {"made": "here"})
    x = safetensors.load(tmp_path / "x.safetensors")
    assert list(x) == list(arrays())
    for name, y in arrays().items():
        assert x[name].dtype == y.dtype.newbyteorder("<") and x[name].shape == y.shape and (x[name] == y).all()
    with pytest.raises(TypeError, match="z: complex128 cannot be written"):
        safetensors.save(tmp_path / "y.safetensors", {"z": np.zeros(1, complex)})
    for name in ("__metadata__", 3):
        with pytest.raises(ValueError, match=f"must be named by a string other than '__metadata__', not {name!r}"):
            safetensors.save(tmp_path / "y.safetensors", {name: np.zeros(1)})
    with pytest.raises(TypeError, match="z: list cannot be written"):
        safetensors.save(tmp_path / "y.safetensors", {"z": [1.]})
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
    if importlib.util.find_spec("safetensors"):                              # the original reads the same, and what it writes is read the same
        import safetensors.numpy as original
        theirs = original.load_file(tmp_path / "x.safetensors")
        original.save_file({name: np.ascontiguousarray(y) for name, y in theirs.items()}, tmp_path / "z.safetensors")
        for name, y in safetensors.load(tmp_path / "z.safetensors").items():
            assert theirs[name].dtype == y.dtype and (theirs[name] == y).all() and (x[name] == y).all()


def test_every_bfloat16_is_widened_exactly_and_without_a_second_copy(tmp_path):
    """All 65 536 of them, 16 times; what is in memory at the most is the result."""
    bits = np.tile(np.arange(65_536, dtype="<u2"), 16)
    header = {"x": dict(dtype="BF16", shape=[16, 65_536], data_offsets=[0, 2 ** 21])}
    checkpoint = safetensors.load(write(tmp_path / "x.safetensors", header, bits.tobytes()))
    tracemalloc.start()
    try:
        x = checkpoint["x"]
        assert tracemalloc.get_traced_memory()[1] < 1.1 * x.nbytes
    finally:
        tracemalloc.stop()
    assert x.dtype == np.float32 and (x.view(np.uint32).ravel() == bits.astype(np.uint32) * 65_536).all()


def test_a_file_may_be_written_from_its_own_arrays(tmp_path):
    """They are maps of it: writing over it would pull the ground from under them, and end Python with a bus error."""
    path = tmp_path / "x.safetensors"
    safetensors.save(path, {"x": np.arange(4.), "y": np.arange(3)})
    old = dict(safetensors.load(path))
    safetensors.save(path, {"y": old["y"], "x": old["x"], "more": np.ones(1)})
    new = safetensors.load(path)
    assert list(new) == ["y", "x", "more"] and new["x"].tolist() == [0, 1, 2, 3] and new["y"].tolist() == [0, 1, 2]
    assert old["x"].tolist() == [0, 1, 2, 3] and [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_several_files(tmp_path):
    (tmp_path / "sub").mkdir()
    folder = tmp_path / "sub"
    safetensors.save(folder / "a.safetensors", {"x": np.arange(3.), "y": np.arange(2)})
    safetensors.save(folder / "b.safetensors", {"z": np.ones(2)})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps(dict(metadata=dict(total_size=1), weight_map=dict(z="b.safetensors", x="a.safetensors"))))
    for path in (index, str(folder)):
        found = safetensors.load(path)
        assert list(found) == ["z", "x"] and found["x"].tolist() == [0, 1, 2] and found["z"].tolist() == [1, 1]
    beside = "the name of a .safetensors file beside this one"
    outside = ("../a.safetensors", "..", ".", "", str(folder / "a.safetensors"), "..\\a.safetensors", "a\0.safetensors", 3, None)
    missing = "q should be in b.safetensors, but is not"
    for weight_map, text in (({"q": "b.safetensors"}, missing), (["x"], beside), *(({"x": x}, beside) for x in outside)):
        index.write_text(json.dumps(dict(weight_map=weight_map)))
        with pytest.raises(ValueError, match=text):
            safetensors.load(index)
    index.write_text(json.dumps(dict(weight_map=dict(x="c.safetensors"))))
    with pytest.raises(FileNotFoundError, match="c.safetensors"):
        safetensors.load(index)
    safetensors.save(folder / "model.safetensors", {"whole": np.ones(1)})    # beside a broken index: the single file, as in Transformers
    assert list(safetensors.load(folder)) == ["whole"]
    index.write_text("{")
    with pytest.raises(ValueError, match="index.json: malformed JSON"):
        safetensors.load(index)
    with pytest.raises(ValueError, match="no model.safetensors and no model.safetensors.index.json in this folder"):
        safetensors.load(tmp_path)


@pytest.mark.parametrize("text, header, data", [
    ("truncated: 96 bytes, where the header counts 97", {"x": F32}, bytes(23)),
    ("too long", {"x": F32}, bytes(25)),
    (r"x F32 \(2, 3\) takes 24 bytes, but its data_offsets are 0 and 20", {"x": F32 | dict(data_offsets=[0, 20])}, bytes(20)),
    (r"data_offsets are 24 and 0", {"x": F32 | dict(data_offsets=[24, 0])}, bytes(24)),
    ("y begins at byte .*: the arrays overlap", {"x": F32, "y": F32 | dict(data_offsets=[20, 44])}, bytes(44)),
    ("the arrays overlap", {"x": F32, "y": F32}, bytes(24)),
    ("y begins at byte .*: the arrays leave a gap", {"x": F32, "y": F32 | dict(data_offsets=[28, 52])}, bytes(52)),
    ("the arrays leave a gap", {"x": F32 | dict(data_offsets=[4, 28])}, bytes(28)),
    ("x has the type 'F8_E4M3', which NumPy cannot hold", {"x": dict(dtype="F8_E4M3", shape=[4], data_offsets=[0, 4])}, bytes(4)),
    ("x has the type None", {"x": dict(shape=[4], data_offsets=[0, 4])}, bytes(4)),
    (r"x has the type \['F32'\]", {"x": F32 | dict(dtype=["F32"])}, bytes(24)),
    ("x needs dtype, shape and two data_offsets", {"x": F32 | dict(shape=[-2, -3])}, bytes(24)),
    ("x needs dtype, shape and two data_offsets", {"x": F32 | dict(shape="23")}, bytes(24)),
    ("x needs dtype, shape and two data_offsets", {"x": F32 | dict(shape=[2, 3.0])}, bytes(24)),
    ("x needs dtype, shape and two data_offsets", {"x": F32 | dict(data_offsets=[0, 24, 48])}, bytes(24)),
    ("x needs dtype, shape and two data_offsets", {"x": 3}, b""),
    ("x has a shape that NumPy cannot hold", {"x": F32 | dict(shape=[1] * 64 + [2, 3])}, bytes(24)),
    ("x has a shape that NumPy cannot hold", {"x": F32 | dict(shape=[2 ** 70, 0], data_offsets=[0, 0])}, b""),
    ("__metadata__ must be an object of names and strings", {"__metadata__": {"a": 1}}, b""),
    ("__metadata__ must be an object of names and strings", {"__metadata__": [1]}, b""),
    ("malformed JSON", b"\xef\xbb\xbf{}", b""), ("malformed JSON", "{}".encode("utf-16-le"), b""),
    ("malformed JSON", b'{"x": ', b""), ("malformed JSON", b'{"\xff": 1}', b""), ("malformed JSON: x is there twice", b'{"x": 1, "x": 2}', b""),
    ("malformed JSON", b"[" * 100_000, b""), ("must be an object, not list", b"[1]", b""), ("malformed JSON", bytes(8), b"")])
def test_malformed_files(tmp_path, text, header, data):
    path = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(ValueError, match=text) as error:
        safetensors.load(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [
    b"", b"\x02\0\0", bytes(8), (3).to_bytes(8, "little") + b"{}", (2 ** 63).to_bytes(8, "little") + b"{}", b"PK\x03\x04" + bytes(100)])
def test_no_safetensors_file_at_all(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no safetensors file, or a truncated one"):
        safetensors.load(path)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    safetensors.save(tmp_path / "x.safetensors", {"x": np.arange(6.).reshape(2, 3), "y": np.arange(2)})
    whole = (tmp_path / "x.safetensors").read_bytes()
    for n in range(len(whole)):
        (tmp_path / "y.safetensors").write_bytes(whole[:n])
        with pytest.raises(ValueError, match="truncated"):
            safetensors.load(tmp_path / "y.safetensors")


def test_a_model_from_a_bfloat16_checkpoint(tmp_path):
    """In two files, with the names of the hub: the recorded logits, in float32."""
    config, weights, z = recorded("qwen3_5")
    hub = {name.replace("model.", "model.language_model."): w for name, w in weights.items()} | {"model.visual.x": np.ones(1), "mtp.y": np.ones(1)}
    names = list(hub)
    for file, part in (("1.safetensors", names[:20]), ("2.safetensors", names[20:])):
        write_bfloat16(tmp_path / file, {name: hub[name] for name in part})
    weight_map = {name: "1.safetensors" if i < 20 else "2.safetensors" for i, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(dict(weight_map=weight_map)))
    checkpoint = safetensors.load(tmp_path)
    logits, _ = hybrid.forward(z["forward_f64.input_ids"], checkpoint, config)
    assert logits.dtype == np.float32 and np.abs(logits - z["forward_f64.logits"]).max() < 2e-4
    for name, w in weights.items():
        assert (checkpoint[name.replace("model.", "model.language_model.")] == w).all()
    loss, gradients = hybrid.loss_and_gradients(z["grads.input_ids"], checkpoint, config)    # arrays that cannot be written to
    assert abs(loss - z["grads.loss"]) < 1e-5 and gradients.keys() == weights.keys()


def test_a_misshapen_checkpoint_is_refused_without_reading_it(tmp_path, monkeypatch):
    config, weights = tiny()
    safetensors.save(tmp_path / "model.safetensors", weights | {"model.norm.weight": np.zeros(7), "model.layers.0.linear_attn.A_log": np.zeros(2, int)})
    checkpoint = safetensors.load(tmp_path)
    monkeypatch.setattr(safetensors.Tensors, "__getitem__", None)
    text = r"no array of floats: model.layers.0.linear_attn.A_log \(int64\); of another shape: model.norm.weight \(7,\), not \(6,\)"
    with pytest.raises(ValueError, match=text):
        hybrid.forward(np.arange(3), checkpoint, config)
