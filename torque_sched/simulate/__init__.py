"""Virtual time: the policies of the live scheduler, driven by the log of a real machine."""
