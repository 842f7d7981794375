"""Which sites there are: the clusters of each, in processors."""

from __future__ import annotations

from collections.abc import Mapping

from torque_sched.errors import ConfigError

Layout = tuple[tuple[int, ...], ...]
"""For each site the processors of its clusters."""

PRESETS: Mapping[str, Layout] = {
    "equal": ((432,), (216,) * 2, (108,) * 4, (54,) * 8),
    "338": ((338,), (169,) * 2, (85,) * 4, (43,) * 8),
    "hetero": ((338,), (128,) * 3, (64,) * 7, (128,) * 4),
}
"""The paper's Table 1 is lost. ``equal``: the same total, more and more clusters; ``338``: the log's machine,
as nearly as it divides (338, 338, 340, 344), for the load the paper has; ``hetero``: different sizes."""


def parse_layout(text: str) -> Layout:
    """Return a preset by its name, or sites as ``4x108,2x216,1x300+2x50``: clusters x processors.

    Raises:
        ConfigError: neither; the message shows the form.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        sites = tuple(
            tuple(size for part in site.split("+") for size in _clusters(part)) for site in text.split(",")
        )
    except ValueError:
        known = ", ".join(PRESETS)
        raise ConfigError(
            f"no sites {text!r}", cure=f"give a preset ({known}) or sites such as 1x432,2x216,1x300+2x50"
        ) from None
    return sites


def _clusters(part: str) -> tuple[int, ...]:
    count, times, procs = part.partition("x")
    if not times or int(count) < 1 or int(procs) < 1:
        raise ValueError(part)
    return (int(procs),) * int(count)
