"""A report before it is Markdown or HTML: sections made of a few kinds of blocks."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of short sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be copied as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head; *emphasised* is the row to look at, counted from 0."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    emphasised: int | None = None
    wrapped: tuple[int, ...] = ()  # columns that hold sentences


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot on disk, and the same in words."""

    path: Path
    caption: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """Plots that belong side by side."""

    pictures: tuple[Picture, ...]


Block = Paragraph | Listing | Code | Table | Pictures


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of the page; an empty one is not shown."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report: the verdict comes first."""

    title: str
    watermark: str | None
    verdict: str
    subtitle: str
    sections: tuple[Section, ...]
