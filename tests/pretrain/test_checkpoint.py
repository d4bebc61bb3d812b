"""A checkpoint is whole at any moment, old or new, and holds no code."""

import argparse
import os
import pickle

import pytest
import torch

from vitscope.pretrain import checkpoint


def test_round_trip(tmp_path):
    state = {
        "model": {"w": torch.arange(3.0)},
        "optimizers": [{"state": {0: {"step": torch.tensor(2.0)}}}],
        "step": 7,
    }
    checkpoint.save(tmp_path / "c.pt", state)
    read = checkpoint.load(tmp_path / "c.pt")
    assert torch.equal(read["model"]["w"], torch.arange(3.0))
    assert read["step"] == 7
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("moment", ["save", "fsync", "replace"])
def test_interrupted_writing_keeps_the_old_one(tmp_path, monkeypatch, moment):
    path = tmp_path / "c.pt"
    checkpoint.save(path, {"step": 1})

    def half(state, file):
        file.write(b"half of a checkpoint")
        raise KeyboardInterrupt

    def interrupt(*args):
        raise KeyboardInterrupt

    if moment == "save":
        monkeypatch.setattr(torch, "save", half)
    else:
        monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (type(path), "replace")}[moment], interrupt)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load(path) == {"step": 1}
    checkpoint.save(path, {"step": 3})  # what was left aside does not stand in the way
    assert checkpoint.load(path) == {"step": 3}


def test_objects_are_not_loaded(tmp_path):
    torch.save({"args": argparse.Namespace(lr=1)}, tmp_path / "c.pt")
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load(tmp_path / "c.pt")
