"""Thousands of calls among PyTorch's own work: threads, streams, PyTorch's CUDA graphs. Inputs are poisoned as soon as a call is queued,
results are looked at later, and none may have another value than eager PyTorch's."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402

NAN = float("nan")
ON_GPU = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no NVIDIA GPU")
]  # fmt: skip


class Several(nn.Module):
    """Parts with PyTorch's ops between them; two results."""

    def __init__(self, width=24):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(3, 4, 3), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        y = torch.relu(self.head(self.norm(x)) * 2 + 1)
        z = torch.sigmoid(self.conv(y)) * 2 - y[:, :1, 2:]
        return y.softmax(-1), z.sum(-1)


def prepared(device, sizes=(2, 5, 9)):
    """The model, compiled; inputs of several sizes; what eager PyTorch makes of them."""
    model = Several().to(device)
    call = torch.compile(model, backend="aicf", dynamic=False)
    given = [torch.randn(n, 3, 24, device=device) for n in sizes]
    with torch.no_grad():
        want = [model(x) for x in given]
        for x in given:
            call(x)
    return model, call, given, want


def wrong(got, want):
    """How many elements are another value, beside the greatest, as a tensor: looking at it waits. NaN is one."""
    return sum((~((a - b).abs() <= 1e-5 * b.abs().amax() + 1e-6)).sum() for a, b in zip(got, want))


def in_threads(work, count):
    errors = []

    def guarded(n):
        try:
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]


def test_threads_on_the_host():
    model, call, given, want = prepared("cpu")
    grads = [
        torch.autograd.grad(sum(y.square().sum() for y in model(x)), list(model.parameters())) for x in given
    ]
    bad = [0] * 4

    def work(n):
        kept = []
        for run in range(80):
            which = (run + n) % len(given)
            x = given[which].clone()
            if run % 5:
                with torch.no_grad():
                    got = call(x)
                x.fill_(NAN)
                kept.append((got, want[which]))
            else:
                out = sum(y.square().sum() for y in call(x))
                kept.append((torch.autograd.grad(out, list(model.parameters())), grads[which]))
            if len(kept) > 8:  # later: others have computed in between
                bad[n] += sum(int(wrong(a, b)) for a, b in kept)
                kept.clear()

    in_threads(work, 4)
    assert bad == [0] * 4


class TestOnAGpu:
    pytestmark = ON_GPU

    @pytest.mark.parametrize("threads", [1, 4])
    def test_streams_and_threads(self, threads):
        _, call, given, want = prepared("cuda")
        torch.cuda.synchronize()
        bad = torch.zeros(threads, dtype=torch.int64, device="cuda")

        def work(n):
            streams = [torch.cuda.Stream() for _ in range(3)]
            for run in range(2000 // threads):
                which, stream = run % len(given), streams[run % 3]
                with torch.no_grad(), torch.cuda.stream(stream):
                    x = torch.full_like(given[which], NAN)
                    x.copy_(given[which])
                    got = call(x)
                    x.fill_(NAN)
                    junk = torch.full((1 << 14,), NAN, device="cuda")  # over what was freed, if too early
                    bad[n] += wrong(got, want[which])
                    del junk, got, x
            for stream in streams:
                stream.synchronize()

        in_threads(work, threads)
        torch.cuda.synchronize()
        assert not bad.any(), bad.tolist()

    def test_pytorchs_graphs_beside_calls(self):
        _, call, given, want = prepared("cuda")
        side, captured = torch.cuda.Stream(), []
        with torch.no_grad():
            for x in given:
                held = x.clone()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    call(held)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = call(held)
                captured.append((graph, held, out))
        torch.cuda.synchronize()
        bad = torch.zeros(2, dtype=torch.int64, device="cuda")

        def work(n):
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                for run in range(1000):
                    which = run % len(given)
                    if n:
                        graph, held, out = captured[which]
                        held.copy_(given[which])
                        for y in out:
                            y.fill_(NAN)
                        graph.replay()
                        held.fill_(NAN)
                        bad[n] += wrong(out, want[which])
                    else:
                        bad[n] += wrong(call(given[which].clone()), want[which])
                torch.cuda.current_stream().synchronize()

        in_threads(work, 2)
        assert not bad.any(), bad.tolist()

    def test_training_beside_pytorchs_on_other_streams(self):
        model, call, given, _ = prepared("cuda")
        grads = [
            torch.autograd.grad(sum(y.square().sum() for y in model(x)), list(model.parameters()))
            for x in given
        ]
        torch.cuda.synchronize()
        bad, streams = (
            torch.zeros((), dtype=torch.int64, device="cuda"),
            [torch.cuda.Stream() for _ in range(2)],
        )
        for run in range(600):
            which = run % len(given)
            with torch.cuda.stream(streams[run % 2]):
                x = given[which].clone()
                got = torch.autograd.grad(sum(y.square().sum() for y in call(x)), list(model.parameters()))
                noise = torch.full((64, 64), NAN, device="cuda") @ torch.ones(64, 64, device="cuda")
                for a, b in zip(got, grads[which]):
                    bad += (~torch.isclose(a, b, rtol=1e-3, atol=1e-3)).sum()
                del noise
            streams[(run + 1) % 2].wait_stream(streams[run % 2])
        torch.cuda.synchronize()
        assert int(bad) == 0
