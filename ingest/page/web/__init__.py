"""The web server of the page."""
