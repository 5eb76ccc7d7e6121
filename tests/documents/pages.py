"""Documents with something of everything."""

from __future__ import annotations

from alula.documents import Block, Document, Notice, Page, Table, rectangle

TABLE = "<table><tr><th>item</th><th>price</th></tr><tr><td>pen</td><td>1.50</td></tr></table>"


def full() -> Document:
    """Two pages, every value set on one and none on the other."""
    page = Page(
        index=0,
        width=200,
        height=100,
        text=f"# Receipt\n\ntotal <b>\n\n{TABLE}",
        blocks=(
            Block(kind="line", text='to "you" & me', box=rectangle(10, 20, 90, 40), score=0.5),
            Block(kind="title", text="no place", score=float("nan")),
        ),
        tables=(Table(html=TABLE, rows=(("item", "price"), ("pen", "1.50")), box=rectangle(0, 0, 9, 9)),),
        notices=(Notice(code="blurred", message="<blurred>"),),
        timings={"read_ms": 12.34567},
    )
    failed = Page(index=1, width=20, height=10, notices=(Notice(code="failed", message="it is -- gone"),))
    return Document(source="a&b.pdf", task="document", pages=(page, failed))
