"""What this machine has: a GPU, packages. Notebooks import it first."""

import importlib.util
import os
import subprocess

from IPython.core.magic import register_cell_magic
from IPython.display import Markdown, display


def has_gpu() -> bool:
    """Whether programs will run on an NVIDIA GPU; asked of its driver, before aicf is imported."""
    if os.environ.get("AICF_DEVICE") == "cpu":
        return False
    try:
        return "GPU 0" in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        return False


def absent(*packages: str) -> list[str]:
    return [name for name in packages if importlib.util.find_spec(name) is None]


@register_cell_magic
def needs(packages: str, cell: str) -> None:
    """`%%needs torch onnx`: runs the cell where these are installed, and says so where they are not."""
    if missing := absent(*packages.split()):
        display(Markdown(f"*Skipped: {', '.join(missing)} is not installed.*"))
    else:
        get_ipython().run_cell(cell).raise_error()  # noqa: F821
