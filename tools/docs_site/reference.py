"""The reference's pages: public names by theme, front ends, the command line, settings, kernels. What is public and has no place fails the build."""

from __future__ import annotations

import argparse
import ast
import enum
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aicf
from aicf import cli, config
from aicf.device.spec import PRESETS
from aicf.dispatch import default_registry
from aicf.registry.variant import kernels_of
from aicf.types import DType

from .house_style import inline, to_rst
from .ops import code, table, title

# Page -> its title, what it is about, and its names, in the order in which they are read.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "programs": (
        "Programs",
        "A model is compiled into a program, which runs, trains, explains itself and has the weights.",
        ("compile", "Program", "explain_for", "explain_over", "tune_for", "Policy", "LossScale", "Precision", "generate", "Generator", "quantize", "load",
         "save"),
    ),
    "tensors": (
        "Tensors and types",
        "What is fed and returned. Shapes are tuples, strides count elements, sizes of memory count bytes.",
        ("DType", *DType.__members__, "TensorSpec", "TensorDesc", "Tensor"),
    ),
    "devices": ("Devices", "What selection knows of a device, and what runs on it.", ("DeviceSpec", "current", "runtime")),
    "selection": (
        "Selection and kernels",
        "Which kernel runs, and why; one op called on tensors of any library.",
        ("op_call", "select", "Selection", "default_registry", "KernelRegistry", "ExecPlan", "Tuning", "OpKey",
         "schema_of", "schemas", "OpKind", "AttrPack", "ActKind", "logs"),
    ),
}  # fmt: skip
NN = {
    "layers": (
        "Layers and models",
        "Each layer's docstring has the shapes of what it takes and makes. A size is a number of elements along the last axis.",
        ("Model", "Layer", "Linear", "WeightOnlyLinear", "Embedding", "LayerNorm", "RMSNorm", "ReLU", "LeakyReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Dropout",
         "BiasAdd", "LSTM", "GRU", "RNN", "Sequential", "Residual", "MLP", "SwiGLU", "MultiHeadAttention", "ALiBi", "RoPE", "LinearScaling", "Llama3Scaling",
         "TransformerBlock"),
    ),
    "activations": (
        "Activations and dropout of channels",
        "Functions of each element, or along an axis; the commonest are among the layers. Names and arguments are PyTorch's.",
        ("CELU", "ELU", "GLU", "SELU", "AlphaDropout", "Dropout1d", "Dropout2d", "Dropout3d", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "ReLU6", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanhshrink", "Threshold"),
    ),
    "convolutions": (
        "Convolutions, pooling, norms of channels",
        "Layers of (N, C, …): a batch, channels, then one to three spatial axes. Names and arguments are PyTorch's; weights have its shapes and names.",
        ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d",
         "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d",
         "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
         "LocalResponseNorm", "LPPool1d", "LPPool2d", "LPPool3d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "CircularPad1d", "CircularPad2d", "CircularPad3d",
         "Upsample", "PixelShuffle", "PixelUnshuffle", "Flatten", "Identity"),
    ),
    "losses": ("Losses", "A loss is a 0-D value of f32.",
               ("SoftmaxCrossEntropy", "LinearCrossEntropy", "MeanSquaredError", "CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "BCELoss",
                "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "LogCoshLoss", "KLDivLoss", "PoissonNLLLoss", "GaussianNLLLoss", "HingeLoss",
                "HingeEmbeddingLoss", "SoftMarginLoss", "MultiMarginLoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MarginRankingLoss",
                "CosineEmbeddingLoss", "CosineSimilarityLoss", "TripletMarginLoss", "CTCLoss", "LossFunction", "ReducedLoss", "Loss")),
    "optimizers": (
        "Optimizers",
        "In the formulas p is a parameter, g its gradient, lr the learning rate; m, v, b and s are states.",
        ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "LAMB", "Muon", "ParamGroup", "Optimizer"),
    ),
}  # fmt: skip
MODULES = {  # page -> module, all of whose names it has
    "initialisers": ("Initialisers", "aicf.nn.init"),
    "schedules": ("Learning-rate schedules", "aicf.nn.schedules"),
    "models": ("Published models", "aicf.models"),
    "training": ("Training runs", "aicf.training"),
    "distributed": ("Several ranks", "aicf.distributed"),
}
FRONTENDS = {  # page -> its title, folder under aicf/frontends, {public name: name in the folder}
    "pytorch": ("PyTorch", "torch", {"aicf.torch.backend": "backend", "aicf.from_torch": "from_torch", "aicf.torch.load": "load",
                                     "aicf.torch.report": "report", "aicf.torch.graphs": "graphs", "aicf.torch.reset": "reset", "aicf.torch.compilations": "compilations"}),
    "jax": ("JAX", "jax", {"aicf.jax.jit": "jit", "aicf.jax.Jitted": "Jitted", "aicf.jax.report": "report",
                           "aicf.jax.JaxReport": "JaxReport"}),
    "onnx": ("ONNX", "onnx", {"aicf.from_onnx": "from_onnx", "aicf.onnx_backend": "OnnxBackend"}),
    "stablehlo": ("StableHLO", "stablehlo", {"aicf.frontends.stablehlo.read": "read", "aicf.frontends.stablehlo.run_module": "run_module",
                                             "aicf.frontends.stablehlo.infer_op": "infer_op"}),
}  # fmt: skip
ELSEWHERE = {
    "AicfError",
    "__version__",
    "errors",
    "models",
    "nn",
    "distributed",
    "training",
    "from_onnx",
    "onnx_backend",
    "init",
    "schedules",
}
INTERNAL = {
    "Program",
    "Selection",
    "ExecPlan",
    "Explanation",
}  # nobody calls these: their parameters say nothing
ORDER = ("programs", "layers", "activations", "convolutions", "losses", "optimizers", "schedules", "initialisers", "training", "distributed", "models", "tensors", "devices",
         "pytorch", "jax", "onnx", "stablehlo", "selection", "errors", "commands", "settings", "kernels")  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    _complete(aicf, PAGES)
    _complete(aicf.nn, NN)
    yield "reference/index", _index()
    for prefix, group in (("aicf", PAGES), ("aicf.nn", NN)):
        for name, (heading, about, names) in group.items():
            lines = [*title(heading), about, "", *_objects(prefix, names)]
            yield f"reference/{name}", "\n".join(lines)
    for name, (heading, module) in MODULES.items():
        public = import_of(module)
        lines = [*title(heading), *to_rst((public.__doc__ or "").partition("\n\n")[0])]
        yield f"reference/{name}", "\n".join([*lines, *_objects(module, tuple(public.__all__))])
    for name, (heading, folder, names) in FRONTENDS.items():
        yield f"reference/{name}", "\n".join([*title(heading), *_frontend(folder, names)])
    yield "reference/errors", _errors()
    yield "reference/commands", _commands()
    yield "reference/settings", _settings()
    yield "reference/kernels", _kernels()


