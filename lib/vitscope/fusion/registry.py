"""All fusion heads by name."""

from vitscope.fusion.attentive import AttentiveLayerFusion
from vitscope.fusion.base import Head
from vitscope.fusion.ensembles import MixtureOfExperts, NeuralLogitController, SuperLearner
from vitscope.fusion.horizontal import HFusion
from vitscope.fusion.linear import BestLayer, ConcatLinear, LastLayer, LogitAverage
from vitscope.fusion.oracle import Oracle
from vitscope.fusion.vfusion import LastLayerMLP, VFusion

FUSIONS: dict[str, type[Head]] = {
    head.__name__: head
    for head in (
        LastLayer, BestLayer, LogitAverage, ConcatLinear, SuperLearner, NeuralLogitController,
        MixtureOfExperts, AttentiveLayerFusion, LastLayerMLP, VFusion, HFusion, Oracle,
    )
}  # fmt: skip
"""Name -> class; `takes_list` and `needs_labels` say which differ in what they are given."""
