"""What a model is fed: the same batches from an image set, a tensor and a labelled pair."""

import numpy as np
import pytest
import torch

from helpers import noise, tiny, toy_images
from vitscope import data
from vitscope.source import Source


def kinds(backbone, count: int) -> dict:
    images = toy_images(count)
    tensor = backbone.transform(images.pixels())
    return {"set": images, "tensor": tensor, "pair": (tensor, images.labels)}


@pytest.mark.parametrize("kind", ["set", "tensor", "pair"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_batches_cover_every_picture_once_and_in_order(kind, size):
    backbone = tiny("supervised")
    pictures = kinds(backbone, 7)
    source = Source(pictures[kind], backbone)
    batches = list(source.batches(size))
    assert len(source) == 7
    assert [len(b) for b in batches] == [min(size, 7 - start) for start in range(0, 7, size)]
    torch.testing.assert_close(torch.cat(batches), pictures["tensor"], rtol=0, atol=1e-6)


def test_labels_and_ids_are_those_of_what_was_given():
    backbone = tiny("supervised")
    sources = {kind: Source(pictures, backbone) for kind, pictures in kinds(backbone, 5).items()}
    assert sources["set"].labels.tolist() == sources["pair"].labels.tolist() == [0, 1, 0, 1, 0]
    assert sources["set"].ids.tolist() == ["i0", "i1", "i2", "i3", "i4"]
    assert sources["tensor"].labels is None
    assert sources["tensor"].ids is None
    assert sources["pair"].ids is None


def test_pictures_of_another_size_go_through_the_models_transform():
    backbone = tiny("supervised")
    images = data.load("digits", "test").select(range(3))  # 32 px
    (batch,) = Source(images, backbone).batches(8)
    assert batch.shape == (3, 3, 64, 64)
    assert torch.equal(batch, backbone.transform(images.pixels()))


@pytest.mark.parametrize("kind", ["set", "tensor"])
def test_batches_have_the_type_of_the_models_weights(kind):
    backbone = tiny("supervised")
    pictures = kinds(backbone, 3)[kind]
    backbone.model.double()
    (batch,) = Source(pictures, backbone).batches(8)
    assert batch.dtype == torch.float64


def test_the_tensor_given_is_not_changed():
    backbone, pictures = tiny("supervised"), noise(3, 64)
    before = pictures.clone()
    for batch in Source(pictures.half(), backbone).batches(2):
        batch.zero_()
    assert torch.equal(pictures, before)


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (
            torch.zeros(2, 3, 32, 64),
            r"float \[N, 3, 64, 64\] for supervised, got torch.float32 \[2, 3, 32, 64\]",
        ),
        (torch.zeros(2, 1, 64, 64), r"got torch.float32 \[2, 1, 64, 64\]; use backbone.transform first"),
        (torch.zeros(3, 64, 64), r"got torch.float32 \[3, 64, 64\]"),
        (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), r"got torch.uint8 \[2, 3, 64, 64\]"),
        ((torch.zeros(2, 3, 64, 64), np.arange(3)), "3 labels for 2 pictures"),
        (torch.zeros(0, 3, 64, 64), "there are no pictures to capture"),
        ((torch.zeros(0, 3, 64, 64), np.arange(0)), "there are no pictures to capture"),
    ],
    ids=["size", "channels", "one picture", "bytes", "labels", "none", "no pairs"],
)
def test_what_no_model_can_be_fed_is_refused(pictures, message):
    with pytest.raises(ValueError, match=message):
        Source(pictures, tiny("supervised"))
