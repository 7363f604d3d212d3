import numpy as np
import pytest

from hooks.errors import TaskError
from interp.tasks.layout import RecordLayout


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("modulus", [1, 4, 7])
@pytest.mark.parametrize("n_records", [1, 6, 30])
def test_every_window_is_possible_with_the_fewest_fillers(size: int, modulus: int, n_records: int) -> None:
    needed = max(modulus + size - 2, 3 * modulus - 2 + size - 1 - size * n_records)
    layout = RecordLayout(size * n_records + needed, n_records, size, modulus, anchor=size - 1, offset=11)
    balance = layout.balance()
    rng = np.random.default_rng(0)
    records = 100 + np.arange(n_records * size).reshape(n_records, size)
    fillers = np.arange(layout.n_fillers)
    for window in range(balance.start, balance.start + 2 * modulus - 1):
        targets = balance.targets(np.array([window]))[0]
        rank = layout.rank(window)
        drawn = [layout.in_sequence(rng, rank, targets), layout.prefix(rng, rank, window, targets)]
        for starts in drawn:
            for row, target in zip(layout.write(records, starts, fillers).tolist(), targets, strict=True):
                # Read back without the layout: records and fillers in order, the target where it was asked.
                kept = [t for t in row if t >= 100]
                assert kept == records.flatten().tolist()
                assert [t for t in row if t < 100] == fillers.tolist()
                assert row.index(records[rank, -1]) + 11 == target
                first = row.index(records[rank, 0])
                assert row[first : first + size] == records[rank].tolist()


def test_one_filler_less_raises() -> None:
    RecordLayout(67, 20, 3, 6).balance()
    with pytest.raises(TaskError, match=r"context=66 has 6 fillers at n_records=20; modulus=6 needs 7"):
        RecordLayout(66, 20, 3, 6).balance()
