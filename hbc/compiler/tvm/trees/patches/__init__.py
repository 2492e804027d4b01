"""The strategy "patches": rows go from patch to patch, a patch being up to 15 connected splits."""
