"""Checks of a deployment: settings, permissions, disks, store, cluster; and what to do about a failure."""
