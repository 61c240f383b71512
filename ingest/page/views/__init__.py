"""The screens: each module turns answers of the store into what its template shows."""

from ingest.page.asking import ASKED, question_screen
from ingest.page.views import cell, compare, incidents, tensor, tokens

#: By name in the URL.
SCREENS = {
    screen.name: screen
    for screen in (
        *(incidents.SCREEN, cell.MATRIX, cell.SCREEN, tensor.SCREEN, incidents.LIVE, compare.SCREEN),
        tokens.SCREEN,
        *map(question_screen, ASKED),
    )
}