def import_of(module: str) -> Any:
    found: Any = aicf
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    return found


def _complete(module: ModuleType, group: dict[str, tuple[str, str, tuple[str, ...]]]) -> None:
    placed = [
        name if hasattr(module, name) else f"{name}_" for _, _, names in group.values() for name in names
    ]
    wanted = set(module.__all__) - ELSEWHERE
    if set(placed) != wanted or len(placed) != len(wanted):
        raise SystemExit(
            f"tools/docs_site/reference.py: of {module.__name__} no page has {sorted(wanted - set(placed))}, "
            f"and there are no {sorted(set(placed) - wanted)}, or one stands twice"
        )


def _index() -> str:
    about = "From the docstrings, of every public name; the command line, settings and kernels from what the code declares."
    return (
        "\n".join(
            [
                *title("Names, commands, settings"),
                about,
                "",
                ".. toctree::",
                "   :maxdepth: 1",
                "",
                *(f"   {n}" for n in ORDER),
            ]
        )
        + "\n"
    )


def _objects(prefix: str, names: tuple[str, ...]) -> list[str]:
    lines = [f".. py:currentmodule:: {prefix}", ""]
    module = import_of(prefix)
    types = [n for n in names if isinstance(getattr(module, n, getattr(module, f"{n}_", None)), DType)]
    for name in names:
        if name in types:
            if name == types[0]:
                lines += _element_types()
            continue
        found = getattr(module, name)
        if isinstance(found, type):
            members = [
                "   :members:",
                *(["   :undoc-members:"] if issubclass(found, enum.Enum) and found is not DType else []),
            ]
            lines += [f".. autoclass:: {prefix}.{name}", *members, ""]
        elif callable(found) and hasattr(found, "__name__"):
            lines += [f".. autofunction:: {prefix}.{name}", ""]
        else:  # such as nn.init.ones: a value
            lines += [f".. py:data:: {prefix}.{name}", "", f"   ``{found!r}``", ""]
    return lines


