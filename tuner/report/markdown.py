"""A page as Markdown."""

import re
from collections.abc import Iterator
from pathlib import Path

from tuner.report.page import Block, Code, Listing, Page, Paragraph, Pictures, Table

_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def to_markdown(page: Page, folder: Path) -> str:
    """Write *page*; pictures are linked relative to *folder*."""
    return "\n".join(_lines(page, folder)) + "\n"


def _lines(page: Page, folder: Path) -> Iterator[str]:
    yield from (f"# {_text(page.title)}", "")
    if page.watermark is not None:
        yield from (f"> **{_text(page.watermark)}**", "")
    yield from (f"**{_text(page.verdict)}**", "", _text(page.subtitle), "")
    for section in page.sections:
        yield from (f"## {_text(section.title)}", "")
        for block in section.blocks:
            yield from (*_block(block, folder), "")


def _block(block: Block, folder: Path) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield _text(text)
        case Listing(items):
            yield from (f"- {_text(item)}" for item in items)
        case Code(text):
            fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
            yield from (fence, text, fence)
        case Table():
            yield from _table(block)
        case Pictures(pictures):
            for picture in pictures:
                place = picture.path.relative_to(folder).as_posix()
                yield from (f"![{_text(picture.caption)}]({place})", "")


def _table(table: Table) -> Iterator[str]:
    yield _row(table.head)
    yield "|" + " --- |" * len(table.head)
    for index, row in enumerate(table.rows):
        bold = index == table.emphasised
        yield _row(tuple(f"**{cell}**" if bold and cell else cell for cell in row))


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_text(cell).replace("|", r"\|") for cell in cells) + " |"


def _text(text: str) -> str:
    """Keep what a launch said from being read as markup."""
    return _TAG.sub(r"\\<", " ".join(text.split()))
