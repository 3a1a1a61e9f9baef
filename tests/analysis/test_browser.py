"""The report in a browser: no errors, nothing fetched, structures that turn and sliders that move."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from analysis.browser import CHROMIUM, Page
from denskit.analysis.report import report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def page_file(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return shutil.copy(report([runs[0]]), folder / "report.html")  # alone: nothing lies beside it


def seen(page: Page, scene: str) -> np.ndarray:
    """Pixels of the stage of a scene [height, width, 3] in 0..1."""
    stage = page.run(
        f"(() => {{ const r = document.querySelector('[data-name={scene}] .stage').getBoundingClientRect();"
        "return {x: r.x + scrollX + 5, y: r.y + scrollY + 5, width: r.width - 10, height: r.height - 10}; })()"
    )
    return matplotlib.image.imread(io.BytesIO(page.screenshot(stage)), format="png")[..., :3]


def test_structures_turn_and_sliders_move(page_file: Path, tmp_path: Path) -> None:
    with Page(page_file, tmp_path / "profile") as page:
        for scene in ("worst", "corrupted", "denoised"):
            page.run(f"document.querySelector('[data-name={scene}]').scrollIntoView()")
            page.wait(f"document.querySelector('[data-name={scene}]').dataset.drawn === 'yes'")
            first = seen(page, scene)
            assert (first < 0.9).any(-1).mean() > 0.005, "the picture is blank"
            middle = page.run(
                f"(() => {{ const r = document.querySelector('[data-name={scene}] .stage').getBoundingClientRect();"
                "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
            )
            page.drag(*middle, by=150)
            turned = seen(page, scene)
            assert np.abs(turned - first).max() > 0.3, "dragging turns nothing"
            told = page.run(
                f"(() => {{ const box = document.querySelector('[data-name={scene}]');"
                "const slider = box.querySelector('input'), before = box.querySelector('output').textContent;"
                "slider.value = slider.value === '0' ? 1 : 0; slider.dispatchEvent(new Event('input'));"
                "return [before, box.querySelector('output').textContent]; })()"
            )
            assert told[0] != told[1]
            assert np.abs(seen(page, scene) - turned).max() > 0.05, "the slider changes no picture"
        assert page.problems == []


def test_problems_are_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>console.error('so'); undefinedName()</script><img src='http://127.0.0.1:9/x.png'>")
    with Page(broken, tmp_path / "profile") as page:
        page.wait("document.readyState === 'complete'")
        told = " ".join(page.problems)
    assert "so" in told and "undefinedName" in told and "fetched http" in told
