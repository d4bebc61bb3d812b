"""Dense datasets: small folders of each published layout, with planted masks, depths and boxes."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from helpers import encoded, photo
from vitscope.data.dense_layouts import CITYSCAPES_CLASSES, LAYOUTS
from vitscope.data.dense_sets import aligned, garg_crop, load_dense
from vitscope.data.images import DecodeError
from vitscope.errors import UnknownName
from vitscope.transforms import Transform

WIDTH, HEIGHT = 7, 5


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        content.save(path)


def picture(seed):
    return photo(WIDTH, HEIGHT, seed=seed)


def planted(values, dtype=np.uint8):
    """A picture of WIDTH × HEIGHT that holds the values one after another, the last one to its end."""
    flat = np.full(WIDTH * HEIGHT, values[-1], dtype=dtype)
    flat[: len(values)] = values
    return flat.reshape(HEIGHT, WIDTH)


def palette(values):
    made = Image.fromarray(planted(values), "P")
    made.putpalette(list(range(255, -1, -1)) * 3)
    return made


def grey(values, dtype=np.uint8):
    return Image.fromarray(planted(values, dtype))


def xml(width, height, *boxes, head=""):
    objects = "".join(
        "<object><name>n1</name><bndbox>"
        + "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        + "</bndbox></object>"
        for box in boxes
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"{head}<annotation>{size}{objects}</annotation>"


@pytest.fixture
def voc(tmp_path):
    for i, values in enumerate(([0, 5, 255], [20, 1, 0], [7])):
        put(tmp_path / f"JPEGImages/2007_{i:06d}.jpg", encoded(picture(i), "JPEG"))
        put(tmp_path / f"SegmentationClass/2007_{i:06d}.png", palette(values))
    put(tmp_path / "ImageSets/Segmentation/train.txt", "2007_000002\n\n2007_000000\n")
    put(tmp_path / "ImageSets/Segmentation/val.txt", "2007_000001\n")
    return tmp_path


@pytest.fixture
def nyu(tmp_path):
    for i, values in enumerate(([0, 1500, 9999], [65535, 1], [2000])):
        put(tmp_path / f"rgb/{i:04d}.{'png' if i else 'jpg'}", picture(i))
        put(tmp_path / f"depth/{i:04d}.png", grey(values, np.uint16))
    put(tmp_path / "test.txt", "0000\n0001\n0002\n")
    return tmp_path


# --- layouts ----------------------------------------------------------------------------------------------


def test_voc(voc):
    train = load_dense(voc, "voc", "train")
    assert train.ids.tolist() == ["2007_000002", "2007_000000"]
    assert (train.kind, train.num_classes, train.ignore, train.skipped) == ("segmentation", 21, 255, ())
    assert (train.classes[0], train.classes[20]) == ("background", "tvmonitor")
    masks = train.masks()
    assert masks[0].unique().tolist() == [7]
    assert masks[1].flatten().tolist() == [0, 5] + [255] * (WIDTH * HEIGHT - 2)
    assert masks[1].dtype == torch.int64
    (pixels,) = train.pixels([1])
    with Image.open(voc / "JPEGImages/2007_000000.jpg") as opened:
        assert (pixels.permute(1, 2, 0).numpy() == np.asarray(opened)).all()
    assert load_dense(voc, "voc", "val").masks([0])[0][0, :3].tolist() == [20, 1, 0]


def test_palette_of_four_bits_holds_indices(voc):
    palette([3, 1, 2]).save(voc / "SegmentationClass/2007_000001.png", bits=4)
    (mask,) = load_dense(voc, "voc", "val").masks()
    assert mask[0, :3].tolist() == [3, 1, 2]


def test_ade20k_zero_is_ignored_and_classes_move_down_by_one(tmp_path):
    for name, values in (("b", [0, 1, 150]), ("a", [2])):
        put(tmp_path / f"images/validation/ADE_{name}.jpg", picture(1))
        put(tmp_path / f"annotations/validation/ADE_{name}.png", grey(values))
    found = load_dense(tmp_path, "ade20k", "validation")
    assert found.ids.tolist() == ["ADE_a", "ADE_b"]
    assert found.num_classes == 150
    assert found.classes[0] == "class 001"
    assert found.masks([1])[0][0, :3].tolist() == [255, 0, 149]
    rows = [f"{i}\t0.1\t10\t2\t1\tname of {i}" for i in range(1, 151)]
    put(tmp_path / "objectInfo150.txt", "\n".join(["Idx\tRatio\tTrain\tVal\tStuff\tName", *rows]))
    assert load_dense(tmp_path, "ade20k", "validation").classes[149] == "name of 150"
    put(tmp_path / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tStuff\tName\n" + rows[1])
    with pytest.raises(ValueError, match=r"objectInfo150.txt: 1 rows; expected a heading and 150"):
        load_dense(tmp_path, "ade20k", "validation")


def test_ade20k_notices_half_a_download_from_either_side(tmp_path):
    put(tmp_path / "images/training/a.jpg", picture(1))
    put(tmp_path / "annotations/training/b.png", grey([1]))
    with pytest.raises(DecodeError, match=r"2 of 2 pictures .*a\.jpg has no annotation .*b\.jpg is missing"):
        load_dense(tmp_path, "ade20k", "training")


CITY_TABLE = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car",
    27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip


def test_cityscapes_label_ids(tmp_path):
    put(tmp_path / "leftImg8bit/val/ulm/ulm_0_1_leftImg8bit.png", picture(0))
    put(tmp_path / "gtFine/val/ulm/ulm_0_1_gtFine_labelIds.png", grey(list(range(34))))
    put(tmp_path / "gtFine/val/ulm/ulm_0_1_gtFine_color.png", picture(3))
    put(tmp_path / "gtFine/val/ulm/ulm_0_1_gtFine_instanceIds.png", grey([26001], np.uint16))
    found = load_dense(tmp_path, "cityscapes", "val")
    assert found.ids.tolist() == ["ulm/ulm_0_1"]
    (mask,) = found.masks()
    for value, number in enumerate(mask.flatten().tolist()[:34]):
        expected = CITY_TABLE.get(value)
        assert (expected is None) == (number == 255)
        assert expected is None or CITYSCAPES_CLASSES[number] == expected


def test_cityscapes_train_ids_where_there_are_no_label_ids(tmp_path):
    put(tmp_path / "leftImg8bit/train/ulm/x_leftImg8bit.png", picture(0))
    put(tmp_path / "gtFine/train/ulm/x_gtFine_labelTrainIds.png", grey([0, 18, 255]))
    (mask,) = load_dense(tmp_path, "cityscapes", "train").masks()
    assert mask[0, :3].tolist() == [0, 18, 255]
    put(tmp_path / "gtFine/train/ulm/x_gtFine_labelTrainIds.png", grey([0, 19]))
    with pytest.raises(DecodeError, match=r"x_gtFine_labelTrainIds.png: holds 19, not among"):
        load_dense(tmp_path, "cityscapes", "train").masks()


def test_nyuv2_millimetres(nyu):
    found = load_dense(nyu, "nyuv2", "test")
    assert found.kind == "depth"
    assert found.classes == ()
    depths = found.depths()
    assert depths[0].dtype == torch.float32
    assert depths[0][0, :3].tolist() == pytest.approx([0, 1.5, 9.999])
    assert depths[1][0, :2].tolist() == pytest.approx([65.535, 0.001])
    assert depths[0][0, 0] == 0
    assert len(found.pixels([0, 1])) == 2


def rotated(millimetres):
    """As SUN RGB-D stores them, bit by bit: three places up, the top three bits come back at the bottom."""
    bits = [(millimetres >> k) & 1 for k in range(16)]
    return sum(bit << ((k + 3) % 16) for k, bit in enumerate(bits))


@pytest.fixture
def sun(tmp_path):
    for scene, values in (("kv1/NYUdata/NYU0001", [0, 1234, 65535]), ("xtion/a/b", [8191, 8192])):
        put(tmp_path / scene / "image/some.jpg", picture(0))
        put(tmp_path / scene / "depth/other.png", grey([rotated(v) for v in values], np.uint16))
        put(tmp_path / scene / "depth_bfx/other.png", grey([1], np.uint16))
    return tmp_path


def test_sunrgbd_rotates_bits(sun):
    found = load_dense(sun, "sunrgbd", "all")
    assert found.ids.tolist() == ["kv1/NYUdata/NYU0001", "xtion/a/b"]
    first, second = found.depths()
    assert first[0, :3].tolist() == pytest.approx([0, 1.234, 65.535])
    assert second[0, :2].tolist() == pytest.approx([8.191, 8.192])


def test_sunrgbd_lists(sun):
    with pytest.raises(ValueError, match=r"no list of the split 'test': looked for test\.txt, SUN"):
        load_dense(sun, "sunrgbd", "test")
    matlab = sun / "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat"
    matlab.parent.mkdir(parents=True)
    cells = np.array([["/n/fs/sun3d/data/SUNRGBD/xtion/a/b/"]], dtype=object)
    savemat(matlab, {"alltest": cells, "alltrain": cells[:, :0]})
    assert load_dense(sun, "sunrgbd", "test").ids.tolist() == ["xtion/a/b"]
    put(sun / "test.txt", "SUNRGBD/kv1/NYUdata/NYU0001\n")
    assert load_dense(sun, "sunrgbd", "test").ids.tolist() == ["kv1/NYUdata/NYU0001"]
    put(sun / "xtion/a/b/depth/second.png", grey([1], np.uint16))
    with pytest.raises(ValueError, match=r"holds 2 files \*\.png, expected one: .*other.png, .*second.png"):
        load_dense(sun, "sunrgbd", "all")


@pytest.fixture
def kitti(tmp_path):
    drive = "2011_09_26_drive_0002_sync"
    put(tmp_path / f"raw/2011_09_26/{drive}/image_02/data/69.png", picture(0))
    put(tmp_path / f"{drive}/image_02/data/70.png", picture(1))
    put(tmp_path / f"data_depth_annotated/val/{drive}/proj_depth/69.png", grey([0, 256, 384], np.uint16))
    put(tmp_path / f"gt_depth/{drive}/proj_depth/70.png", grey([20480], np.uint16))
    lines = [f"{drive}/image_02/data/{i}.png {drive}/proj_depth/{i}.png 721.5" for i in (69, 70)]
    put(tmp_path / "eigen_test_files_with_gt.txt",
        "\n".join([lines[0], f"{drive}/image_02/data/75.png None 721.5", "/" + lines[1]]))  # fmt: skip
    return tmp_path


def test_kitti_divides_by_256_and_tells_pictures_without_depth(kitti):
    found = load_dense(kitti, "kitti", "test")
    assert [i[-6:] for i in found.ids] == ["69.png", "70.png"]
    first, second = found.depths()
    assert first[0, :3].tolist() == [0, 1, 1.5]
    assert second.unique().tolist() == [80]
    assert [(i[-6:], why) for i, why in found.skipped] == [("75.png", "its list gives no annotation")]
    put(kitti / "eigen_test_files_with_gt.txt", "only_a_picture.png")
    with pytest.raises(ValueError, match=r"line 1: 'only_a_picture.png'; expected 'PICTURE DEPTH'"):
        load_dense(kitti, "kitti", "test")
    put(kitti / "eigen_test_files_with_gt.txt", "a.png None")
    with pytest.raises(ValueError, match="no picture with an annotation"):
        load_dense(kitti, "kitti", "test")


def test_garg_crop(kitti):
    whole, cropped = (load_dense(kitti, "kitti", "test", eval_crop=c) for c in (None, "garg"))
    kept = torch.zeros(HEIGHT, WIDTH)
    kept[2:4, 0:6] = 80  # int(5 × 0.408) to int(5 × 0.992), int(7 × 0.036) to int(7 × 0.964)
    assert torch.equal(cropped.depths([1])[0], kept)
    assert whole.depths([1])[0].min() == 80
    assert whole.digest != cropped.digest
    rows, columns = garg_crop(torch.ones(352, 1216)).nonzero().unbind(1)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (143, 348, 43, 1171)
    with pytest.raises(ValueError, match="'garg' for kitti; got 'garg' for voc"):
        load_dense(kitti, "voc", "train", eval_crop="garg")


@pytest.fixture
def boxes(tmp_path):
    put(tmp_path / "val/ILSVRC_2.JPEG", encoded(picture(0), "JPEG"))
    put(tmp_path / "val/n01440764/ILSVRC_1.JPEG", encoded(picture(1), "JPEG"))
    put(tmp_path / "Annotations/ILSVRC_1.xml", xml(WIDTH, HEIGHT, (0, 1, 7, 5), (2, 2, 3, 4)))
    put(tmp_path / "Annotations/ILSVRC_2.xml", xml(WIDTH, HEIGHT, ("3.5", 0, 7, 1)))
    return tmp_path


def test_imagenet_boxes_keep_every_object(boxes):
    found = load_dense(boxes, "imagenet_boxes", "val")
    assert found.ids.tolist() == ["ILSVRC_1", "ILSVRC_2"]
    assert [b.tolist() for b in found.pixel_boxes] == [[[0, 1, 7, 5], [2, 2, 3, 4]], [[3.5, 0, 7, 1]]]
    assert found.sizes.tolist() == [[WIDTH, HEIGHT]] * 2
    expected = torch.tensor([[[0, 0.2, 1, 1], [2 / 7, 0.4, 3 / 7, 0.8]], [[0.5, 0, 1, 0.2], [torch.nan] * 4]])
    torch.testing.assert_close(found.boxes, expected, equal_nan=True)
    with pytest.raises(ValueError, match=r"kind 'boxes'; masks need kind 'segmentation'"):
        found.masks()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (xml(WIDTH, HEIGHT, (3, 0, 3, 1)), r"ILSVRC_1.xml: box 3, 0, 3, 1 in a picture of 7 × 5"),
        (xml(WIDTH, HEIGHT, (0, 0, 8, 1)), r"ILSVRC_1.xml: box 0, 0, 8, 1"),
        (xml(WIDTH, HEIGHT, (0, 0, "nan", 1)), r"ILSVRC_1.xml: box 0, 0, nan, 1"),
        (xml(WIDTH, HEIGHT, (0, 0, "far", 1)), r"ILSVRC_1.xml: bndbox/xmax is 'far'; expected a number"),
        (xml(HEIGHT, WIDTH), r"ILSVRC_1.xml: 5 × 7 pixels for the picture ILSVRC_1.JPEG of 7 × 5"),
        ("<annotation><size>", r"ILSVRC_1.xml: not readable XML"),
        ("<annotation/>", r"ILSVRC_1.xml: size/width is None"),
        (xml(7, 5, head='<!DOCTYPE a [<!ENTITY b "c">]>'), r"ILSVRC_1.xml: declares a document type"),
        (xml(7, 5, head='<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE a [<!ENTITY b "c">]>')
         .encode("utf-16"), r"ILSVRC_1.xml: declares a document type"),
    ],
)  # fmt: skip
def test_bad_xml_is_refused_by_name(boxes, content, message):
    put(boxes / "Annotations/ILSVRC_1.xml", content)
    with pytest.raises(DecodeError, match=message):
        _ = load_dense(boxes, "imagenet_boxes", "val").boxes


def test_picture_without_objects_has_only_nan_boxes(boxes):
    for i in (1, 2):
        put(boxes / f"Annotations/ILSVRC_{i}.xml", xml(WIDTH, HEIGHT))
    found = load_dense(boxes, "imagenet_boxes", "val").boxes
    assert tuple(found.shape) == (2, 1, 4)
    assert found.isnan().all()


def test_hidden_files_are_passed_over(tmp_path, sun, boxes):
    for name in ("a.jpg", "._a.jpg"):
        put(tmp_path / "images/training" / name, picture(1))
    put(tmp_path / "annotations/training/a.png", grey([1]))
    put(sun / "xtion/a/b/depth/._other.png", b"stub")
    put(boxes / "val/._ILSVRC_2.JPEG", b"stub")
    assert load_dense(tmp_path, "ade20k", "training").ids.tolist() == ["a"]
    assert len(load_dense(sun, "sunrgbd", "all")) == len(load_dense(boxes, "imagenet_boxes", "val")) == 2


# --- what is refused --------------------------------------------------------------------------------------


def test_unknown_names_get_near_matches(voc):
    with pytest.raises(UnknownName, match=r"Unknown layout 'citiscapes'. Did you mean 'cityscapes'"):
        load_dense(voc, "citiscapes", "val")
    with pytest.raises(UnknownName, match=r"Unknown voc split 'vall'. Did you mean 'val'"):
        load_dense(voc, "voc", "vall")
    with pytest.raises(ValueError, match="on_error must be 'fail' or 'skip', got 'drop'"):
        load_dense(voc, "voc", "val", on_error="drop")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_folder_says_what_was_looked_for(tmp_path, layout):
    split = LAYOUTS[layout].splits[-1]
    with pytest.raises(
        ValueError, match=r"(is not in the layout|holds no pictures).*[Ll]ooked for: "
    ) as caught:
        load_dense(tmp_path, layout, split)
    assert LAYOUTS[layout].pictures in str(caught.value)
    with pytest.raises(ValueError, match=f"no such folder: .*nowhere; layout {layout} expects"):
        load_dense(tmp_path / "nowhere", layout, split)


def test_folder_above_points_below(voc):
    with pytest.raises(ValueError, match=rf"no JPEGImages.* {voc}.* is: pass that folder"):
        load_dense(voc.parent, "voc", "val")


def test_empty_and_repeated_lists(voc):
    put(voc / "ImageSets/Segmentation/trainval.txt", "\n \n")
    with pytest.raises(ValueError, match=r"split 'trainval' of .* holds no pictures"):
        load_dense(voc, "voc", "trainval")
    put(voc / "ImageSets/Segmentation/trainval.txt", "2007_000001\n2007_000000\n2007_000001\n")
    with pytest.raises(ValueError, match="1 pictures twice: 2007_000001"):
        load_dense(voc, "voc", "trainval")


def test_missing_files_are_counted_and_three_named(voc):
    names = [f"gone_{i}" for i in range(5)]
    put(voc / "ImageSets/Segmentation/trainval.txt", "\n".join(["2007_000001", *names]))
    with pytest.raises(DecodeError, match=r"5 of 6 pict.*gone_0.*gone_1.*gone_2.jpg is missing and 2 more"):
        load_dense(voc, "voc", "trainval")
    (voc / "SegmentationClass/2007_000001.png").unlink()
    with pytest.raises(DecodeError, match=r"1 of 1 .*2007_000001.jpg has no annotation .*2007_000001\.png"):
        load_dense(voc, "voc", "val")


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (palette([0, 21, 30]), "2007_000001.png: holds 21, 30, not among the values of voc"),
        (grey([0, 254]), "2007_000001.png: holds 254"),
        (picture(2), "2007_000001.png: 8-bit RGB PNG; expected a palette or 8-bit grey"),
        (grey([1, 2], np.uint16), "2007_000001.png: 16-bit grey PNG"),
        (grey([1]).convert("1"), "2007_000001.png: 1-bit grey PNG"),
        (
            grey([1]).resize((WIDTH + 1, HEIGHT)),
            r"000001.png: 8 × 5 pixels for .*2007_000001.jpg of 7 × 5",
        ),
        (encoded(grey([1]), "JPEG"), "2007_000001.png: not a PNG file"),
        (encoded(photo(90, 90).convert("P"), "PNG")[:3000], "2007_000001.png: not a readable picture"),
    ],
)
def test_bad_mask_is_refused_by_name(voc, mask, message):
    put(voc / "SegmentationClass/2007_000001.png", mask)
    with pytest.raises(DecodeError, match=message):
        load_dense(voc, "voc", "val").masks()


def test_eight_bit_depth_is_refused(nyu):
    grey([1, 2]).save(nyu / "depth/0001.png")
    found = load_dense(nyu, "nyuv2", "test")
    assert len(found.depths([0, 2])) == 2
    with pytest.raises(DecodeError, match=r"0001.png: 8-bit grey PNG; expected 16-bit grey depth"):
        found.depths([1])


def test_rotated_picture_is_refused(voc):
    exif = Image.Exif()
    exif[0x0112] = 3
    picture(0).save(voc / "JPEGImages/2007_000001.jpg", exif=exif)
    with pytest.raises(DecodeError, match=r"2007_000001.jpg: carries EXIF orientation 3"):
        load_dense(voc, "voc", "val").pixels()


def test_skip_leaves_out_bad_ones_and_keeps_ids_with_their_files(tmp_path):
    for i in range(40):
        put(tmp_path / f"rgb/{i:02d}.png", picture(i))
        put(tmp_path / f"depth/{i:02d}.png", grey([i + 1], np.uint16))
    put(tmp_path / "train.txt", "\n".join(f"{i:02d}" for i in range(40)))
    put(tmp_path / "depth/03.png", grey([3]))
    (tmp_path / "rgb/07.png").write_bytes(encoded(photo(200, 200), "PNG")[:500])
    found = load_dense(tmp_path, "nyuv2", "train", on_error="skip")
    assert [i for i, _ in found.skipped] == ["03", "07"]
    assert "8-bit" in found.skipped[0][1]
    assert found.ids.tolist() == [f"{i:02d}" for i in range(40) if i not in (3, 7)]
    assert [round(d[0, 0].item() * 1000) - 1 for d in found.depths()] == [int(i) for i in found.ids]
    (tmp_path / "depth/09.png").unlink()
    with pytest.raises(DecodeError, match=r"3 of 40 pictures .*more than 5 %.*09.png has no annotation"):
        load_dense(tmp_path, "nyuv2", "train", on_error="skip")


def test_digest_follows_the_content(voc):
    before = load_dense(voc, "voc", "val").digest
    assert before == load_dense(voc, "voc", "val").digest != load_dense(voc, "voc", "train").digest
    put(voc / "SegmentationClass/2007_000001.png", palette([1, 1, 1]))
    assert load_dense(voc, "voc", "val").digest != before


# --- the common crop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(96, 96), (60, 97), (97, 60), (75, 250), (31, 30), (200, 100)])
@pytest.mark.parametrize(("size", "crop_pct"), [(32, 1.0), (48, 0.875), (96, 0.9)])
def test_masks_lie_where_the_picture_does(shape, size, crop_pct):
    """A picture of its own row and column numbers, resized to nearest pixels by the model's transform."""
    rule = Transform(7, 9, (0.0,) * 3, (1.0,) * 3, interpolation="nearest", crop_pct=crop_pct)
    for numbers in (torch.arange(shape[0]).view(-1, 1).expand(shape), torch.arange(shape[1]).expand(shape)):
        shown = numbers.to(torch.uint8).expand(3, *shape)
        pixels, cropped = aligned([shown], [numbers], size=size, kind="segmentation", transform=rule)
        assert tuple(pixels.shape) == (1, 3, size, size)
        off = (pixels[0, 1].mul(255).round().long() - cropped[0]).abs()
        assert off.max() <= 1, "where a centre falls on an edge either neighbour is nearest"
        assert (off > 0).float().mean() < 0.05


