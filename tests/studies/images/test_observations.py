"""The paper's observations, judged on made-up answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.images.attention import Datapoints, LayerAttention, classes_of
from dualform_studies.images.datasets import Dataset, Images, every_row, load_dataset
from dualform_studies.images.observations import (
    EVERY,
    SOME,
    Findings,
    Prevalence,
    choose_recognised_as,
    choose_showing,
    continual_findings,
    crossing_claim,
    crossing_prevalence,
    forgetting_claims,
    joint_findings,
    prevalence_claims,
    single_findings,
)
from dualform_studies.images.training import Checkpoint

LAYERS = ("layer-0", "layer-1", "layer-2")
SLOTS, IMAGES = 40, 60
Draw = np.random.Generator


@pytest.fixture(scope="module")
def pair(made_up_data: Path) -> tuple[Dataset, Dataset]:
    return load_dataset("mnist", made_up_data), load_dataset("fashion-mnist", made_up_data)


@pytest.fixture
def draw() -> Draw:
    return np.random.default_rng(8)


@pytest.fixture
def points(draw: Draw) -> Datapoints:
    names = np.array(["mnist", "fashion-mnist"], dtype=object)[draw.integers(0, 2, SLOTS)]
    return Datapoints(names, draw.choice([5, 9], SLOTS), np.arange(SLOTS), np.arange(SLOTS))


def told(points: Datapoints, image: int) -> tuple[str, int]:
    """Dataset and label of a training image."""
    slot = points.images.tolist().index(image)
    return points.datasets[slot], int(points.labels[slot])


def made_up(draw: Draw, datasets: tuple[Dataset, ...], strong: Callable[[int], int]) -> list[LayerAttention]:
    """Random sums and best images; about half of the images give group `strong(image)` the greatest sum."""
    groups = classes_of(datasets)
    found = []
    for layer in LAYERS:
        sums = draw.random((IMAGES, len(groups)))
        for image in range(IMAGES):
            sums[image, strong(image)] += draw.integers(0, 2)
        found.append(LayerAttention(layer, groups, sums, draw.integers(0, SLOTS, (IMAGES, 3))))
    return found


def ours(findings: Findings, part: str) -> str:
    """What was measured for the one claim that has this part in its words."""
    (claim,) = (claim for claim in findings.claims if part in claim.claim)
    return claim.ours


def test_a_six_and_its_zeros(pair, points: Datapoints, draw: Draw):
    (digits, _), labels = pair, pair[0].test.labels
    attention = made_up(draw, (digits,), lambda image: int(labels[image]))
    given = np.where(draw.random(IMAGES) < 0.8, labels, 1)
    best = {layer: draw.random((IMAGES, 10)) for layer in LAYERS}
    found = single_findings(attention, best, points, Checkpoint(digits, 10, last=True), given)
    sixes = [image for image in range(IMAGES) if labels[image] == given[image] == 6]

    def leads(image: int, at: int) -> bool:
        return int(np.argmax(attention[at].sums[image])) == labels[image]

    everywhere = [all(leads(image, at) for at in range(3)) for image in sixes]
    near = [any(best[layer][image][0] >= 0.9 * best[layer][image][6] for layer in LAYERS) for image in sixes]
    assert [claim.section for claim in found.claims] == ["section 5.2", "section 5.2", "section 5.2", "appendix B.1"]
    assert found.claims[0].ours.startswith(f"{sum(everywhere)} of {len(sixes)} recognised 6s")
    assert found.claims[1].ours.startswith(f"{sum(near)} of {len(sixes)} recognised 6s")
    others = [
        any(told(points, attention[at].best[image][0])[1] != labels[image] for at in range(3))
        for image in range(IMAGES)
        if given[image] == labels[image]
    ]
    assert found.claims[2].ours.startswith(f"{sum(others)} of {len(others)} recognised digits")
    shown = [image for image, one, other in zip(sixes, everywhere, near, strict=True) if one and other]
    if shown:
        assert found.shown["digit-6"].row == shown[0]


def test_a_boot_a_dress_and_a_sandal(pair, points: Datapoints, draw: Draw):
    fashion, labels = pair[1], pair[1].test.labels
    attention = made_up(draw, pair, lambda image: 14 if labels[image] == 9 else 10 + int(labels[image]))
    given = np.where(draw.random(IMAGES) < 0.9, labels, 1)
    found = joint_findings(attention, points, Checkpoint(fashion, 10, last=True), given)

    def recognised(label: int) -> list[int]:
        return [image for image in range(IMAGES) if labels[image] == given[image] == label]

    def share(image: int, at: int) -> float:
        sums = attention[at].sums[image]
        return sums[10 + labels[image]] / sums.sum()

    def top(image: int, at: int) -> list[tuple[str, int]]:
        return [told(points, seen) for seen in attention[at].best[image]]

    boots, dresses, sandals = recognised(9), recognised(3), recognised(5)
    counted = {
        "of a recognised boot are boots": sum(all(one == ("fashion-mnist", 9) for one in top(i, 0)) for i in boots),
        "is coat": sum(int(np.argmax(attention[0].sums[image])) == 14 for image in boots),
        "own class gains": sum(share(image, 2) > share(image, 0) for image in boots),
        "contain some of MNIST": sum(any(name == "mnist" for name, _ in top(image, 2)) for image in boots),
        "A recognised dress": sum(all(name != "mnist" for at in range(3) for name, _ in top(i, at)) for i in dresses),
        'has a "5" of MNIST': sum(any(("mnist", 5) in top(image, at) for at in range(3)) for image in sandals),
        "not the one that the network decides for": sum(
            int(np.argmax(attention[2].sums[image])) % 10 != given[image] for image in sandals
        ),
    }
    for part, count in counted.items():
        assert ours(found, part).startswith(f"{count} of ")
    crossed = [
        100 * np.mean([any(name == "mnist" for name, _ in top(image, at)) for image in range(IMAGES)])
        for at in range(3)
    ]
    assert ours(found, "crosses to MNIST").startswith(
        ", ".join(f"{share:.1f} % at {layer}" for share, layer in zip(crossed, LAYERS, strict=True))
    )
    assert len(found.claims) == 8
    assert set(found.shown) == {"ankle-boot", "dress", "sandal"}


def test_a_one_taken_for_a_three(pair, points: Datapoints, draw: Draw):
    digits, labels = pair[0], pair[0].test.labels
    attention = made_up(draw, pair, lambda image: 13 if labels[image] == 1 else 10 + (image * 7) % 10)
    given = np.where(draw.random(IMAGES) < 0.5, labels, draw.integers(0, 10, IMAGES))
    given[labels == 1] = np.where(draw.random(int((labels == 1).sum())) < 0.7, 3, 1)
    spoilt = (draw.random(IMAGES) < 0.7) & (given != labels)
    crossed = crossing_prevalence(made_up(draw, pair, lambda image: 0), points, "fashion-mnist")
    found = continual_findings(attention, crossed, Checkpoint(digits, 10, last=True), "fashion-mnist", given, spoilt)
    ones = [image for image in range(IMAGES) if labels[image] == 1 and given[image] == 3]
    wrong = [image for image in range(IMAGES) if labels[image] != given[image]]
    dress = [int(np.argmax(attention[2].sums[image])) == 13 for image in ones]
    assert ours(found, 'of a "1" taken for a "3"').startswith(f"{sum(dress)} of {len(ones)} 1s")
    explained = sum(int(np.argmax(attention[2].sums[image, 10:])) == given[image] for image in wrong)
    assert ours(found, "explains mistakes").startswith(f"{explained} of {len(wrong)} MNIST")
    shown = [image for image, led in zip(ones, dress, strict=True) if led and spoilt[image]]
    assert shown
    assert found.shown["interference"].row == shown[0]
    given[labels == 1] = 1
    none = continual_findings(attention, crossed, Checkpoint(digits, 10, last=True), "fashion-mnist", given, spoilt)
    assert len(none.claims) == 2, "no 1 is taken for a 3"
    example = none.shown["interference"]
    assert example.label != example.given
    assert spoilt[example.row], "an example of interference is one that the second dataset spoils"
    nothing = np.zeros(IMAGES, dtype=bool)
    bare = continual_findings(attention, crossed, Checkpoint(digits, 10, last=True), "fashion-mnist", given, nothing)
    assert bare.shown == {"interference": None}, "no image is spoilt"


def test_a_recognised_example_is_of_its_class_where_there_is_one(pair):
    digits, labels = pair[0], pair[0].test.labels
    assert choose_recognised_as(digits, labels, 7).row == labels.tolist().index(7)
    assert choose_recognised_as(digits, np.where(labels == 7, 1, labels), 7).row == 0
    assert choose_recognised_as(digits, (labels + 1) % 10, 7) is None


def seen_by(counts: tuple[int, ...]) -> list[Prevalence]:
    """By layer, an observation of the first so many of 1,000 images."""
    everything = np.ones(1000, dtype=bool)
    return [
        Prevalence("MNIST is near", layer, "images", everything, np.arange(1000) < seen)
        for layer, seen in zip(LAYERS, counts, strict=True)
    ]


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((10, 30, 50), HOLDS),
        ((10, 30, 49), FAILS),
        ((0, 0, 0), FAILS),
        ((10, 60, 50), IN_PART),
        ((92, 92, 100), IN_PART),
        ((93, 94, 100), FAILS),
        ((92, 100, 108), HOLDS),
        ((100, 50, 100), FAILS),
        ((400, 200, 300), FAILS),
    ],
)
def test_attention_across_grows_from_layer_to_layer_beyond_chance(counts: tuple[int, ...], verdict: str):
    claim = crossing_claim("joint.crossing", seen_by(counts))
    assert claim.verdict == verdict
    assert "at least 1/20 at the last layer" in claim.criterion


def test_a_rise_is_that_of_the_same_images():
    """110 images rise to 120: of 110 images all new, 10 more are no rise beyond chance."""
    everything = np.ones(1000, dtype=bool)
    rows = [np.arange(1000) < 110, (np.arange(1000) >= 110) & (np.arange(1000) < 230), np.arange(1000) < 240]
    near = [Prevalence("near", name, "images", everything, seen) for name, seen in zip(LAYERS, rows, strict=True)]
    assert crossing_claim("joint.crossing", near).verdict == IN_PART


YES, NO = True, False


def flags(*values: bool) -> np.ndarray:
    return np.array(values)


def prevalence(concerned: np.ndarray, seen: np.ndarray, observation: str = "it leads") -> Prevalence:
    return Prevalence(observation, "layer-1", "sixes", concerned, seen)


@pytest.fixture
def dataset() -> Dataset:
    images = Images(np.zeros((4, 4), dtype=np.uint8), np.array([6, 6, 6, 1]))
    return Dataset("made-up", images, images, 2, [str(digit) for digit in range(10)], every_row(4))


def test_only_images_concerned_count():
    one = prevalence(flags(YES, YES, YES, NO), flags(YES, NO, YES, YES))
    assert (one.count, one.total) == (2, 3)
    assert str(one) == "2 of 3 sixes (66.7 %)"


def test_an_observation_of_no_image_makes_no_claim():
    nobody = prevalence(flags(NO, NO), flags(YES, YES))
    assert prevalence_claims({"single.six-leads": nobody}) == []


def test_layers_are_joined_as_asked():
    seen = {"layer-0": flags(YES, NO, NO), "layer-1": flags(YES, YES, NO)}
    assert [Prevalence.over("it leads", how, "sixes", flags(YES, YES, YES), seen).count for how in (EVERY, SOME)] == [
        1,
        2,
    ]


@pytest.mark.parametrize(("count", "expected"), [(6, HOLDS), (5, IN_PART), (3, IN_PART), (2, FAILS)])
def test_two_thirds_hold_and_one_third_holds_in_part(count: int, expected: str):
    (claim,) = prevalence_claims({"single.six-leads": prevalence(np.ones(9, dtype=bool), np.arange(9) < count)})
    assert claim.verdict == expected
    assert claim.ours == f"{count} of 9 sixes ({100 * count / 9:.1f} %)"


def test_the_query_shown_is_the_first_that_shows_everything(dataset: Dataset):
    sixes, given = flags(YES, YES, YES, NO), np.array([6, 6, 6, 1])
    leads = prevalence(sixes, flags(NO, YES, YES, YES))
    near = prevalence(sixes, flags(YES, NO, YES, YES), "zeros are near")
    choice = choose_showing(dataset, given, [leads, near])
    assert (choice.row, choice.given) == (2, 6)


def test_where_nothing_shows_everything_the_query_shows_what_there_is(dataset: Dataset):
    sixes, given = flags(YES, YES, YES, NO), np.array([6, 6, 6, 1])
    leads, never = prevalence(sixes, flags(NO, YES, YES, NO)), prevalence(sixes, np.zeros(4, dtype=bool), "none does")
    assert choose_showing(dataset, given, [leads, never]).row == 1
    assert choose_showing(dataset, given, [never]).row == 0
    assert choose_showing(dataset, given, [prevalence(np.zeros(4, dtype=bool), sixes)]) is None


def test_a_criterion_names_its_own_bounds():
    seen = prevalence(np.ones(20, dtype=bool), np.arange(20) < 1)
    (claim,) = prevalence_claims({"single.other-class": seen})
    assert claim.verdict == IN_PART
    assert claim.criterion.endswith("holds of at least 1/3 of these test images; in part, of at least 1/20")


def first_of(count: int) -> np.ndarray:
    """The first so many of 1,000 test images are recognised."""
    return np.arange(1000) < count


@pytest.mark.parametrize(
    ("after", "end", "masked", "forgotten", "back"),
    [
        (970, 470, 965, HOLDS, HOLDS),
        (970, 710, 960, HOLDS, HOLDS),
        (970, 711, 959, IN_PART, IN_PART),
        (970, 470, 720, HOLDS, IN_PART),
        (970, 470, 719, HOLDS, FAILS),
        (970, 962, 961, IN_PART, FAILS),
        (970, 963, 970, FAILS, FAILS),
        (960, 970, 965, FAILS, FAILS),
    ],
)
def test_mnist_is_forgotten_and_comes_back_with_the_mask(after: int, end: int, masked: int, forgotten: str, back: str):
    moments = {"after_first": first_of(after), "final": first_of(end), "masked": first_of(masked)}
    claims = forgetting_claims(moments)
    assert [claim.verdict for claim in claims] == [forgotten, back]
    assert f"{after / 10:.1f} % after MNIST, {end / 10:.1f} % at the end" in claims[0].ours
    assert f"{masked / 10:.1f} % with them removed" in claims[1].ours
