"""What a published model writes behind a prompt: GPT-2, Llama, Mistral or Qwen 2, from its folder.

hf download openai-community/gpt2 --local-dir gpt2
python examples/pretrained.py gpt2 "The capital of France is" --count 20
python examples/pretrained.py gpt2 --ids 464 3139 286 4881 318

aicf explain examples/pretrained.py --device h200

A prompt of text needs the folder's tokenizer.json and the package `tokenizers`; ids need neither.
"""

import argparse
from pathlib import Path
from typing import Any

import aicf
from aicf import models, nn


def build() -> nn.Model:
    """GPT-2 of 124M parameters, without its weights: what `aicf explain` and `aicf tune` look at."""
    tokens = {"tokens": aicf.TensorSpec(("batch", "seq"), aicf.i32)}
    return nn.Model(tokens, models.GPT2(models.GPT2Config.preset("gpt2")), batch=1, seq=1024)


def loss() -> nn.Loss:
    return nn.LinearCrossEntropy()


def optimizer() -> nn.Optimizer:
    return nn.AdamW(1e-5)


def tokenizer_of(folder: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SystemExit("text needs `pip install tokenizers`; or give the prompt as --ids") from None
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def write(
    folder: str, ids: list[int], count: int, dtype: str | None = None, device: str | None = None, **how: Any
) -> list[int]:
    """The prompt's ids, and up to so many behind them; less where the model says that its text ends."""
    model = models.from_pretrained(folder, dtype=dtype)
    config = model.layer.config
    length = min(config.places, len(ids) + count)
    end = config.published.get("eos_token_id")
    (said,) = aicf.generate(aicf.compile(model, device=device), [ids], count, stop=end, length=length, **how)
    return said.tolist()


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument(
        "folder", help="config.json, model.safetensors, and tokenizer.json if the prompt is text"
    )
    ask.add_argument("prompt", nargs="?", help="text")
    ask.add_argument("--ids", type=int, nargs="+", help="tokens instead")
    ask.add_argument("--count", type=int, default=40, metavar="TOKENS")
    ask.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token")
    ask.add_argument("--top-p", type=float, default=0.95)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--dtype", choices=["f32", "bf16", "f16"], help="of weights (default: the file's)")
    ask.add_argument("--device", help="cpu, cuda, or whatever is there")
    args = ask.parse_args()
    if (args.prompt is None) == (args.ids is None):
        ask.error("give a prompt, as text or as --ids")
    text = tokenizer_of(args.folder) if args.ids is None else None
    ids = args.ids if text is None else text.encode(args.prompt).ids
    how = {"temperature": args.temperature, "top_p": args.top_p, "seed": args.seed}
    said = write(args.folder, ids, args.count, args.dtype, args.device, **how)
    print(*said) if text is None else print(text.decode(said))


if __name__ == "__main__":
    main()
