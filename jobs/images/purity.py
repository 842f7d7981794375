"""How well clusters agree with the photographs the patches come from.

The purity of a clustering is the share of images that belong to the most frequent photograph of their
cluster. It rises with the number of clusters by itself (a cluster for each image has purity 1), so it is
given together with what labels without any information would reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Purity:
    """Purity of a clustering, from 0 to 1.

    Attributes:
        share: of all images, those in agreement with their cluster.
        n_images: how many images.
        n_clusters: how many clusters have an image.
        largest_photograph: share of the most frequent photograph, the purity of one single cluster.
        by_photograph: of each photograph's images, the share in clusters where it is the most frequent.
    """

    share: float
    n_images: int
    n_clusters: int
    largest_photograph: float
    by_photograph: Mapping[str, float]


def photograph_of(key: str) -> str:
    """The photograph a patch was cut from: the key without its number."""
    return key.rpartition("/")[0]


def purity(index: Mapping[str, int]) -> Purity:
    """Measure an index (key -> cluster) against the photographs that the keys name."""
    members: dict[int, Counter[str]] = {}
    for key, cluster in index.items():
        members.setdefault(cluster, Counter())[photograph_of(key)] += 1
    totals: Counter[str] = Counter(photograph_of(key) for key in index)
    agreeing: Counter[str] = Counter()
    for counter in members.values():
        photograph, n_images = min(counter.items(), key=lambda item: (-item[1], item[0]))
        agreeing[photograph] += n_images
    n_images = max(1, len(index))
    return Purity(
        share=sum(agreeing.values()) / n_images,
        n_images=len(index),
        n_clusters=len(members),
        largest_photograph=max(totals.values(), default=0) / n_images,
        by_photograph={
            photograph: agreeing[photograph] / totals[photograph] for photograph in sorted(totals)
        },
    )
