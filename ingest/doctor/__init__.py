"""Checks of a deployment: permissions, disks, store, cluster."""
