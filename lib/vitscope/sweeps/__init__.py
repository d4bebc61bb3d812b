"""Sweeps: one notebook, or fits of fusion heads, over backbones × datasets × seeds, run by Dask.

    grid (checked) -> tasks -> a cluster of one's own, any scheduler, or Slurm -> one Parquet file a task

`vitscope sweep` runs them. A notebook reads what they found with `read` and `table`, which need no Dask.
"""

from __future__ import annotations

from vitscope.sweeps.results import SweepError, read, table

__all__ = ["SweepError", "read", "table"]
