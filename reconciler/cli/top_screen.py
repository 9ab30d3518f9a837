"""The screen of `top`: three tables under a headline, looked at again every few seconds. What is in them is `looking`'s.

Cursor and table stay where they are when the rows change; a look that fails is said in the last line and tried again.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane
from textual.worker import Worker

from reconciler.errors import GangOpsError
from reconciler.render.names import shortened
from reconciler.render.view import Rows
from reconciler.runtime.looking import Seen

TABLES = ("jobs", "nodes", "queues")


class Look(Protocol):
    """Where the screen looks."""

    def look(self) -> Seen:
        """How it stands now. Raises GangOpsError."""
        ...

    def job(self, name: str) -> str:
        """Everything about one job, "" for none."""
        ...


class Page(ModalScreen[None]):
    """One job, over everything else, until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Back")]
    CSS = "Page {align: center middle} VerticalScroll {width: 90%; height: 80%; border: round $primary; padding: 1 2}"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False, id="page")


class Top(App[None]):
    """The application. `look` is called in a thread, one at a time."""

    TITLE = "gangops"
    ENABLE_COMMAND_PALETTE = False
    CSS = (
        "Screen {overflow: hidden} #headline {padding: 0 1; height: auto} #told {padding: 0 1; height: 1; color: $warning}"
        " TabbedContent {height: 1fr} TabPane {padding: 0} DataTable {height: 1fr}"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"table('{name}')", name.title()) for number, name in enumerate(TABLES, 1)),
        Binding("r", "look", "Look again"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, look: Look, every: float) -> None:
        super().__init__()
        self._look, self._every = look, every
        self._again = False

    def compose(self) -> ComposeResult:
        yield Static("looking ...", markup=False, id="headline")
        with TabbedContent(*(name.title() for name in TABLES), id="tabs"):
            for name in TABLES:
                with TabPane(name.title(), id=f"pane-{name}"):
                    yield DataTable(id=name, cursor_type="row", zebra_stripes=True)
        yield Static("", markup=False, id="told")
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(self._every, self._look_unless_looking)
        self.action_look()
        self.query_one("#jobs").focus()

    def action_look(self) -> None:
        """Look now, or once more after the look that is on its way: it may have seen what was before."""
        self._again = not self._look_unless_looking()

    def _look_unless_looking(self) -> bool:
        """Whether a look begins."""
        if any(worker.is_running for worker in self.workers):
            return False
        self.run_worker(self._looked, thread=True, exit_on_error=True)
        return True

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """A look is over: the one that was asked for meanwhile begins."""
        if event.worker.is_finished and self._again:
            self.action_look()

    def action_table(self, name: str) -> None:
        """Show a table and put the cursor into it."""
        self.query_one("#tabs", TabbedContent).active = f"pane-{name}"
        self.query_one(f"#{name}").focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on a job shows it."""
        if event.data_table.id == "jobs" and (text := self._look.job(str(event.row_key.value))):
            self.push_screen(Page(text))

    def _looked(self) -> None:
        try:
            seen = self._look.look()
        except GangOpsError as err:
            self.call_from_thread(self._tell, f"{err.message} ({err.code}); trying again")
            return
        self.call_from_thread(self._show, seen)

    def _tell(self, text: str) -> None:
        self.query_one("#told", Static).update(text)

    def _show(self, seen: Seen) -> None:
        self.query_one("#headline", Static).update(seen.headline)
        self._tell(seen.warning)
        for name, rows in (("jobs", seen.jobs), ("nodes", seen.nodes), ("queues", seen.queues)):
            _fill(self.query_one(f"#{name}", DataTable), rows)


_RIGHT = {"jobs": "GPUS SINCE", "queues": "GUARANTEED HELD PROMISED WAITING CEILING"}
_LEAST_NAME = 20
_STYLES = {
    "Running": "green", "Ready": "green", "Lost": "bold red", "Unhealthy": "bold red", "NeverSeen": "bold red", "Failed": "red",
    "Repairing": "yellow", "Stopping": "yellow", "Cordoned": "yellow", "Refusing": "yellow",
}  # fmt: skip
"""Colours of words that say the same without them."""


def _cell(word: str, text: str, right: bool) -> Text:
    style = _STYLES.get(text, "") if word in {"STATE", "CONDITION"} else ""
    return Text(text, style=style, justify="right" if right else "left")


def _fill(shown: DataTable[Text], rows: Rows) -> None:
    """Other rows, the cursor on the row it was on."""
    header, cells = rows
    at = shown.cursor_row
    key = str(shown.coordinate_to_cell_key(Coordinate(at, 0)).row_key.value) if shown.row_count else ""
    right = {name for name in _RIGHT.get(str(shown.id), "").split() if name in header}
    if not shown.columns:
        shown.add_columns(*(Text(name, justify="right" if name in right else "left") for name in header))
    shown.clear()
    for row in cells:
        name = shortened(row[0], max(_LEAST_NAME, shown.app.size.width // 2 - 2))
        told = [_cell(word, text, word in right) for word, text in zip(header, (name, *row[1:]), strict=True)]
        shown.add_row(*told, key=row[0].strip())
    names = [row[0].strip() for row in cells]
    if cells:
        shown.move_cursor(row=names.index(key) if key in names else min(at, len(cells) - 1))
