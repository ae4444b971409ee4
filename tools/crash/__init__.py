"""Engines that interrupt a container's operations at every place, and check what is left."""
