"""Measurements on a load of the shape of a real dump; `python -m bench` prints them."""
