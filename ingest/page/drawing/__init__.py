"""Pictures: SVG as text, and PNG. Colours are classes of the stylesheet, so that light and dark need one picture."""
