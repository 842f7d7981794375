"""Section `operations`: each operation on the GPU, by a server, judged on the CPU; alone and packed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

from benchmarks.gpu.cases import Case, Judgement, cases, factorization_of, judged
from benchmarks.gpu.setting import GpuSetting
from benchmarks.pipeline.setting import calls_of
from benchmarks.pipeline.setting import packed as packed_outcomes
from benchmarks.result import Row, measured
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError, JobError

_PACK = 64
_N_PACKED = 128
_PACKED_ORDER = 24


def operation_rows(setting: GpuSetting) -> Iterator[list[Row]]:
    """A row for each case; its goal is that the answer is right."""
    device = setting.machine.gpu.name
    with setting.servers.gpu.client() as client:
        for case in cases():
            what = f"operation {case}"
            if setting.budget.allows(what):
                judgement, note = answered(client, case, device)
                yield [_row(what, [judgement], note)]
            else:
                yield [setting.budget.cut_row(what)]
        for operation in ("lu", "qr", "cholesky"):
            what = f"operation {operation}, order {_PACKED_ORDER}, packed by {_PACK}"
            yield [_row(what, packed(client, operation), f"{_N_PACKED} matrices, the worst")]


def answered(client: Client, case: Case, device: str) -> tuple[Judgement, str]:
    """The judgement of one call's answer, and where it was computed.

    Raises:
        JobError: another device answered.
    """
    tensors = tuple(Tensor.of(array) for array in case.arrays)
    reply = client.call(Call(secrets.token_hex(8), case.operation, dict(case.params), tensors))
    if reply.device != device:
        raise JobError(f"{case}: {reply.device} answered, not {device}")
    on = reply.info.get("computed_on", "cuda")
    return judged(case, reply.arrays(), reply.info), f"computed on {on}"


def packed(client: Client, operation: str) -> list[Judgement]:
    """The judgements of many small matrices that travel and are computed together.

    Raises:
        AccelError: what the first failed one failed with.
    """
    made = [factorization_of(operation, _PACKED_ORDER + at % 2) for at in range(_N_PACKED)]
    work = list(calls_of(operation, {}, ((Tensor.of(case.arrays[0]),) for case in made)))
    cases_of = {call.key: case for call, case in zip(work, made, strict=True)}
    found = []
    for call, outcome in packed_outcomes(client, work, 4, _PACK):  # as they are done, not in the calls' order
        if isinstance(outcome, AccelError):
            raise outcome
        found.append(judged(cases_of[call.key], outcome.arrays(), outcome.info))
    return found


def _row(what: str, judgements: Sequence[Judgement], note: str) -> Row:
    worst = max(judgements, key=lambda judgement: judgement.value)
    return measured(what, [worst.value], worst.unit, goal=f"<= {worst.limit:g}", note=note)
