"""Lists of hosts, as Slurm writes them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.decoding import Mismatch
from agent.stack.inventory import expanded

LISTS = {
    "dgx001": ["dgx001"],
    "dgx[001-003]": ["dgx001", "dgx002", "dgx003"],
    "dgx[9-11]": ["dgx9", "dgx10", "dgx11"],
    "dgx[08-10,98]-a, login": ["dgx08-a", "dgx09-a", "dgx10-a", "dgx98-a", "login"],
    "r[1-2]n[01-02]": ["r1n01", "r1n02", "r2n01", "r2n02"],
    "10.0.0.[1-2]": ["10.0.0.1", "10.0.0.2"],
    " a\nb ,": ["a", "b"],
    "": [],
}
WRONG = {
    "dgx[1-": "is 'dgx[1-', expected names of hosts",
    "dgx[]": "is 'dgx[]', expected names of hosts",
    "dgx[\u0663]": "is 'dgx[\u0663]', expected names of hosts",
    "a b;c": "is 'b;c', expected names of hosts",
    "dgx[3-1]": "is '3-1', expected a range that rises",
    "dgx[0-999999]": "is '0-999999', expected a range that rises, of at most 20000 hosts",
    "a[1-200]b[1-200]": "is 'a[1-200]b[1-200]', expected at most 20000 hosts",
}


@pytest.mark.parametrize("text", LISTS)
def test_a_list_is_expanded(text: str) -> None:
    assert expanded(text) == LISTS[text]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_list_is_reported_in_one_sentence(text: str) -> None:
    with pytest.raises(Mismatch) as caught:
        expanded(text, "rack[2].hosts")
    assert str(caught.value).startswith(f"rack[2].hosts {WRONG[text]}")


@given(st.text(alphabet="ab-.,[]0123456789 \n", max_size=24))
def test_any_text_is_a_list_or_a_sentence(text: str) -> None:
    with suppress(Mismatch):
        assert all(name and not set(name) & set("[], \n") for name in expanded(text))
