"""`benchmarks/files_page.py`: files as users have them are read right, or refused."""

from tests.support import benchmark_script


def test_the_page_has_what_is_read_and_refused_now():
    with benchmark_script("files_page") as script:
        page = script.page()
        written = script.PAGE.read_text(encoding="utf-8")

    assert set(page.splitlines()) <= set(written.splitlines())  # without openpyxl no Excel files
