"""A page as one HTML file that needs no network, no script and no other file."""

import base64
from collections.abc import Iterator
from html import escape

from tuner.report.page import Block, Code, Listing, Page, Paragraph, Picture, Pictures, Table

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 64px; color: #1b1f24;
  background: #fff; font: 16px/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25em; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2em 0 .6em; padding-bottom: .25em;
  border-bottom: 1px solid #d5dae0; }
p { margin: .6em 0; max-width: 80ch; overflow-wrap: anywhere; }
ul { padding-left: 1.2em; margin: .6em 0; max-width: 80ch; overflow-wrap: anywhere; }
.watermark { border: 2px solid #8a4b00; background: #fff4e0; color: #6b3a00; padding: .6em .9em;
  font-weight: 600; margin: 0 0 1.2em; }
.verdict { font-size: 1.12rem; font-weight: 600; border-left: 4px solid #1f5fae;
  padding: .3em .9em; margin: 1em 0; max-width: none; }
.subtitle { color: #57606a; font-size: .9rem; max-width: none; }
pre { background: #f5f7f9; border: 1px solid #d5dae0; border-radius: 4px; padding: .8em 1em;
  white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; }
.table { overflow-x: auto; margin: .8em 0; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .32em .7em; border-bottom: 1px solid #e3e7eb; text-align: left;
  vertical-align: top; white-space: nowrap; }
th { white-space: normal; min-width: 4.5em; border-bottom: 2px solid #aab2bb; font-weight: 600; }
td.wrapped { white-space: normal; min-width: 16em; overflow-wrap: anywhere; }
tr.emphasised td { background: #eaf2fc; font-weight: 600; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr));
  gap: 16px; margin: 1em 0; }
.pictures.wide { grid-template-columns: 1fr; }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; border: 1px solid #e3e7eb; }
.wide figure img { max-width: 900px; }
figcaption { font-size: .82rem; color: #57606a; margin-top: .3em; }
@media (max-width: 600px) { body { padding: 14px 12px 40px; font-size: 15px; }
  h1 { font-size: 1.3rem; } .verdict { font-size: 1rem; } td.wrapped { min-width: 12em; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; } tr, figure, pre { break-inside: avoid; }
  .table { overflow: visible; } th, td { white-space: normal; padding: .2em .4em; }
}
"""


def to_html(page: Page) -> str:
    """Write *page* with its pictures inside."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    if page.watermark is not None:
        yield f'<p class="watermark">{escape(page.watermark)}</p>'
    yield f"<h1>{escape(page.title)}</h1>"
    yield f'<p class="subtitle">{escape(page.subtitle)}</p>'
    yield f'<p class="verdict">{escape(page.verdict)}</p>'
    for section in page.sections:
        yield f"<section>\n<h2>{escape(section.title)}</h2>"
        yield from (line for block in section.blocks for line in _block(block))
        yield "</section>"
    yield "</body>\n</html>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield f"<p>{escape(text)}</p>"
        case Listing(items):
            yield "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Code(text):
            yield f"<pre><code>{escape(text)}</code></pre>"
        case Table():
            yield from _table(block)
        case Pictures(pictures):
            wide = " wide" if len(pictures) == 1 else ""
            yield f'<div class="pictures{wide}">'
            yield from (_picture(picture) for picture in pictures)
            yield "</div>"


def _table(table: Table) -> Iterator[str]:
    yield '<div class="table"><table>\n<thead><tr>'
    yield "".join(f'<th scope="col">{_breakable(cell)}</th>' for cell in table.head)
    yield "</tr></thead>\n<tbody>"
    for index, row in enumerate(table.rows):
        mark = ' class="emphasised"' if index == table.emphasised else ""
        cells = "".join(_cell(cell, wrapped=i in table.wrapped) for i, cell in enumerate(row))
        yield f"<tr{mark}>{cells}</tr>"
    yield "</tbody></table></div>"


def _breakable(name: str) -> str:
    """Let a long name with underscores go on in the next line."""
    return escape(name).replace("_", "_<wbr>")


def _cell(text: str, *, wrapped: bool) -> str:
    return f'<td class="wrapped">{escape(text)}</td>' if wrapped else f"<td>{escape(text)}</td>"


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    caption = escape(picture.caption)
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
