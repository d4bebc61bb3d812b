"""Names as texts: words as numbers, a small text tower, and the file they are published in.

The texts are the emoji's Unicode names, such as "cat face with tears of joy". Words come from the names of
the seen identities; any other word, as held-out names have, is the unknown word.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from vitscope.backbones import Backbone, card, zoo_names
from vitscope.data import embedded, emoji
from vitscope.pretrain.dino_monitor import nearest_renders
from vitscope.pretrain.zoo import WeightFileError

FORMAT = "vitscope-names-1"
LONGEST = 12  # words of a name that are read
_PADDING, _UNKNOWN = 0, 1


def words(name: str) -> list[str]:
    """The words of a name, in lower case.

    >>> words("man’s shoe: T-shirt No. 1")
    ['man', 's', 'shoe', 't', 'shirt', 'no', '1']
    """
    return re.findall(r"[^\W_]+", name.lower())


def vocabulary(names: Sequence[str]) -> list[str]:
    """All words of these names, sorted."""
    return sorted({word for name in names for word in words(name)})


class TextTower(nn.Module):
    """Names to points [N, embed]: word and place embeddings, pre-norm layers, mean over words, projection."""

    def __init__(self, known: Sequence[str], *, width: int, layers: int, heads: int, embed: int) -> None:
        super().__init__()
        self.known = list(known)
        self.shape = {"width": width, "layers": layers, "heads": heads, "embed": embed}
        self._number = {word: place for place, word in enumerate(self.known, start=2)}
        self.word = nn.Embedding(len(self.known) + 2, width, padding_idx=_PADDING)
        self.place = nn.Parameter(0.02 * torch.randn(LONGEST, width))
        nn.init.normal_(self.word.weight, std=0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, embed, bias=False)

    def numbers(self, names: Sequence[str]) -> Tensor:
        """Word numbers [N, LONGEST], padded. A name without a word counts as one unknown word."""
        rows = [[self._number.get(w, _UNKNOWN) for w in words(n)[:LONGEST]] or [_UNKNOWN] for n in names]
        return torch.tensor([row + [_PADDING] * (LONGEST - len(row)) for row in rows])

    def forward(self, numbers: Tensor) -> Tensor:
        empty = numbers == _PADDING
        x = self.word(numbers) + self.place
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=empty)
        there = (~empty).unsqueeze(-1).to(x.dtype)
        return self.project((self.norm(x) * there).sum(1) / there.sum(1))


class ImageText(nn.Module):
    """Both towers and the temperature. The image tower is a ViT without head; CLS is what it says."""

    def __init__(self, image: nn.Module, text: TextTower, width: int) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.project = nn.Linear(width, text.shape["embed"], bias=False)
        self.log_scale = nn.Parameter(torch.tensor(2.6593))  # ln(1/0.07), as in CLIP

    def pictures(self, inputs: Tensor) -> Tensor:
        """Unit vectors [N, embed] of transformed pictures."""
        return F.normalize(self.project(self.image(inputs)).float(), dim=-1)

    def names(self, numbers: Tensor) -> Tensor:
        """Unit vectors [N, embed] of names."""
        return F.normalize(self.text(numbers).float(), dim=-1)


class NameClassifier(nn.Module):
    """Pictures to scores [N, C] of C names: cosines times the temperature's inverse."""

    points: Tensor

    def __init__(self, model: ImageText, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        with torch.inference_mode():
            points = model.names(model.text.numbers(names).to(model.log_scale.device))
        self.register_buffer("points", points.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model.log_scale.exp() * self.model.pictures(inputs) @ self.points.T


def own_classifier(backbone: Backbone) -> nn.Module:
    """Pictures to scores of the seen identities, as a zoo model gives them.

    By its head; by their names where a text tower is published beside it; or by the nearest of four renders
    of each, in style and size those of its training, where it learned without labels. Errors: `ValueError`
    for a backbone with none of these.
    """
    model = backbone.model
    if model.num_classes:
        return model
    if backbone.name in zoo_names() and "prototypes" in (recipe := card(backbone.name)["recipe"]):
        return nearest_renders(model, style=recipe["style"], scale=tuple(recipe["scale"]))
    name = f"zoo_text/{backbone.name}.safetensors"
    if name not in embedded.manifest():
        raise ValueError(f"{backbone.name} has no head and no published text tower: it names nothing")
    text = read_text(embedded.verified(name), model, backbone.width)
    return NameClassifier(text.to(backbone.device), seen_names())


def seen_names() -> list[str]:
    """Names of the identities that training shows, in the order of their class numbers."""
    table = emoji.identities()
    return table["name"][~table["held_out"]].tolist()


def write_text(path: Path, model: ImageText) -> None:
    """Everything but the image tower, in fp32 safetensors with vocabulary and shape in the header."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k[:6] != "image."}
    header = {"format": FORMAT, "shape": json.dumps(model.text.shape), "words": json.dumps(model.text.known)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_bytes(save(tensors, metadata=header))
    temporary.replace(path)


def read_text(path: Path, image: nn.Module, width: int) -> ImageText:
    """The published text tower and projection, joined to an image tower of that width.

    Errors: `WeightFileError` for a file of another format, or whose tensors do not fit.
    """
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if header.get("format") != FORMAT:
            raise WeightFileError(
                f"{path.name} is no text tower (format {header.get('format')!r}, expected {FORMAT!r})"
            )
        names = file.keys()  # a list; the file itself is neither a mapping nor iterable
        tensors = {key: file.get_tensor(key) for key in names}
    model = ImageText(image, TextTower(json.loads(header["words"]), **json.loads(header["shape"])), width)
    expected = {key for key in model.state_dict() if not key.startswith("image.")}
    if expected != set(tensors):
        raise WeightFileError(f"{path.name} does not hold the tensors of a text tower of its shape")
    model.load_state_dict(tensors, strict=False)  # all of them, as was checked; the image tower stays
    return model.eval()
