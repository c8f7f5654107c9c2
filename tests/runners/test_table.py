"""Each cell of the table in `docs/runners.md` is what a program sees that runs here and now."""

from __future__ import annotations

import pytest

from tests.runners import table
from tests.runners.table import MODES, ROWS, Row

pytestmark = [pytest.mark.runners, pytest.mark.timeout(900)]  # the first test may have to install


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.runner}, {row.situation}" for row in ROWS])
def test_a_job_sees_what_the_table_says(row: Row, mode: str) -> None:
    assert table.documented()[row.runner, row.situation, mode] == row.cell(MODES[mode])


def test_the_table_has_nothing_that_nobody_has_measured() -> None:
    measured = {(row.runner, row.situation, mode) for row in ROWS for mode in MODES}
    assert set(table.documented()) == measured
