"""Runs in the pages of docs/."""

from pathlib import Path

import pytest
from test_bench_report import a_record, a_run, row

from mlc.tools.bench import pages
from mlc.tools.cli import UsageError

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def data():
    product = a_record("matmul 512", "matmul", {"mlc": 10.0, "jax": 20.0}, {"mlc": 5.0, "jax": 8.0}, cold_ms={"mlc": 3.0, "jax": 9.0})
    return a_run(product, a_record("exp", "functions", {"mlc": 1.0, "jax": 3.0}, {"jax": 2.0}), threads=(1, 2))


def test_blocks_are_written_anew_and_the_rest_stays(data):
    page = "before\n<!-- bench: times -->\nformer\n<!-- /bench -->\nbetween\n<!-- bench: first calls -->\n<!-- /bench -->\nafter\n"
    found = pages.rewrite(page, data)
    assert "former" not in found and found.startswith("before\n<!--") and "<!-- /bench -->\nbetween\n" in found and found.endswith("-->\nafter\n")
    assert row(found, "matmul 512")[-3:] == ["5.00", "1.60 (jax)", "2.00"] and row(found, "exp")[-3:] == ["-", "-", "-"]
    assert "3.00" in found.partition("between")[2] and "| exp |" not in found.partition("between")[2]
    assert pages.rewrite(found, data) == found


def test_a_page_cannot_ask_for_what_there_is_not(data):
    with pytest.raises(UsageError, match="no block of a page is called wrong; there are: limits"):
        pages.rewrite("<!-- bench: wrong -->\n<!-- /bench -->\n", data)


def test_a_run_with_one_thread_alone_is_refused(data):
    with pytest.raises(UsageError, match="--threads 1,2"):
        pages.rewrite("", {**data, "threads": [1]})


def test_every_block_stands_in_the_pages_of_this_repo(data):
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in pages.PAGES)
    assert all(f"<!-- bench: {name} -->\n" in text for name in pages.BLOCKS)
    assert "matmul 512" in pages.rewrite(text, data)


def test_a_folder_of_pages_is_written(data, tmp_path):
    for name in pages.PAGES:
        (tmp_path / name).write_text("<!-- bench: short -->\n<!-- /bench -->\n", encoding="utf-8")
    pages.write(tmp_path, data)
    assert all(row((tmp_path / name).read_text(encoding="utf-8"), "matmul 512")[5] == "2.00 (jax)" for name in pages.PAGES)
