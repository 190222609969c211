"""How a choice is described: short by default (chosen, why the runner-up lost), everything when verbose, JSON for tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from ..ir import Recognised
from ..ops.gemm import BIAS_PER_M, BIAS_PER_N, BIAS_SCALAR
from ..printing import labelled
from ..rows.program import Gemm, RegionProgram
from ..rows.read import read
from ..types import ActKind, Precision, f32
from .measured import counted
from .variant import NEEDLESS, Reject, kernels_of, structure

if TYPE_CHECKING:
    from .select import Candidate, Selection
    from .variant import KernelVariant


def microseconds(us: float) -> str:
    return f"{us:.3g} us" if us < 999.5 else f"{us / 1e3:.3g} ms" if us < 999.5e3 else f"{us / 1e6:.3g} s"


def not_measured(device: str, kind: str) -> str:
    """The sentence for a device whose predictions were never compared with measured times."""
    fitted = "the cpu preset" if kind == "cpu" else "an h200"
    return f"predictions for {device} are not measured: their constants were fitted on {fitted}"


def errors_of_predictions(errors: Mapping[str, Any]) -> str:
    """How far predictions are off, by family of ops, as a calibration has it; "" if it says nothing."""
    each = ", ".join(f"{e['off']:.0%} for {name}" for name, e in errors.items())
    return f"predictions are off by {each}: regions of published models that were not fitted" if each else ""


def factor(ratio: float) -> str:
    """`0.38`, `5.2` or `610`, to be followed by "times"."""
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"


def describe_product(selection: Selection) -> str:
    """` · precision tf32 · bias PerN · z kept`: how far a product may round its operands, its biases, and whether
    it keeps what its activation reads."""
    program = read(selection.region)
    if not isinstance(program, RegionProgram) or not isinstance(program.core, Gemm):
        return ""
    after = program.after
    kinds, keeps = [], False
    for apply in after.applies:
        if apply.kind.name == "bias_add" and 0 < (slot := apply.ins[1]) <= len(after.loads):
            load = after.loads[slot - 1]  # slot 0 is the product
            kinds.append(BIAS_PER_N if load.strides[-1] else BIAS_PER_M if any(load.strides) else BIAS_SCALAR)
        elif apply.kind.name in ActKind.__members__:
            keeps |= apply.ins[0] in {slot for slot, _ in after.stores}
    rounds = program.core.precision is not Precision.exact and program.core.dtype is f32
    text = f" · precision {program.core.precision.name}" if rounds else ""
    return text + (f" · bias {', '.join(kinds)}" + " · z kept" * keeps if kinds else "")


def why_next_lost(selection: Selection, shown: int | None = None) -> str:
    """What the runner-up costs more, term by term: `+27 us: compute +20, wave tail +7`; or only the largest terms."""
    best, other = selection.ranked[:2]
    return why_lost(best, other, shown)


def why_lost(best: Candidate, other: Candidate, shown: int | None = None) -> str:
    """The same of any two candidates."""
    gap = other.us - best.us
    if best.order[0] == other.order[0]:
        by = "priority" if other.variant.priority != best.variant.priority else "name"
        return f"equal time; decided by {by}"
    deltas = [(name, delta) for name, delta in _deltas(best, other).items() if abs(delta) > 0.01 * gap]
    if shown is not None:
        deltas = sorted(deltas, key=lambda d: -abs(d[1]))[:shown]
    parts = [f"{name} {delta:+.3g}" for name, delta in deltas]
    return f"+{gap:.3g} us: {', '.join(parts)}"


def _deltas(best: Candidate, other: Candidate) -> dict[str, float]:
    """By how much each term of either is more than in the best."""
    names = dict.fromkeys([*best.cost.terms, *other.cost.terms])
    return {name: other.cost.terms.get(name, 0.0) - best.cost.terms.get(name, 0.0) for name in names}


def lost_in_short(selection: Selection) -> tuple[str, str, str]:
    """(the runner-up, `+27 us`, `compute`): how much longer it runs, and the largest part of that, or `equal` and what decided."""
    best, other = selection.ranked[:2]
    if best.order[0] == other.order[0]:
        return other.variant.name, "equal", why_next_lost(selection).rpartition(" ")[2]
    deltas = _deltas(best, other)
    gap = other.us - best.us
    text = f"{gap:.2f} us" if gap < 10 else microseconds(gap)
    return other.variant.name, f"+{text}", max(deltas, key=lambda name: deltas[name])


def selection_lines(
    selection: Selection, verbose: bool = False, ended: str | None = None, grew: Sequence[str] = ()
) -> RenderableType:
    """Labelled lines: grew, chosen, next, rejected, ended. Verbose: every candidate, every rejected variant, every step."""
    lines: list[tuple[str, str, str]] = [  # label, its style, text
        ("grew" if n == 0 else "", "dim", text) for n, text in enumerate(grew)
    ]
    shown = selection.ranked if verbose else selection.ranked[:2]
    width = max(len(_named(c)) for c in shown)
    for n, candidate in enumerate(shown):
        text = f"{_named(candidate):<{width}}  {microseconds(candidate.us)}"
        if n == 1:
            text += f"\n{why_next_lost(selection)}"
        else:
            text += f", score {candidate.score:,.0f}\n= {candidate.cost}"
        if candidate.cost.predicted is not None:
            text += f" ({microseconds(candidate.cost.predicted)} predicted)"
        lines.append((("chosen", "next")[n] if n < 2 else "", "green" if n == 0 else "", text))
        if n == 0 and (verbose or selection.region.invariant):
            lines.append(("numerics", "dim", numerics_text(selection)))
        if n == 0 and selection.free is not None:
            lines.append(("price", "yellow", str(selection.free)))
    if verbose:
        for n, r in enumerate(selection.rejected):
            lines.append(("rejected" if n == 0 else "", "red", f"{r.variant.id}  {r.reject.reason}"))
    elif selection.rejected:
        lines.append(("rejected", "red", _rejected_in_short(selection)))
    if ended is not None:
        lines.append(("ended", "yellow", ended))
    return labelled(lines)


SHOWN = 3  # notes that came close, each with its count


def recognised_lines(notes: Sequence[Recognised], verbose: bool = False) -> list[Text]:
    """`recognised attention 12 × (causal, scale 0.125) from 11 ops each`, and what came close and why not; verbose, each with its place."""
    counts = Counter((n.what, n.told, n.ops) for n in notes if n.ops)
    close = Counter((n.what, n.told) for n in notes if not n.ops)
    lines = [
        Text("  recognised  ", style="green").append(
            f"{what} {count} × ({told})"
            + (f" from {ops} ops{' each' if count > 1 else ''}" if ops > 1 else ""),
            style="none",
        )
        for (what, told, ops), count in counts.items()
    ]
    lines += [
        Text(f"  close to {what}: ", style="yellow").append(
            told + (f" · {count} times" if count > 1 else ""), style="none"
        )
        for (what, told), count in list(close.items())[: None if verbose else SHOWN]
    ]
    if len(close) > SHOWN and not verbose:
        lines.append(Text(f"  and {len(close) - SHOWN} more came close (-v)", style="dim"))
    if verbose:
        lines += [Text(f"  {n.what} at {n.where}", style="dim") for n in notes if n.where]
    return lines


_OF_ANOTHER_STRUCTURE = frozenset({"structure", "ops"})


def _rejected_in_short(selection: Selection) -> str:
    """Reasons, counted; kernels for regions of another structure, or for what this one needs not, are only counted."""
    others, needless = (
        len({r.variant.kernel for r in selection.rejected if r.reject.condition in conditions})
        for conditions in (_OF_ANOTHER_STRUCTURE, {NEEDLESS})
    )
    uncounted = [
        (r.variant, r.reject)
        for r in selection.rejected
        if r.reject.condition not in (*_OF_ANOTHER_STRUCTURE, NEEDLESS)
    ]
    parts = [counted_reasons(uncounted)] if uncounted else []
    parts += [f"{needless} not needed"] if needless else []
    parts += [f"{others} for other structures than {structure(selection.region)}"] if others else []
    return " · ".join(parts)


def numerics_text(selection: Selection) -> str:
    """`tensor cores f16 in f32, 4096 terms in order`: what decides the bits of a row; or why other rows do."""
    numeric = selection.chosen.variant.numeric_class(selection.region, selection.device)
    return f"no class: {numeric.reason}" if isinstance(numeric, Reject) else str(numeric)


def numerics_json(selection: Selection) -> dict[str, Any]:
    """The class of the chosen kernel as data, or {"refused": why there is none}."""
    numeric = selection.chosen.variant.numeric_class(selection.region, selection.device)
    return {"refused": numeric.reason} if isinstance(numeric, Reject) else numeric.to_json()


def _named(candidate: Candidate) -> str:
    variant = candidate.variant
    return variant.id if variant.origin == "aicf" else f"{variant.id} [{variant.origin}]"


def why_not_taken(kind: str, rejections: Sequence[tuple[KernelVariant, Reject]]) -> str:
    """Why a region ended before an op of this kind, as a sentence: what each kernel said against it."""
    if all(reject.condition == "structure" for _, reject in rejections):
        shape = rejections[0][1].reason.rpartition(" this is ")[2]
        return f"the next op, {kind}, makes it {shape}, which none of the {len(rejections)} candidates left takes"
    reasons = list(dict.fromkeys(reject.reason for _, reject in rejections))
    names = [variant.name for variant, _ in rejections]
    if all(reason.startswith("takes one op") for reason in reasons):
        several = f"{names[0]} and {len(names) - 1} more take" if len(names) > 1 else f"{names[0]} takes"
        return f"the next op, {kind}, needs a kernel of its own: {several} one op"
    if reasons == ["another product begins"]:
        return f"the next op, {kind}, begins another product"
    if len(reasons) == 1 and reasons[0].startswith(f"{kind} "):
        return f"the next op, {kind}, {reasons[0].removeprefix(f'{kind} ')}"
    return f"the next op, {kind}, does not fit: {counted_reasons(rejections)}"


def counted_reasons(rejections: Sequence[tuple[KernelVariant, Reject]], shown: int = 3) -> str:
    """`add_half2: length 1025 is odd · 3 of them: needs sm_90a`: kernels with equal reasons are counted, rare ones first."""
    refusing: dict[str, list[KernelVariant]] = {}
    for variant, reject in rejections:
        refusing.setdefault(reject.reason, []).append(variant)
    kernels = {reason: kernels_of(variants) for reason, variants in refusing.items()}
    all_agree = len(kernels) == 1
    parts = []
    for reason, names in sorted(kernels.items(), key=lambda item: (len(item[1]), item[0])):
        n = len(names)
        who = _called(names[0].variants) if n == 1 else f"all {n}" if all_agree else f"{n} of them"
        parts.append(f"{who}: {reason}")
    return " · ".join(parts[:shown]) + (
        f" · and {counted(len(parts) - shown, 'more reason')} (-v)" if len(parts) > shown else ""
    )


def _called(variants: Sequence[KernelVariant]) -> str:
    """A kernel's name, with the config where it is only one of them: `gemm_wgmma[64x64 stream]`, `gemm_wgmma in 12 configs`."""
    first, *others = variants
    return f"{first.name.partition('[')[0]} in {1 + len(others)} configs" if others else first.name


def selection_json(selection: Selection) -> dict[str, Any]:
    return {
        "region": selection.region.signature,
        "operands": [str(t) for t in selection.region.operands],
        "results": [str(t) for t in selection.region.results],
        "device": selection.device.name,
        "chosen": selection.kernel_id,
        "score": selection.chosen.score,
        "numeric_class": numerics_json(selection),
        **({"free": asdict(selection.free)} if selection.free is not None else {}),
        "next": why_next_lost(selection) if len(selection.ranked) > 1 else None,
        "candidates": [
            {
                "id": c.variant.id,
                "us": c.us,
                "score": c.score,
                "terms": dict(c.cost.terms),
                **({} if c.cost.predicted is None else {"predicted_us": c.cost.predicted}),
                "origin": c.variant.origin,
            }
            for c in selection.ranked
        ],
        "rejected": [
            {
                "id": r.variant.id,
                "condition": r.reject.condition,
                "reason": r.reject.reason,
                "origin": r.variant.origin,
            }
            for r in selection.rejected
        ],
    }