def test_edges_of_objects_agree_with_a_smoothly_resized_picture():
    mask = torch.zeros(120, 200, dtype=torch.int64)
    mask[30:90, 60:140] = 1
    picture_of_it = (mask * 255).to(torch.uint8).expand(3, 120, 200)
    rule = Transform(1, 1, (0.0,) * 3, (1.0,) * 3)
    pixels, cropped = aligned([picture_of_it], [mask], size=40, kind="segmentation", transform=rule)
    expected = torch.zeros(40, 40)
    expected[10:30, 7:33] = 1  # columns 60 to 140 of 200 are 20 to 46.7 of 66, less 13 by the crop
    assert torch.equal(cropped[0].float(), expected)
    assert ((pixels[0, 0] > 0.5) == expected.bool()).float().mean() > 0.97


def test_depth_is_never_mixed_and_zeros_stay():
    depth = torch.where(torch.rand(50, 80, generator=torch.Generator().manual_seed(1)) < 0.9, 0.0, 7.25)
    _, cropped = aligned([torch.zeros(3, 50, 80, dtype=torch.uint8)], [depth], size=24, kind="depth")
    assert cropped.dtype == torch.float32
    assert set(cropped.unique().tolist()) == {0.0, 7.25}
    assert abs((cropped == 0).float().mean().item() - 0.9) < 0.05


