"""The screens: each module turns answers of the store into what its template shows."""

from ingest.page.asking import ASKED, question_screen
from ingest.page.views import cell, compare, incidents, live, matrix, tensor

#: By name in the URL.
SCREENS = {
    screen.name: screen
    for screen in (
        *(module.SCREEN for module in (incidents, matrix, cell, tensor, live, compare)),
        *map(question_screen, ASKED),
    )
}
