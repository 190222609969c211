"""Rules of StableHLO's operations, by family. Importing this package fills the table."""

from ....discover import modules_in

modules_in(__name__, __path__)