def test_size_as_it_is_is_only_normalised_and_pictures_of_any_size_mix():
    images = [torch.full((3, h, w), 255, dtype=torch.uint8) for h, w in ((4, 4), (6, 9), (8, 4))]
    masks = [torch.arange(16).view(4, 4), torch.full((6, 9), 255), torch.full((8, 4), 3)]
    pixels, cropped = aligned(images, masks, size=4, kind="segmentation")
    assert torch.equal(cropped[0], masks[0])
    assert [m.unique().tolist() for m in cropped[1:]] == [[255], [3]]
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(pixels, white.view(1, 3, 1, 1).expand(3, 3, 4, 4))


def test_one_at_a_time_gives_the_same():
    images = [
        torch.from_numpy(np.asarray(photo(30, 20 + i, seed=i)).copy()).permute(2, 0, 1) for i in range(3)
    ]
    masks = [torch.arange(30 * (20 + i)).view(20 + i, 30) for i in range(3)]
    together = aligned(images, masks, size=16, kind="segmentation")
    for i in range(3):
        alone = aligned(images[i : i + 1], masks[i : i + 1], size=16, kind="segmentation")
        assert torch.equal(alone.pixels[0], together.pixels[i])
        assert torch.equal(alone.annotation[0], together.annotation[i])


