"""No keyword is ignored in silence, and the documentation's table is what the code does."""

import pytest

from tests.grammar.keywords import BEGIN, CASES, CLOSE, DOCUMENT, outcome, table


@pytest.mark.parametrize("keyword", CASES)
def test_a_keyword_is_enforced_or_said_not_to_be(keyword):
    what, why = outcome(keyword)
    assert what == "enforced" or why


def test_the_documented_table_is_up_to_date():
    documented = DOCUMENT.read_text("utf-8").partition(BEGIN)[2].partition(CLOSE)[0]
    assert documented == table(), "run python -m tests.grammar.keywords --write"
