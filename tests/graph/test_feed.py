"""Feeding (C7, C9-C11): what is wrong is one clear error before anything runs; what is strided is staged or refused."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
from nn.mlp import batch_of, host, mlp, on_each_device, same, trainer

import aicf
from aicf import nn
from aicf.device.foreign import Foreign
from aicf.device.tensor import Tensor
from aicf.errors import CaptureError, FeedError
from aicf.graph.run.plan import Slot
from aicf.graph.run.slots import check_feed

from .chains import Fn

X = batch_of(6)["x"]


class OnAGpu:
    """A tensor of another library on a GPU; its memory must never be touched."""

    __cuda_array_interface__ = {
        "shape": (6, 5),
        "typestr": "<f4",
        "data": (0x7F0000000000, False),
        "version": 3,
    }


WRONG = {
    "missing": (lambda f: f.pop("y"), "the feed of y is wrong", ["expected: tensor<6xi64>", "got: nothing", "feed all of x, y"]),
    "extra": (lambda f: f.update(z=X), "the feed of z is wrong", ["no such input; inputs are x, y"]),
    "misnamed": (
        lambda f: f.update(X=f.pop("x")), "2 tensors of the feed are wrong",
        ["X: expected nothing: no such input", "x: expected tensor<6x5xf32>; got nothing", "next: X: feed it as 'x'"],
    ),
    "wide": (lambda f: f.update(x=X[:, :4]), "the feed of x is wrong", ["tensor<6x5xf32>", "tensor<6x4xf32>", "only dimensions that have names follow"]),
    "rank": (lambda f: f.update(x=X[0]), "the feed of x is wrong", ["expected: tensor<6x5xf32>", "got: tensor<5xf32>"]),
    "f16": (lambda f: f.update(x=X.astype(np.float16)), "the feed of x is wrong", ["tensor<6x5xf16>", "np.asarray(x, np.float32)"]),
    "f64": (lambda f: f.update(x=X.astype(float)), "the feed of x is wrong", ["got: tensor<6x5xf64>", "np.asarray(x, np.float32)"]),
    "list": (lambda f: f.update(x=X.tolist()), "the feed of x is wrong", ["x is a list, not a tensor"]),
    "labels": (lambda f: f.update(y=f["y"][:5]), "the feed of y is wrong", ["tensor<6xi64>", "tensor<5xi64>"]),
    "label type": (lambda f: f.update(y=f["y"].astype(np.int32)), "the feed of y is wrong", ["tensor<6xi32>", "np.asarray(y, np.int64)"]),
    "many": (
        lambda f: f.update(x=X.astype(float), y=3, z=X), "3 tensors of the feed are wrong",
        ["x: expected tensor<6x5xf32> with batch = 6 from x; got tensor<6x5xf64>", "y: expected tensor<6xi64>; got y is a int",
         "z: expected nothing"],
    ),
    "nothing": (lambda f: f.clear(), "2 tensors of the feed are wrong", ["x: expected tensor", "y: expected tensor"]),
}  # fmt: skip


@pytest.mark.sample(1, each="what")
@on_each_device
@pytest.mark.spec("C7")
@pytest.mark.parametrize("how", ["run", "replay"])
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_feed_is_one_error_and_nothing_has_run(device, how, what):
    program = trainer(device)
    program.run(batch_of(6))
    before, plans = program.state_dict(), len(program._plans)
    feed = batch_of(6)
    breaks, summary, said = WRONG[what]
    breaks(feed)
    with pytest.raises(FeedError, match=summary) as error:
        getattr(program, how)(feed)
    for text in said:
        assert text in str(error.value)
    assert same(program.state_dict(), before)
    assert (program.runs, len(program._plans)) == (1, plans)


@pytest.mark.spec("C7")
@pytest.mark.parametrize("how", ["run", "replay"])
def test_a_gpu_tensor_fed_to_the_cpu_is_refused_untouched(how):
    program = trainer("cpu")
    with pytest.raises(FeedError, match="the feed of x is wrong") as error:
        getattr(program, how)({**batch_of(6), "x": OnAGpu()})
    assert "expected: a host array" in str(error.value)
    assert "got: a cuda:0 tensor" in str(error.value)
    assert program.get("step") == 0


@on_each_device
@pytest.mark.spec("C7")
def test_batch_sizes_that_disagree_are_named_with_both(device):
    class Second(nn.Layer):
        def emit(self, ctx, x):
            return ctx.add(x, ctx.builder.find("u"))

    model = nn.Model({"x": aicf.TensorSpec(("batch", 5)), "u": aicf.TensorSpec(("batch", 5))}, batch=6)
    program = aicf.compile(model.add(Second()), device=device)
    np.testing.assert_array_equal(program.run({"x": X, "u": X})["output"].numpy(), X + X)
    with pytest.raises(FeedError, match="the feed of u is wrong") as error:
        program.run({"x": X, "u": X[:4]})
    assert "batch = 6, as in x" in str(error.value)
    assert "tensor<4x5xf32>" in str(error.value)


# --- strided and misaligned feeds -------------------------------------------------------------------------------------


def misaligned(x: np.ndarray) -> np.ndarray:
    raw = np.empty(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def padded(x: np.ndarray) -> np.ndarray:
    wide = np.zeros((x.shape[0], x.shape[1] + 3), x.dtype)
    wide[:, 2 : 2 + x.shape[1]] = x
    return wide[:, 2 : 2 + x.shape[1]]


AWKWARD = {
    "transposed": lambda x: np.asfortranarray(x),
    "every other row": lambda x: np.repeat(x, 2, 0)[::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "a column block": padded,
    "misaligned": misaligned,
}
LAYOUTS = {
    **AWKWARD, "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "at an offset": lambda x: np.concatenate([x[:1], x])[1:], "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype)
    .reshape(x.shape),
}  # fmt: skip


@on_each_device
@pytest.mark.spec("C7", "A14")
@pytest.mark.parametrize("how", ["run", "replay"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_strided_feed_gives_what_its_dense_copy_gives(device, how, layout):
    program = aicf.compile(mlp("gelu"), device=device)
    view = LAYOUTS[layout](X)
    want = host(program.run({"x": np.ascontiguousarray(view).copy()}))
    assert same(host(getattr(program, how)({"x": view})), want)


@pytest.mark.spec("C7", "A14")
@pytest.mark.parametrize("layout", AWKWARD)
def test_staging_is_noted_or_refused_by_name(layout):
    program = aicf.compile(mlp(), device="cpu")
    view = AWKWARD[layout](X)
    program.run({"x": view})
    assert len(program.notes) == 1
    assert program.notes[0].startswith("x was staged into a dense slot: it ")
    with pytest.raises(FeedError, match="x can't be bound as it is: it ") as error:
        program.run({"x": view}, contiguous="raise")
    assert "contiguous='copy'" in str(error.value)
    program.run({"x": X}, contiguous="raise")
    assert program.notes == []
    with pytest.raises(FeedError, match="contiguous='maybe'"):
        program.run({"x": X}, contiguous="maybe")


@on_each_device
@pytest.mark.spec("C9")
def test_contiguity_is_no_part_of_a_replay_s_key_and_the_feed_may_go_away(device):
    program = aicf.compile(mlp(), device=device)
    for view in (X, np.asfortranarray(X), misaligned(X)):
        feed = view.copy("K")
        program.replay({"x": feed})
        feed[...] = np.nan
    assert len(program._frozen) == 1
    assert np.isfinite(program.replay({"x": X})["output"].numpy()).all()


@on_each_device
@pytest.mark.spec("C9")
def test_each_feed_signature_is_frozen_once_and_the_cache_is_bounded(device):
    from aicf.graph.run.plans import MAX_ENTRIES

    program = aicf.compile(mlp(sizes=(5, 3)), device=device)
    for rows in (1, 2, 3, 2, 1):
        assert program.replay({"x": batch_of(rows)["x"]})["output"].shape == (rows, 3)
    assert len(program._frozen) == len(program._plans) - 1 == 3
    for rows in range(4, MAX_ENTRIES + 8):
        program.replay({"x": batch_of(rows)["x"]})
    assert len(program._frozen) == len(program._plans) == MAX_ENTRIES
    assert program.replay({"x": batch_of(1)["x"]})["output"].shape == (1, 3)


@on_each_device
@pytest.mark.spec("C10")
def test_a_static_input_is_bound_once_and_another_is_refused(device):
    program = aicf.compile(mlp(), device=device, copy_roles=(), capture="strict")
    rt = aicf.runtime(device)
    fixed, other = (rt.upload(x, aicf.TensorSpec(x.shape, device=device)) for x in (X, X + 1))
    first = host(program.replay({"x": fixed}))
    assert same(host(program.replay({"x": fixed})), first)
    with pytest.raises(FeedError, match="a static input moved: x was captured at"):
        program.replay({"x": other})
    rt.write(fixed, X + 1)
    assert same(host(program.replay({"x": fixed})), host(program.run({"x": X + 1})))


# --- other libraries' tensors -----------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("B1")
@pytest.mark.parametrize("protocol", ["__dlpack", "__array_interface__"])
def test_tensors_of_other_libraries_are_fed_by_protocol(device, protocol):
    program = aicf.compile(mlp(), device=device)
    want = host(program.run({"x": X}))
    array = X.copy()
    if protocol == "__array_interface__":
        made = type("Exports", (), {"__array_interface__": array.__array_interface__, "kept": array})()
    else:
        made = type("Exports", (), {
            "__dlpack__": lambda self, **k: array.__dlpack__(**k), "__dlpack_device__": lambda self: (1, 0)
        })()  # fmt: skip
    assert same(host(program.run({"x": made})), want)
    assert same(host(program.replay({"x": made})), want)


@on_each_device
@pytest.mark.spec("B1")
def test_torch_tensors_are_fed_and_results_go_back(device):
    torch = pytest.importorskip("torch")
    program = aicf.compile(mlp(), device=device)
    want = host(program.run({"x": X}))
    for tensor in (torch.from_numpy(X), torch.from_numpy(X).requires_grad_(), torch.from_numpy(X.T.copy()).T):
        assert same(host(program.run({"x": tensor})), want)
        assert same(host(program.replay({"x": tensor})), want)
    if device == "cuda":
        assert same(host(program.replay({"x": torch.from_numpy(X).cuda()})), want)
    back = torch.as_tensor(program.run({"x": X})["output"].numpy())
    np.testing.assert_array_equal(back.numpy(), want["output"])


@pytest.mark.gpu
@pytest.mark.spec("C7", "C9")
def test_great_host_arrays_may_change_while_replays_of_them_are_on_their_way():
    program = aicf.compile(mlp(sizes=(700, 3), batch=200), device="cuda")
    x = batch_of(200, inputs=700)["x"]
    assert x.nbytes > 2**16  # more than the driver takes with it when it is asked
    wanted = [program.run({"x": x + n})["output"].numpy() for n in range(16)]
    fed, results = x.copy(), []
    for n in range(16):
        fed[...] = x + n
        results.append(program.replay({"x": fed})["output"])
        fed[...] = np.nan
    for got, want in zip(results, wanted):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.gpu
@pytest.mark.spec("C7", "C9")
def test_host_arrays_of_threads_and_sizes_in_turn_while_others_run():
    """Of 65 KB to 9 MB, some strided, in two threads with programs of their own."""

    def train(seed: int, failed: list) -> None:
        try:
            rng = np.random.default_rng(seed)
            program = aicf.compile(mlp(sizes=(700, 3), batch=24), device="cuda")
            fed = [rng.normal(size=(n, 700)).astype(np.float32) for n in (24, 200, 3300, 100, 1200)] * 6
            wanted = {id(x): program.run({"x": x})["output"].numpy() for x in fed}
            results = []
            for n, x in enumerate(fed):
                given = np.repeat(x, 2, axis=1)[:, ::2] if n % 3 == 0 else x.copy()
                results.append(program.replay({"x": given})["output"])
                given[...] = np.nan
            for x, got in zip(fed, results):
                np.testing.assert_array_equal(got.numpy(), wanted[id(x)])
        except BaseException as error:
            failed.append(error)

    failed: list = []
    threads = [threading.Thread(target=train, args=(seed, failed)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.gpu
@pytest.mark.spec("B13", "C9", "F3")
@pytest.mark.parametrize("first", [True, False], ids=["compiled there", "compiled before"])
def test_a_program_in_a_capture_of_the_caller_s_is_refused_and_the_capture_lives(first):
    """Whatever is fed: from host arrays its work would go beside the capture, unseen."""
    torch = pytest.importorskip("torch")
    program = aicf.compile(mlp(), device="cuda")
    x = torch.from_numpy(X).cuda()
    want = program.run({"x": X})["output"].numpy()
    if not first:
        program.replay({"x": X}), program.replay({"x": x})
    doubled, runs = x * 2, program.runs
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in (program.replay, program.run, program.capture):
            for fed in (X, x):
                with pytest.raises(CaptureError, match="current stream is being captured"):
                    call({"x": fed})
        torch.mul(x, 2, out=doubled)
    assert program.runs == runs
    x.fill_(3)
    graph.replay()
    assert torch.equal(doubled, torch.full_like(x, 6))
    np.testing.assert_array_equal(program.replay({"x": X})["output"].numpy(), want)


@pytest.mark.gpu
@pytest.mark.spec("C7", "C9")
def test_a_frozen_plan_takes_device_tensors_of_every_layout_in_turn():
    torch = pytest.importorskip("torch")
    program = aicf.compile(mlp(), device="cuda")
    layouts = [
        lambda x: x,
        lambda x: x.t().contiguous().t(),
        lambda x: x[:1].expand(*x.shape),
        lambda x: torch.cat([x, x], 1)[:, 2 : 2 + x.shape[1]],
        lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
        lambda x: torch.repeat_interleave(x, 2, 0)[::2],
    ]
    for n in range(3):
        for layout in layouts:
            x = layout(torch.from_numpy(X + n).cuda())
            got = host(program.replay({"x": x}))
            assert same(got, host(program.run({"x": np.ascontiguousarray(x.cpu().numpy())})))
    assert len(program._frozen) == 1


class Managed:
    """Memory that the host and the device share."""

    def __init__(self, x: np.ndarray, runtime) -> None:
        driver, everywhere = runtime.driver, 1
        pointer = int(runtime.check(driver.cuMemAllocManaged(x.nbytes, everywhere))[0])
        weakref.finalize(self, driver.cuMemFree, pointer)
        runtime.write(Tensor(aicf.TensorSpec(x.shape, device="cuda"), pointer, runtime), x)
        self.__cuda_array_interface__ = {
            "shape": x.shape, "typestr": x.dtype.str, "data": (pointer, False), "version": 3,
            "stream": runtime.stream_id,
        }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.spec("B1", "C9")
@pytest.mark.parametrize("first", range(4))
def test_a_frozen_plan_takes_every_kind_of_device_memory_in_turn(first):
    """PyTorch's two kinds of segments, aicf's pool, managed memory."""
    torch = pytest.importorskip("torch")
    rt = aicf.runtime("cuda")
    program = aicf.compile(mlp(sizes=(700, 3), batch=2000), device="cuda")
    x = batch_of(2000, inputs=700)["x"]
    settings = getattr(torch.cuda.memory, "_set_allocator_settings", lambda text: None)
    kinds = [
        torch.from_numpy(x).cuda(),
        rt.upload(x, aicf.TensorSpec(x.shape, device="cuda")),
        Managed(x, rt),
    ]
    settings("expandable_segments:True")
    try:
        kinds.append(torch.from_numpy(x).cuda())
    finally:
        settings("expandable_segments:False")
    want = host(program.run({"x": x}))
    for n in range(8):
        assert same(host(program.replay({"x": kinds[(first + n) % 4]})), want)
    assert len(program._frozen) == 1


@pytest.mark.gpu
@pytest.mark.spec("B5", "C9")
@pytest.mark.parametrize("current", ["default", "another"])
def test_replays_are_in_order_with_torch_s_stream(current):
    """Each feed is made after a long wait and written over, or freed and its memory taken, right after the call."""
    torch = pytest.importorskip("torch")
    program = aicf.compile(mlp(), device="cuda")
    wanted = [host(program.run({"x": X + n}))["output"] for n in range(20)]
    held = torch.empty(X.shape, device="cuda")
    results = []
    with torch.cuda.stream(torch.cuda.Stream() if current == "another" else torch.cuda.default_stream()):
        inputs = [torch.from_numpy(X + n).cuda() for n in range(20)]
        for n, x in enumerate(inputs):
            torch.cuda._sleep(200_000)
            fed = held.copy_(x) if n % 2 else x.clone()
            results.append(program.replay({"x": fed})["output"])
            if n % 2:
                held.fill_(float("nan"))
            else:
                del fed
                torch.full(X.shape, float("nan"), device="cuda")
        taken = [torch.from_dlpack(r).cpu().numpy() for r in results]
    for got, again, want in zip(results, taken, wanted):
        np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal(again, want)


@pytest.mark.spec("B1")
def test_a_result_speaks_dlpack_and_numpy():
    got = aicf.compile(mlp(), device="cpu").run({"x": X})["output"]
    np.testing.assert_array_equal(np.from_dlpack(got), got.numpy())
    np.testing.assert_array_equal(np.asarray(got), got.numpy())
    assert np.asarray(got, np.float64).dtype == np.float64


@on_each_device
def test_bf16_and_f16_models_run_in_their_own_type(device):
    rng = np.random.default_rng(0)
    for dtype in (aicf.f16, aicf.bf16):
        model = nn.Model({"x": aicf.TensorSpec(("batch", 5), dtype)}, batch=3)
        model.add(nn.Linear(5, 4)).add(nn.ReLU()).add(Fn(lambda ctx, x: ctx.scale(x, factor=2.0)))
        program = aicf.compile(model, device=device)
        x = rng.normal(size=(3, 5)).astype(dtype.numpy)
        w, b = (program.get(n).astype(float) for n in ("0.weight", "0.bias"))
        got = program.run({"x": x})["output"]
        assert got.dtype is dtype
        want = 2 * np.maximum(x.astype(float) @ w.T + b, 0)
        np.testing.assert_allclose(got.numpy().astype(float), want, rtol=3e-2, atol=3e-2)


@pytest.mark.spec("C7")
def test_a_tensor_of_another_gpu_is_refused_by_its_number():
    desc = aicf.TensorDesc.dense(aicf.TensorSpec((3,), device="cuda"))
    slot = Slot(0, "x", aicf.TensorSpec((3,), device="cuda"), aicf.ir.Role.input)
    feed = {"x": Foreign(desc, 4096, None, None, ordinal=1)}
    assert check_feed([slot], feed, "cuda:1") == feed
    with pytest.raises(FeedError, match=r"a host array or a cuda:0 tensor(.|\n)*got: a cuda:1 tensor"):
        check_feed([slot], feed, "cuda:0")


@pytest.mark.parametrize(
    "shape, hint, mend",
    [
        ((6,), "y[..., None] adds the last dimension", lambda y: y[..., None]),
        ((6, 1, 1), "y[..., 0] drops the last dimension", lambda y: y[..., 0]),
    ],
)
def test_targets_with_a_dimension_too_few_or_too_many_are_told_how_to_mend_it(shape, hint, mend):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=6).add(nn.Linear(4, 1))
    program = trainer("cpu", model, loss="mse")
    feed = {"x": np.ones((6, 4), np.float32), "y": np.ones(shape, np.float32)}
    with pytest.raises(FeedError, match="the feed of y is wrong") as raised:
        program(feed)
    assert hint in str(raised.value)
    program({**feed, "y": mend(feed["y"])})  # what it says works


@pytest.mark.parametrize(
    "sample, shape, hint, mend",
    [
        ((3, 5, 7), (2, 5, 7, 3), "x.transpose(0, 3, 1, 2)", lambda x: x.transpose(0, 3, 1, 2)),
        ((5, 7, 3), (2, 3, 5, 7), "x.transpose(0, 2, 3, 1)", lambda x: x.transpose(0, 2, 3, 1)),
        ((4,), (4,), "x[None] adds the first dimension", lambda x: x[None]),
    ],
)
def test_axes_in_another_order_and_a_batch_that_is_missing(sample, shape, hint, mend):
    program = aicf.compile(nn.Model({"x": aicf.TensorSpec(("batch", *sample))}, batch=1).add(nn.ReLU()))
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with pytest.raises(FeedError) as raised:
        program({"x": x})
    assert hint in str(raised.value)
    assert (program({"x": mend(x)})["output"].numpy() == np.maximum(mend(x), 0)).all()


def test_one_hot_labels_are_told_to_be_numbers():
    labels = np.array([2, 0, 1, 3, 3, 1])
    program = trainer("cpu", nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=6).add(nn.Linear(4, 4)))
    feed = {"x": np.ones((6, 4), np.float32), "y": np.eye(4, dtype=np.float32)[labels]}
    with pytest.raises(FeedError, match=r"y\.argmax\(-1\)"):
        program(feed)
    program({**feed, "y": feed["y"].argmax(-1)})