@pytest.mark.parametrize(
    ("annotation", "options", "message"),
    [
        (torch.zeros(5, 4).long(), {}, r"room.jpg: picture \[3, 4, 5\] and annotation \[5, 4\] differ"),
        (torch.zeros(4, 5), {}, r"room.jpg: annotation of torch.float32 for segmentation; expected whole"),
        (torch.zeros(4, 5).bool(), {}, r"room.jpg: annotation of torch.bool"),
        (torch.zeros(4, 5).long(), {"kind": "depth"}, r"torch.int64 for depth; expected floats"),
        (torch.full((4, 5), torch.nan), {"kind": "depth"}, r"room.jpg: .*finite and 0 or more"),
        (torch.full((4, 5), torch.inf), {"kind": "depth"}, r"room.jpg: .*finite and 0 or more"),
        (torch.full((4, 5), -1.0), {"kind": "depth"}, r"room.jpg: .*finite and 0 or more"),
        (torch.zeros(4, 5).long(), {"kind": "boxes"}, r"kind must be 'segmentation' or 'depth', got 'boxes'"),
        (torch.zeros(4, 5).long(), {"names": ["a", "b"]}, r"1 pictures, 1 annotations, 2 names"),
        (torch.zeros(4, 5).long(), {"size": 0}, r"crop_pct 1.0, size 0; expected"),
        (torch.zeros(4, 5).long(), {"transform": Transform(4, 4, (0,) * 3, (1,) * 3, crop_mode="squash")},
         r"crop_mode 'squash', .*expected 'center'"),
    ],
)  # fmt: skip
def test_bad_crops_are_refused(annotation, options, message):
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    arguments = {"size": 4, "kind": "segmentation", "names": ["room.jpg"], **options}
    with pytest.raises(ValueError, match=message):
        aligned([image], [annotation], **arguments)


def test_nothing_to_crop_is_refused():
    with pytest.raises(ValueError, match="0 pictures, 0 annotations, 0 names"):
        aligned([], [], size=4, kind="depth")
