"""Pictures: SVG as text, and PNG. Colours are classes of the stylesheet: one picture for light and dark."""
