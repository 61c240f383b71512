"""Verifying a store: what is not as it was written.

verify.py                   reads all elements back
verify_listing.py           what a listing alone shows
verify_view.py              what lies beside the steps: groups of ranks, the consolidated view
"""
