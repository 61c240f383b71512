"""Looking at a dump: what is there, what is complete, how full its disk is."""
