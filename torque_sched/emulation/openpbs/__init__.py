"""The dialect of OpenPBS 23.06.06: its programs, what its server checks (next to nothing), and its hooks."""
