"""The strategy "scan": every split of every tree is tested, for many rows at once or for many trees at once."""
