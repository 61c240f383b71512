"""A campaign of damage: every kind of object of a store is damaged in every way, and every question is asked.

whole_store.py  a small store that has everything a store can have, and earlier states of it
objects.py      the kinds of objects in a store, and what stands for each
spoil.py        ways to damage an object
questions.py    what is asked, and what an answer is
campaign.py     damages, asks, judges, restores
"""
