"""Dense evaluation of patch tokens: tensors in, numbers out. Sets and their tokens: `dense.examples`.

>>> import torch
>>> scores, box = torch.tensor([[0.1, 0.9, 0.3, 0.2]]), torch.tensor([[0.5, 0.0, 1.0, 0.5]])
>>> float(point_in_box(scores, box, grid=(2, 2)).rate)
1.0
"""

from vitscope.dense.boxes import PointInBox, cls_scores, crop_box, point_in_box, single_small
from vitscope.dense.depth import Depth, depth_probe
from vitscope.dense.masks import attention_masks, best_head, mask_iou, patch_coverage, pca_masks
from vitscope.dense.neighbours import Neighbours, knn_classify
from vitscope.dense.pca import PcaMaps, pca_rgb
from vitscope.dense.segmentation import Segmentation, linear_segmentation, segmentation_scores

__all__ = [
    "Depth",
    "Neighbours",
    "PcaMaps",
    "PointInBox",
    "Segmentation",
    "attention_masks",
    "best_head",
    "cls_scores",
    "crop_box",
    "depth_probe",
    "knn_classify",
    "linear_segmentation",
    "mask_iou",
    "patch_coverage",
    "pca_masks",
    "pca_rgb",
    "point_in_box",
    "segmentation_scores",
    "single_small",
]
