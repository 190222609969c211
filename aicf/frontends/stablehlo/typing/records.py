"""StableHLO's own attributes: cases of enumerations, and records of several fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .scanner import INTEGER, WORD, Malformed, Scanner
from .types import Type, read_type
from .values import Attribute, Case, Plain, Record

FLOATING = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?")
KINDS: Mapping[str, frozenset[str]] = {
    name: frozenset(cases.split())
    for name, cases in {
        "comparison_direction": "EQ NE GE GT LE LT",
        "comparison_type": "NOTYPE FLOAT TOTALORDER SIGNED UNSIGNED",
        "precision": "DEFAULT HIGH HIGHEST",
        "fft_type": "FFT IFFT RFFT IRFFT",
        "rng_algorithm": "DEFAULT THREE_FRY PHILOX",
        "rng_distribution": "UNIFORM NORMAL",
        "transpose": "TRANSPOSE_INVALID NO_TRANSPOSE TRANSPOSE ADJOINT",
        "result_accuracy_mode": "DEFAULT HIGHEST TOLERANCE",
        "custom_call_api_version": "API_VERSION_UNSPECIFIED API_VERSION_ORIGINAL API_VERSION_STATUS_RETURNING API_VERSION_STATUS_RETURNING_UNIFIED API_VERSION_TYPED_FFI",
    }.items()
}  # fmt: skip


def wrapped(value: int, type: str) -> int:
    """An integer in its type: MLIR writes signless ones with either sign."""
    kind, _, width = type.rpartition("i") if type != "index" else ("", "", "64")
    bits = int(width)
    low = 0 if kind == "u" else -(2 ** (bits - 1))
    high = 2 ** (bits - 1) if kind == "s" else 2**bits
    if not low <= value < high:
        raise Malformed(f"{value} does not fit {type}")
    return value - 2**bits if kind == "" and value >= 2 ** (bits - 1) and bits > 1 else value


def read_dialect(s: Scanner, name: str) -> Attribute:
    if name == "#stablehlo" and s.sees("<"):  # #stablehlo<precision DEFAULT>, #stablehlo<dot<…>>
        s.expect("<")
        kind = s.word("the name of an attribute")
        made = _case(s, kind) if kind in KINDS else _record(s, kind)
        s.expect(">")
        return made
    if name.startswith("#stablehlo."):
        kind = name.removeprefix("#stablehlo.")
        if kind == "result_accuracy_mode":
            s.expect("<")
            made = _case(s, kind)
            s.expect(">")
            return made
        return _record(s, kind)
    text = name + (s.balanced() if s.sees("<") else "")
    return Plain("dialect", text)


def _case(s: Scanner, kind: str) -> Case:
    found = s.word(f"one of {', '.join(sorted(KINDS[kind]))}")
    if found not in KINDS[kind]:
        raise Malformed(f"{found} is no {kind}; expected one of {', '.join(sorted(KINDS[kind]))}")
    return Case(kind, found)


def _ints(s: Scanner) -> tuple[int, ...]:
    return tuple(wrapped(s.integer(), "i64") for _ in s.items("[", "]"))


def _int(s: Scanner) -> int:
    return wrapped(s.integer(), "i64")


def _flag(s: Scanner) -> bool:
    if s.take("true"):
        return True
    s.expect("false")
    return False


def _real(s: Scanner) -> float:
    found = s.match(FLOATING) or s.match(INTEGER)
    if found is None:
        raise s.wrong("a number")
    return float(found.group())


def _mode(s: Scanner) -> Case:
    s.expect("#stablehlo.result_accuracy_mode")
    s.expect("<")
    made = _case(s, "result_accuracy_mode")
    s.expect(">")
    return made


def _typed(s: Scanner) -> Type:
    return read_type(s)


Reader = Callable[[Scanner], object]
_CONV: Mapping[str, Reader] = {
    "input_batch_dimension": _int, "input_feature_dimension": _int, "input_spatial_dimensions": _ints,
    "kernel_input_feature_dimension": _int, "kernel_output_feature_dimension": _int, "kernel_spatial_dimensions": _ints,
    "output_batch_dimension": _int, "output_feature_dimension": _int, "output_spatial_dimensions": _ints,
}  # fmt: skip
_FIELDS: Mapping[str, Mapping[str, Reader]] = {
    "dot": dict.fromkeys(
        ("lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions", "rhs_contracting_dimensions"), _ints
    ),
    "gather": {
        **dict.fromkeys(("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map"), _ints),
        "index_vector_dim": _int,
    },
    "scatter": {
        **dict.fromkeys(
            ("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims", "scatter_dims_to_operand_dims"), _ints
        ),
        "index_vector_dim": _int,
    },
    "channel_handle": {"handle": _int, "type": _int},
    "result_accuracy": {"atol": _real, "rtol": _real, "ulps": _int, "mode": _mode},
    "dot_algorithm": {
        **dict.fromkeys(("lhs_precision_type", "rhs_precision_type", "accumulation_type"), _typed),
        **dict.fromkeys(("lhs_component_count", "rhs_component_count", "num_primitive_operations"), _int),
        "allow_imprecise_accumulation": _flag,
    },
}  # fmt: skip
_DEFAULTS: Mapping[Reader, object] = {_ints: (), _int: 0, _real: 0.0}
_WHOLE = ("channel_handle", "dot_algorithm")  # every field is to be there


def _record(s: Scanner, kind: str) -> Attribute:
    if kind == "conv":
        return _convolution(s)
    if kind in ("bounds", "type_extensions"):
        return Plain("bounds", s.balanced())
    if kind not in _FIELDS:
        if kind in KINDS:
            raise Malformed(f"an attribute {kind} is written as #stablehlo<{kind} …>")
        if s.sees("<"):
            return Plain("dialect", f"#stablehlo.{kind}{s.balanced()}")
        raise Malformed(f"StableHLO has no attribute {kind}")
    fields = _FIELDS[kind]
    found: dict[str, object] = {name: _DEFAULTS.get(read) for name, read in fields.items()}
    seen = set()
    for _ in s.items("<", ">"):
        name = s.word("a field")
        if name not in fields or name in seen:
            raise Malformed(
                f"#stablehlo.{kind} has {'two fields' if name in seen else 'no field'} {name}; expected {', '.join(fields)}"
            )
        seen.add(name)
        s.expect("=")
        found[name] = fields[name](s)
    if kind in _WHOLE and (missing := [name for name in fields if name not in seen]):
        raise Malformed(f"#stablehlo.{kind} needs {', '.join(missing)}")
    return Record(kind, found)


def _convolution(s: Scanner) -> Record:
    """`#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`, or `raw` and all fields by name."""
    s.expect("<")
    found: dict[str, object] = {}
    if s.take("raw"):
        for n, (name, read) in enumerate(_CONV.items()):
            if n:
                s.expect(",")
            s.expect(name)
            s.expect("=")
            found[name] = read(s)
    else:
        for part, letters in (("input", "bf"), ("kernel", "io"), ("output", "bf")):
            if part == "kernel":
                s.expect("x") if not s.sees("x[") else s.match(re.compile("x"))
            if part == "output":
                s.expect("->")
            named, places = _axes(s, letters)
            kinds = ("input_feature", "output_feature") if part == "kernel" else ("batch", "feature")
            for letter, kind in zip(letters, kinds):
                found[f"{part}_{kind}_dimension"] = named[letter]
            found[f"{part}_spatial_dimensions"] = places
    s.expect(">")
    return Record("conv", found)


def _axes(s: Scanner, letters: str) -> tuple[dict[str, int], tuple[int, ...]]:
    named: dict[str, int] = {}
    spatial: dict[int, int] = {}
    for index in s.items("[", "]"):
        if s.take("?"):
            continue
        if (found := s.match(WORD)) is not None:
            if found.group() not in letters or found.group() in named:
                raise Malformed(
                    f"{found.group()!r} is no dimension here; expected {', '.join(letters)} once each, and numbers"
                )
            named[found.group()] = index
            continue
        place = s.integer()
        if place < 0 or place in spatial:
            raise Malformed(f"the spatial dimension {place} is negative, or stands twice")
        spatial[place] = index
    if len(named) < len(letters) or any(n >= len(spatial) for n in spatial):
        raise Malformed(f"dimensions are missing; expected {', '.join(letters)} and numbers from 0 on")
    return named, tuple(spatial[n] for n in range(len(spatial)))