def _element_types() -> list[str]:
    rows = [(f"``aicf.{_public(t)}``", str(8 * t.itemsize), t.kind, f"``{t.numpy.name}``") for t in DType]
    first, *others = (f"aicf.{_public(t)}" for t in DType)
    lines = [
        f".. py:data:: {first}",
        *(f"             {other}" for other in others),
        "   :no-contents-entry:",
        "",
    ]
    inside = ["The element types.", "", *table(("name", "bits", "kind", "of NumPy or ml_dtypes"), *rows)]
    return [*lines, *indented(inside), ""]


def _public(dtype: DType) -> str:
    return next(name for name in (dtype.name, f"{dtype.name}_") if getattr(aicf, name, None) is dtype)


# --- front ends: read, not imported, since their frameworks need not be installed -----------------------------------------


def _frontend(folder: str, names: dict[str, str]) -> list[str]:
    sources = sorted((Path(aicf.__file__).parent / "frontends" / folder).rglob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sources]
    lines = [
        *to_rst((ast.get_docstring(trees[0]) or "").partition("\n\n")[0]),
        ":doc:`/docs/frontends` shows it at work.",
        "",
    ]
    defined = {
        node.name: node
        for tree in trees
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    for public, name in names.items():
        lines += _declared(public, defined[name])
    return lines


def _declared(public: str, node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    doc = to_rst(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        head = f".. py:function:: {public}({ast.unparse(node.args)})"
        methods = []
    else:
        head = f".. py:class:: {public}"
        functions = [
            n
            for n in node.body
            if isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and ast.get_docstring(n)
        ]
        methods = [line for n in functions for line in _method(n)]
    return [head, "", *indented([*doc, *methods]), ""]


def indented(lines: list[str]) -> list[str]:
    return [f"   {line}" if line else "" for line in lines]


def _method(node: ast.FunctionDef) -> list[str]:
    given = ast.unparse(node.args)
    given = given.partition(", ")[2] if given.startswith(("self", "cls")) else given
    property_ = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
    head = f".. py:property:: {node.name}" if property_ else f".. py:method:: {node.name}({given})"
    return [head, "", *indented(to_rst(ast.get_docstring(node) or "")), ""]


# --- errors, commands, settings, kernels ----------------------------------------------------------------------------------


def _errors() -> str:
    found = [v for v in vars(aicf.errors).values() if isinstance(v, type) and issubclass(v, aicf.AicfError)]
    about = "Every error that aicf raises on purpose is an ``aicf.AicfError``: what, where, expected, got, and what to do next."
    lines = [*title("Errors"), about, ""]
    for error in found:
        lines += [f".. autoexception:: aicf.errors.{error.__name__}", "   :show-inheritance:", ""]
    return "\n".join(lines)


def _commands() -> str:
    parser = cli.parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    said = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    lines = [*title("Command line"), "``python -m aicf`` is the same as ``aicf``. Exit codes: 0; 1 where a check failed; 2 for an error; "
             "130 after Ctrl-C.", ""]  # fmt: skip
    rows = [(f":ref:`aicf {name} <aicf-{name}>`", inline(said[name])) for name in commands.choices]
    lines += table(("command", ""), *rows)
    for name, command in commands.choices.items():
        lines += [
            f".. _aicf-{name}:",
            "",
            *title(f"aicf {name}", "-"),
            *_sentences(command.description or said[name]),
        ]
        lines += [
            *code(command.format_usage().removeprefix("usage: ").rstrip(), "text"),
            f".. program:: aicf {name}",
            "",
        ]
        for action in command._actions:
            if not isinstance(action, argparse._HelpAction):
                lines += _option(command, action)
        if command.epilog:
            lines += to_rst(command.epilog)
    return "\n".join(lines)


def _sentences(text: str) -> list[str]:
    return [inline(text[:1].upper() + text[1:].rstrip(".")) + ".", ""]


def _option(command: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    given = (
        command._get_formatter()._format_args(action, action.metavar or action.dest.upper())
        if action.nargs != 0
        else ""
    )
    if not action.option_strings and action.choices is None:
        given = str(action.metavar or action.dest)
    names = ", ".join(f"{option} {given}".rstrip() for option in action.option_strings) or given
    told = (action.help or "") % {**vars(action), "prog": command.prog}
    return [f".. option:: {names}", "", *indented(to_rst(told)), ""]


def _settings() -> str:
    about, columns, rest = (config.__doc__ or "").split("\n\n", 2)
    lines = [*title("Settings"), *to_rst(about)]
    name, said = "", []
    for line in [*columns.split("\n"), "AICF_END  "]:
        if line.startswith("AICF_"):
            if name:
                lines += [f".. envvar:: {name}", "", f"   {inline(' '.join(said))}", ""]
            name, _, first = line.partition(" ")
            said = [first]
        else:
            said.append(line)
    return "\n".join([*lines, *to_rst(rest)])


def _kernels() -> str:
    lines = [*title("Kernels"), "Every kernel, with what it says of itself, and its configs. A number behind the last dot rises when results may differ in a bit. "
             "``aicf explain`` shows which one a model gets, and why no other.", ""]  # fmt: skip
    presets = [(f"``{d.name}``", d.target, str(d.sms), f"{d.bandwidth:g}", f"{d.tflops['f32']:g}", f"{d.tflops.get('f16', 0):g}")
               for d in PRESETS.values()]  # fmt: skip
    lines += [*title("Devices that are known", "-"),
              *table(("name", "target", "multiprocessors", "GB/s", "TFLOP/s f32", "TFLOP/s f16"), *presets)]  # fmt: skip
    for device in ("cuda", "cpu"):
        lines += title({"cuda": "CUDA kernels", "cpu": "Kernels of the host"}[device], "-")
        for kernel in kernels_of(v for v in default_registry() if v.device == device):
            id, (v, *more) = kernel.id, kernel
            facts = [("begins with", ", ".join(f"``{k}``" for k in v.kinds)), ("takes", ", ".join(f"``{t}``" for t in v.takes)),
                     ("needs", ", ".join(f"``{n}``" for n in v.needs)), ("from", "" if v.origin == "aicf" else v.origin),
                     ("configs", ", ".join(f"``{c.config}``" for c in (v, *more)) if v.config else "")]  # fmt: skip
            lines += [
                f".. _kernel-{id}:",
                "",
                *title(id, "~"),
                *to_rst(v.doc),
                *(f":{k}: {t}" for k, t in facts if t),
                "",
            ]
    return "\n".join(lines)
