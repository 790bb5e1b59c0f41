"""A table whose title and caption are as wide as the screen, not as its columns."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table


class TitledTable(Table):
    """A table with its title above and its caption below, both at the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, table, caption."""
        title, caption = self.title, self.caption
        self.title = self.caption = None
        try:
            if title:
                yield console.render_str(str(title), style="bold", markup=False, highlight=False)
            yield from super().__rich_console__(console, options)
            if caption:
                yield console.render_str(str(caption), markup=False, highlight=False)
        finally:
            self.title, self.caption = title, caption
