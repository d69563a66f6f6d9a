"""What the documentation site is made of: every page in the navigation, links that stay inside, twins, an index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import build_site

from .markdown import FENCE, ROOT, anchor_names, links, pages

pytestmark = pytest.mark.docs


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[build_site.Page], dict[str, str]]:
    folder = tmp_path_factory.mktemp("pages")
    return folder, *build_site.stage(folder)


type Staged = tuple[Path, list[build_site.Page], dict[str, str]]


def test_every_page_is_in_the_navigation_once(staged: Staged) -> None:
    _, listed, _ = staged
    expected = {page for page in pages() if page.is_relative_to(ROOT / "docs")}
    expected |= set((ROOT / "examples").glob("*/README.md"))
    assert sorted(page.source for page in listed) == sorted(expected)


def test_every_link_stays_in_the_site_and_leads_somewhere(staged: Staged) -> None:
    folder, _, twins = staged
    broken: list[str] = []
    for place in twins:
        for target in links(folder / place):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = (folder / place).parent / path if path else folder / place
            inside = file.resolve().is_relative_to(folder.resolve())
            known = anchor_names(twins[file.resolve().relative_to(folder.resolve()).as_posix()]) if anchor else ()
            if not inside or not file.exists() or (anchor and anchor not in known):
                broken.append(f"{place}: {target}")
    assert not broken


def test_headings_carry_the_anchors_that_links_use(staged: Staged) -> None:
    folder, _, twins = staged
    for place, text in twins.items():
        marked = re.findall(r"^#+ .*\{ #(\S+) \}$", FENCE.sub("", (folder / place).read_text("utf-8")), re.MULTILINE)
        assert marked == anchor_names(text)


def test_fences_lose_the_words_for_tests_and_keep_the_name_of_their_file() -> None:
    text = "# A\n\n```yaml fragment file=config.yaml\nname: x\n```\n\n```bash\nls\n```\n"
    shown = build_site.for_generator(text)
    assert '```yaml title="config.yaml"\nname: x\n```' in shown
    assert "```bash\nls\n```" in shown


def test_links_in_code_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "other.py").write_text("", "utf-8")
    page = tmp_path / "docs" / "page.md"
    page.write_text("# A\n\n`[no](../other.py)` [`yes`](../other.py) [there](#a)\n", "utf-8")
    monkeypatch.setattr(build_site, "ROOT", tmp_path)
    monkeypatch.setattr(build_site, "DOCS", tmp_path / "docs")
    text, linked = build_site.move_links(page)
    assert text == "# A\n\n`[no](../other.py)` [`yes`](repository/other.py) [there](#a)\n"
    assert linked == [tmp_path / "other.py"]


def test_models_get_an_index_twins_and_everything_in_one_file(staged: Staged, tmp_path: Path) -> None:
    _, listed, twins = staged
    build_site.write_for_models(listed, twins, tmp_path)
    index = (tmp_path / "llms.txt").read_text("utf-8")
    whole = (tmp_path / "llms-full.txt").read_text("utf-8")
    for page in listed:
        assert f"]({page.place}): " in index
        assert (tmp_path / page.place).read_text("utf-8") == twins[page.place]
        assert f"<!-- {page.place} -->" in whole
    assert all(len(line) < 400 for line in index.splitlines())


def test_a_link_that_leads_nowhere_is_found_in_html(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="x">A</h1><a href="b.html#y">1</a><a href="b.html#z">2</a>', "utf-8")
    (tmp_path / "b.html").write_text('<p id="y"></p><img src="gone.png"><a href="https://other.site/">3</a>', "utf-8")
    assert build_site.find_broken(tmp_path) == ["a.html: b.html#z", "b.html: gone.png"]
