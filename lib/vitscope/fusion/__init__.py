"""Vertical fusion and its rivals: class scores from all states of a frozen backbone, one interface for all.

>>> sorted(FUSIONS)[:3]
['AttentiveLayerFusion', 'BestLayer', 'ConcatLinear']
"""

from vitscope.fusion.attentive import AttentiveLayerFusion
from vitscope.fusion.base import Head
from vitscope.fusion.ensembles import MixtureOfExperts, NeuralLogitController, SuperLearner
from vitscope.fusion.horizontal import HFusion
from vitscope.fusion.linear import BestLayer, ConcatLinear, LastLayer, LogitAverage
from vitscope.fusion.members import Members, out_of_fold
from vitscope.fusion.oracle import Oracle
from vitscope.fusion.registry import FUSIONS
from vitscope.fusion.storage import Predictor, load, save
from vitscope.fusion.training import SelectionBudget
from vitscope.fusion.vfusion import LastLayerMLP, VFusion

__all__ = [
    "FUSIONS",
    "AttentiveLayerFusion",
    "BestLayer",
    "ConcatLinear",
    "HFusion",
    "Head",
    "LastLayer",
    "LastLayerMLP",
    "LogitAverage",
    "Members",
    "MixtureOfExperts",
    "NeuralLogitController",
    "Oracle",
    "Predictor",
    "SelectionBudget",
    "SuperLearner",
    "VFusion",
    "load",
    "out_of_fold",
    "save",
]
